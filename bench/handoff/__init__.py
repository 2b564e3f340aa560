"""How long a batch that is ready takes to reach the trainer, and a loader its first batch.

command.py   `python -m bench handoff`     trainer.py   the process that is measured
recipe.py    large batches, cheap to fill  busy.py      the process that keeps the cores decoding
requests.py  what both are told, and answer  watch.py   a loader and its daemon, seen from inside
"""
