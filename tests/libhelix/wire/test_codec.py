"""Messages are what they were after the wire; anything else is a ProtocolError, and nothing else is."""

from __future__ import annotations

import contextlib
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libhelix.errors import ProtocolError
from libhelix.wire import codec
from libhelix.wire import messages as m
from libhelix.wire.settings import Position
from tests.libhelix.wire.generate import LINKS, instances, kinds

links = st.sampled_from(sorted(LINKS))
fast = settings(deadline=None, max_examples=150)


@pytest.mark.parametrize("link", sorted(LINKS))
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_every_message_is_the_same_after_the_wire(link: str, data: st.DataObject) -> None:
    union, decode = LINKS[link]
    for kind in kinds(union):
        message = data.draw(instances(kind))
        assert decode(codec.encode(message)) == message


def test_every_message_belongs_to_a_link() -> None:
    linked = {kind for union, _ in LINKS.values() for kind in kinds(union)}
    assert set(get_args(m.Message)) <= linked


def test_tags_tell_all_messages_apart() -> None:
    tags = [kind.__struct_config__.tag for kind in get_args(m.Message)]
    assert len(set(tags)) == len(tags)


@fast
@given(links, st.binary(max_size=200))
def test_random_bytes_are_a_protocol_error_and_no_other(link: str, data: bytes) -> None:
    _decode_or_refuse(link, data)


@fast
@given(links, st.data())
def test_damaged_messages_are_a_protocol_error_and_no_other(link: str, data: st.DataObject) -> None:
    raw = bytearray(codec.encode(data.draw(instances(LINKS[link][0]))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1)) if raw else 0
        match data.draw(st.sampled_from(["flip", "cut", "insert"])):
            case "flip" if raw:
                raw[at] ^= data.draw(st.integers(1, 255))
            case "cut":
                del raw[at:]
            case _:
                raw[at:at] = data.draw(st.binary(min_size=1, max_size=9))
    _decode_or_refuse(link, bytes(raw))


odd_values: st.SearchStrategy[Any] = st.sampled_from(
    [None, -1, 1 << 62, (1 << 64) - 1, "", "\0", "x" * 9000, [], {}, True, 0.5, b""]
)


@fast
@given(links, odd_values, st.data())
def test_messages_with_a_wrong_part_are_a_protocol_error_and_no_other(
    link: str, odd: Any, data: st.DataObject
) -> None:
    plain = msgspec.msgpack.decode(codec.encode(data.draw(instances(LINKS[link][0]))))
    branch = plain
    while True:
        at = data.draw(st.sampled_from(sorted(branch) if isinstance(branch, dict) else range(len(branch))))
        inner = branch[at]
        if not isinstance(inner, (list, dict)) or not inner or data.draw(st.booleans()):
            branch[at] = odd
            break
        branch = inner
    _decode_or_refuse(link, msgspec.msgpack.encode(plain))


def _decode_or_refuse(link: str, data: bytes) -> None:
    union, decode = LINKS[link]
    with contextlib.suppress(ProtocolError):
        assert isinstance(decode(data), kinds(union))


@pytest.mark.parametrize("link", sorted(LINKS))
def test_messages_of_another_direction_are_refused(link: str) -> None:
    stranger = m.Filled(1, (2,)) if link != "worker to helixd" else m.StatusAsk()
    with pytest.raises(ProtocolError, match="not a message of this link"):
        LINKS[link][1](codec.encode(stranger))


@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1x", b"\xdd\x00\x00\x00\x01"])
def test_deep_nesting_is_refused(nest: bytes) -> None:
    for _, decode in LINKS.values():
        with pytest.raises(ProtocolError):
            decode(nest * (codec.MAX_MESSAGE_BYTES // len(nest)))


def test_deep_nesting_where_a_newer_version_may_add_something_is_refused() -> None:
    deep = b"\x91" * 60_000 + b"\xc0"
    with pytest.raises(ProtocolError, match="recursion"):
        codec.from_ctl(b"\x95" + codec.encode(m.StatusAsk())[1:] + deep)


def test_a_message_of_64_kib_passes_and_one_byte_more_is_refused_on_both_sides() -> None:
    full = _ready_of_bytes(codec.MAX_MESSAGE_BYTES)
    data = codec.encode(full)
    assert len(data) == codec.MAX_MESSAGE_BYTES
    assert codec.to_trainer(data) == full
    over = _ready_of_bytes(codec.MAX_MESSAGE_BYTES + 1)
    with pytest.raises(ProtocolError, match="a Ready of 65537 bytes"):
        codec.encode(over)
    with pytest.raises(ProtocolError, match="65537 bytes"):
        codec.to_trainer(msgspec.msgpack.encode(over))


def _ready_of_bytes(nbytes: int) -> m.Ready:
    # A dictionary of costs is the one part of a message without a cap of its own.
    def ready(name: str) -> m.Ready:
        return m.Ready(1, Position(0, 0, 0), 1, 0, 0, (), (0, 0), 0, 0, {name: 1}, {}, 0, Position(0, 1, 0))

    short = "x" * 40_000
    return ready(short + "x" * (nbytes - len(msgspec.msgpack.encode(ready(short)))))


def test_a_short_text_stays_as_it_is() -> None:
    assert codec.short("no space left") == "no space left"
    assert codec.short("ü" * 1024) == "ü" * 1024


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    text = "File clip.mp4: " + "frame " * 5000 + "ZeroDivisionError: division by zero"
    cut = codec.short(text)
    assert cut.startswith("File clip.mp4: ")
    assert " [...] " in cut
    assert cut.endswith("ZeroDivisionError: division by zero")


@fast
@given(st.text(max_size=30), st.integers(0, 400))
def test_a_text_of_any_kind_fits_where_texts_are_sent(piece: str, times: int) -> None:
    cut = codec.short(piece * times)
    assert len(cut.encode()) <= codec.MAX_TEXT_BYTES
    failed = m.TaskFailed(1, False, "media", cut)
    assert codec.from_worker(codec.encode(failed)) == failed


def test_half_a_surrogate_pair_of_a_file_name_can_be_sent() -> None:
    cut = codec.short("clip-\udcff.mp4: broken")
    failed = m.TaskFailed(1, False, "media", cut)
    assert codec.from_worker(codec.encode(failed)) == failed
