r"""`python -m bench simulate`: the scheduler at work in virtual time, lever by lever.

corpus -> rows -> helixd.core.Machine (the daemon's own decisions) and libhelix.plan (its own plans)
                      |                          \-> figures -> report
                      +-- ranks, workers and hosts of this package, joined by one queue of events

Nothing of the scheduler is modelled: `Machine.handle(event, now)` runs as it does in helixd, only the clock,
the workers and the accelerators are made up.
"""
