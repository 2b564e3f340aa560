"""`python -m bench peers`: several nodes on one machine, each a network namespace with a link of its own."""
