"""Does what the core decides: sockets, descriptors, segments, time.

link    a connection with a bounded out-queue
loop    readiness, events in, actions out
"""
