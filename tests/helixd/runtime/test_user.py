"""A user has a share of the daemon: of connections, of what waits to be read, and of the log."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from functools import partial

from helixd.runtime import user as of_user
from helixd.runtime.link import MAX_QUEUED_BYTES, Link, Overflow
from helixd.runtime.user import User
from helixd.runtime.waiting import Turn, Waiting


def test_a_quarter_of_the_descriptors_is_left_to_a_user_and_few_connections_may_be_silent() -> None:
    user = User(descriptors=2048)
    fullness = []
    for connections, strangers in ((511, 0), (512, 0), (of_user.MAX_STRANGERS, of_user.MAX_STRANGERS)):
        user.connections, user.strangers = connections, strangers
        fullness.append(user.full)
    assert fullness == [False, True, True]
    assert not User(descriptors=1 << 20).full


def test_what_waits_for_processes_of_one_user_is_bounded_over_all_their_connections() -> None:
    user, links, ends = User(1 << 20), [], []
    message = b"x" * 60_000
    said = ""
    while "user" not in said:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        links.append(Link(ours, user))
        ends.append(theirs)
        said = _filled(links[-1], message)
    assert said.endswith("bytes wait for processes of this user, unread")
    assert of_user.MAX_QUEUED_BYTES - 100_000 < user.queued_bytes <= of_user.MAX_QUEUED_BYTES
    assert MAX_QUEUED_BYTES * len(links) > of_user.MAX_QUEUED_BYTES
    before = user.queued_bytes
    ends[0].recv(1 << 17)
    links[0].flush()
    assert user.queued_bytes < before
    for link, end in zip(links, ends, strict=True):
        link.close()
        end.close()
    assert user.queued_bytes == 0


def _filled(link: Link, message: bytes) -> str:
    """Send until a limit; what it says."""
    while True:
        try:
            link.send(message)
        except Overflow as e:
            return str(e)


def test_ten_records_of_a_user_are_told_in_a_minute_and_the_last_says_so() -> None:
    user = User(1024)
    assert [user.told(1000.0 + s) for s in range(12)] == [*["all"] * 9, "last", "none", "none"]
    assert user.told(1059.0) == "none"
    assert user.told(1061.0) == "all"


def test_users_take_turns_however_many_connections_each_has() -> None:
    said: list[str] = []
    waiting = Waiting()

    def ready() -> list[tuple[int, Callable[[], None]]]:
        flood = [(fd, Turn("flood", partial(said.append, "flood"))) for fd in range(1_000)]
        return [
            *flood,
            (2_000, Turn("one", partial(said.append, "one"))),
            (3_000, partial(said.append, "own")),
        ]

    for _ in range(4):  # all have more to say in every turn of the loop
        waiting.add(ready())
        for _ in range(3):
            waiting.pop()()
    assert Counter(said) == {"flood": 4, "one": 4, "own": 4}


def test_each_connection_of_a_user_has_its_turn_once_and_in_order() -> None:
    said: list[int] = []
    waiting = Waiting()
    for _ in range(2):
        waiting.add((fd, Turn("user", partial(said.append, fd))) for fd in (3, 1, 2))
    while waiting:
        waiting.pop()()
    assert said == [3, 1, 2]
