"""Decides: events in, actions out. No I/O, clock or randomness, so that tests and a simulator can run it.

machine    connections and jobs: who may come, what a death means
job        which task runs next on which worker, and what its end means
pool       the processes of a job: its host, and a worker per core
stream     a loader: settings, described rows, consumers
consumer   a data-parallel rank of a loader: its ring, batches and holders
batch      one micro-batch on its way to its extent, and the tasks that fill it
ledger     extents of a ring: granted, leased, free
actions    events and actions
"""
