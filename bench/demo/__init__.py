"""The demo: a small training job on several ranks, fed by DataHelix and by DataLoaders of the ranks.

command.py   `python -m bench demo`
data.py      makes the clips             recipe.py    clip -> frames and label
run.py       one training run            launch.py    starts, watches and ends the ranks
train.py     one rank                    sources.py   what feeds it
records.py   what ranks report           trace.py     when samples were decoded
stats.py     records -> figures, pure    report.py    the table, results.json
timeline.py  timeline.png
"""
