"""CPU time and throughput of decoding: DataHelix, a DataLoader that runs the same recipe, and bare loops.

command.py   `python -m bench decode`        side.py     takes batches from one of the loaders
rounds.py    the sides in turn, their CPU    report.py   rounds -> figures, the table
requests.py  what sides are told, and answer
"""
