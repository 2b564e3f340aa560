"""Benchmarks and the demo: `python -m bench --help`."""
