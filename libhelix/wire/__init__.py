"""The contract between trainers, helixd, worker hosts and workers.

settings    what all ranks of a loader must agree on
messages    every message, one frozen struct each, in closed unions per direction
codec       bytes <-> messages, with size limits
layout      the table of samples at the end of an extent
channel     one message, perhaps with descriptors, over a SOCK_SEQPACKET socket
segment     shared memory: made, reserved, prefaulted, mapped
"""
