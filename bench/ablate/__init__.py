"""What each lever of co-scheduling is worth: the same ranks, clips and cores, with more levers each time.

command.py   `python -m bench ablate`     rank.py     a rank whose accelerator is a sleep
systems.py   the levers of each system    daemon.py   helixd with another policy
runs.py      ranks, daemons, one run      barrier.py  where ranks wait for one another
requests.py  what processes are told      report.py   figures, targets, table. Pure
"""
