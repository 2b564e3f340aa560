"""Which samples, for whom, and where in the batch. Pure and deterministic: no clock, I/O or randomness.

order      the keyed permutation of an epoch
steps      which samples are in the micro-batch of a step and rank
ring       free ranges of a ring
leveling   which finished samples change ranks
layout     where each field of each sample lies in an extent
counts     tokens and latents of model families, from sizes alone
"""
