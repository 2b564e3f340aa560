"""The node benchmark: eleven workloads, on the systems that people feed accelerators with.

case.py       what a rank process is told     system.py   what a system is; systems/  those there are
plans.py      which samples a rank has        rank.py     the loop of every rank, for all systems
emulate.py    decoding that sleeps            daemon.py   helixd with as many cores as are emulated
workloads.py  distributions, clips, recipes   prepare.py  an index, its rows, and windows for them
queues.py     samples as they are ready. Pure  flat.py    batches in one piece of memory
runs.py       ranks, nodes, one run           records.py  files of the results
measures.py   records -> measures. Pure       report.py   measures -> report.md; plots.py its pictures
command.py    `python -m bench node`, and `python -m bench report DIR`
"""
