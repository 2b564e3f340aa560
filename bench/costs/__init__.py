"""How well decoding costs are predicted."""
