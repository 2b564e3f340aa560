"""Whatever a process says in messages of its own, helixd does not fall over it, and others notice nothing."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from helixd.core import actions as a
from libhelix.wire import messages as m
from libhelix.wire.settings import IndexRef, Position
from tests.helixd.core.world import World, start_at
from tests.helixd.core.world import settings as of_loader
from tests.libhelix.wire.generate import instances

STRANGER = 2
"""Another user."""
_PLAIN = m.Attach(
    1, "train", 0, 0, of_loader("stack", dp_size=1), (IndexRef("i", "r"),), (), start_at(0, 0).packed()
)
_changes: st.SearchStrategy[m.Attach] = st.builds(
    lambda odd, name: replace(_PLAIN, **{name: getattr(odd, name)}),
    instances(m.Attach),
    st.sampled_from(sorted(m.Attach.__struct_fields__)),
)
"""Attachments in which one thing is odd: those go further than ones in which all are."""
_said: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(st.just("trainer"), st.one_of(instances(m.FromTrainer), _changes)),
    st.tuples(st.just("host"), instances(m.FromHost)),
    st.tuples(st.just("ctl"), instances(m.FromCtl)),
)


@settings(deadline=None, max_examples=100)
@given(st.lists(_said, min_size=1, max_size=20), st.integers(0, 99))
def test_strangers_raise_nothing_and_delay_nobody(said: list[tuple[str, Any]], seed: int) -> None:
    world = World(random.Random(seed))
    for rank in range(2):
        world.attach(rank, of_loader("stack"))
    conns: dict[str, int] = {}
    for role, message in said:
        for _ in range(20):
            world.step()
        gone = role in conns and conns[role] not in world.machine._connections
        if role not in conns or gone:
            conns[role] = world.connect(role, uid=STRANGER, job="stranger")
        if conns[role] in world.machine._connections:
            world.tell(a.Received(conns[role], message))
    world.drain(Position(0, 6, 0))
