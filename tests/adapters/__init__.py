"""Trainers, the real packages where they are installed."""
