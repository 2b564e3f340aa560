"""Trainers that bring their own loops: each module is for one, and imports it (docs/trainers.md)."""
