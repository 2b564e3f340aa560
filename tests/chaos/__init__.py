"""Faults all the time, and an oracle: `python -m tests.chaos --minutes 20 --seed 1`.

run.py      the command: daemons, jobs, faults, and what is left at the end
faults.py   what can be done to them, drawn from a seed
trainer.py  a rank that writes down what it is given, and resumes from what it has saved
oracle.py   what ranks have written, against what inline decoding gives
another.py  running as another user, where that can be
recovery.py how long it takes until what was killed is back: `python -m tests.chaos.recovery`
"""
