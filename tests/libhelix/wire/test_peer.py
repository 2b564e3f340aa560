"""What daemons of several nodes say is the same after the wire; anything else is a ProtocolError."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libhelix.errors import ProtocolError
from libhelix.wire import peer as p
from tests.libhelix.wire.generate import instances


@pytest.mark.parametrize("kind", [*get_args(p.PeerMessage)], ids=lambda k: k.__name__)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_every_message_is_the_same_after_the_wire(kind: type, data: st.DataObject) -> None:
    said = p.Said("train", data.draw(instances(kind)))
    assert p.decode(p.encode(said)) == said


@settings(deadline=None, max_examples=50)
@given(instances(p.Shared))
def test_shared_windows_are_the_same_after_the_wire(shared: p.Shared) -> None:
    assert p.unseal(p.seal(shared)) == shared


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_damaged_messages_are_a_protocol_error_and_no_other(data: st.DataObject) -> None:
    said = p.Said("train", data.draw(instances(p.PeerMessage)))
    sealed = p.seal(data.draw(instances(p.Shared)))
    raw = bytearray(data.draw(st.sampled_from([p.encode(said), sealed])))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    for decode in (p.decode, p.unseal):
        try:
            decode(bytes(raw[: data.draw(st.integers(1, len(raw)))]))
        except ProtocolError:
            continue
