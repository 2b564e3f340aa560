"""CURVE keys of nodes, as the 40 characters of Z85."""

from __future__ import annotations

from libhelix.wire.messages import Keys


def new_keys() -> Keys:
    """Keys that nobody has had before."""
    from zmq import curve_keypair  # only for jobs of several nodes

    public, secret = curve_keypair()
    return Keys(public.decode("ascii"), secret.decode("ascii"))
