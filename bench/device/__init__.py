"""How bytes reach an accelerator."""
