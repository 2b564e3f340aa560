"""What DataHelix takes of the CPU beside decoding, and for how long its loop looks away from its sockets.

command.py   `python -m bench overhead`   cpu.py      CPU time by kind of process, from schedstat
images.py    small JPEGs, made once       trainer.py  the process that takes batches at a pace
requests.py  what it is told, and answers
report.py    figures, targets, table. Pure
"""
