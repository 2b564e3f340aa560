"""The demo: a small training job on several ranks, fed by DataHelix and measured against what is possible.

data.py      makes the clips             clips.py    what is in them
recipe.py    clip -> frames and label    samples.py  the index, read for the bare loops
train.py     one rank                    launch.py   starts, watches and ends the ranks
ceiling.py   decoding alone              stats.py    records -> figures, pure
report.py    the table, results.json     command.py  `python -m bench demo`
"""
