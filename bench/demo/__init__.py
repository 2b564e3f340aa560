"""The demo: a small training job on several ranks, fed by DataHelix and measured against what is possible.

command.py   `python -m bench demo`
data.py      makes the clips             clips.py       what is in them
recipe.py    clip -> frames and label    samples.py     the index, read for the bare loops
train.py     one rank                    launch.py      starts, watches and ends the ranks
ceiling.py   decoding alone              records.py     what ranks report
stats.py     records -> figures, pure    report.py      the table, results.json
machine.py   what it ran on              interrupts.py  Ctrl-C is for the parent
"""
