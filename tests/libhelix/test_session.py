"""What a loader knows of its attachment, message by message."""

from __future__ import annotations

import pytest

from libhelix.errors import Oversize, ProtocolError, RingFull
from libhelix.session import Attachment, named, naming
from libhelix.wire import messages as m
from libhelix.wire.settings import Position

SCHEMA = (m.FieldSpec("x", "uint8", "stack", 1),)


def _at(step: int) -> Position:
    return Position(0, step, 0)


def _ready(step: int, *, offset: int = 0, nbytes: int = 100, seek: int = 0) -> m.Ready:
    return m.Ready(
        7, _at(step), step + 1, offset, nbytes, (), (offset, 0), 0, 0, {}, {}, 0, _at(step + 1), 0, seek
    )


def _serving(arena_bytes: int = 300, max_bytes: int = 100) -> Attachment:
    attachment = Attachment(7)
    assert attachment.received(m.Attached(7, arena_bytes, max_bytes, SCHEMA)) is None
    return attachment


def test_being_attached_brings_the_ring_and_the_schema() -> None:
    attachment = _serving()
    assert attachment.state == "serving"
    assert (attachment.arena_bytes, attachment.max_bytes, attachment.schema) == (300, 100, SCHEMA)


def test_being_attached_twice_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="attached twice"):
        _serving().received(m.Attached(7, 300, 100, SCHEMA))


def test_batches_are_taken_in_the_order_in_which_they_are_due() -> None:
    attachment = _serving()
    assert attachment.take(_at(0)) is None
    for step in range(3):
        assert attachment.received(_ready(step, offset=100 * step)) is None
    assert [attachment.take(_at(step)) for step in range(3)] == [
        _ready(step, offset=100 * step) for step in range(3)
    ]
    assert attachment.take(_at(3)) is None


def test_a_batch_out_of_order_is_a_protocol_error() -> None:
    attachment = _serving()
    attachment.received(_ready(1))
    with pytest.raises(ProtocolError, match="came where"):
        attachment.take(_at(0))


@pytest.mark.parametrize(("offset", "nbytes"), [(300, 1), (400, 100), (0, 301)])
def test_a_batch_outside_the_ring_is_a_protocol_error(offset: int, nbytes: int) -> None:
    with pytest.raises(ProtocolError, match=f"a batch at {offset}\\+{nbytes} of 300"):
        _serving().received(_ready(0, offset=offset, nbytes=nbytes))


@pytest.mark.parametrize(("offset", "nbytes"), [(200, 100), (250, 100), (0, 300), (299, 300)])
def test_a_batch_may_run_over_the_end_of_the_ring(offset: int, nbytes: int) -> None:
    attachment = _serving()
    attachment.received(_ready(0, offset=offset, nbytes=nbytes))
    assert attachment.take(_at(0)) is not None


def test_a_batch_of_before_a_seek_is_given_back_at_once() -> None:
    attachment = _serving()
    attachment.seek = 2
    assert attachment.received(_ready(0, seek=1)) == m.Release(7, 1)
    assert attachment.take(_at(0)) is None
    assert attachment.received(_ready(0, seek=2)) is None
    assert attachment.take(_at(0)) is not None


def test_batches_that_came_and_are_not_wanted_any_more_are_given_back() -> None:
    attachment = _serving()
    for step in range(3):
        attachment.received(_ready(step))
    attachment.take(_at(0))
    assert attachment.forget_ready() == [m.Release(7, 2), m.Release(7, 3)]
    assert attachment.forget_ready() == []
    assert attachment.take(_at(1)) is None


def test_a_failure_at_once_goes_before_batches_that_are_there() -> None:
    attachment = _serving()
    attachment.received(_ready(0))
    attachment.received(m.Failed(7, "oversize", "too large"))
    assert attachment.state == "failed"
    with pytest.raises(Oversize, match="too large"):
        attachment.take(_at(0))
    assert attachment.received(_ready(1)) == m.Release(7, 2)


def test_a_failure_at_a_position_is_raised_there_and_not_before() -> None:
    attachment = _serving()
    attachment.received(m.Failed(7, "ring-full", "full", _at(2)))
    for step in range(2):
        attachment.received(_ready(step))
        assert attachment.take(_at(step)) is not None
    for _ in range(2):  # however often it is asked
        with pytest.raises(RingFull, match="full"):
            attachment.take(_at(2))
    with pytest.raises(RingFull):
        attachment.take(_at(3))


def test_warnings_wait_until_they_are_said() -> None:
    attachment = _serving()
    attachment.received(m.Warn(7, "one"))
    attachment.received(m.Warn(7, "two"))
    assert list(attachment.warnings) == ["one", "two"]


def test_a_sample_is_named_where_only_its_number_is_known_and_only_once() -> None:
    attachment = _serving()
    attachment.name_of = ["a.mp4", "b.mp4"].__getitem__
    attachment.received(m.Warn(7, "a sample is masked: two workers died", 1))
    attachment.received(m.Warn(7, "a sample is masked: a.mp4 is no video", 0))
    assert list(attachment.warnings) == [
        "a sample is masked: two workers died (b.mp4)",
        "a sample is masked: a.mp4 is no video",
    ]
    attachment.received(m.Failed(7, "oversize", "too large", None, 1))
    assert str(attachment.error()) == "too large (b.mp4)"


def test_a_warning_of_an_epoch_waits_until_it_is_reached() -> None:
    attachment = _serving()
    attachment.received(m.Warn(7, "now"))
    attachment.received(m.Warn(7, "then", None, 2))
    assert list(attachment.warnings) == ["now"]
    attachment.reached(1)
    assert list(attachment.warnings) == ["now"]
    attachment.reached(2)
    attachment.received(m.Warn(7, "too", None, 2))
    assert list(attachment.warnings) == ["now", "then", "too"]


def test_a_name_stands_beside_the_number_that_it_is_of() -> None:
    names = {1: "b.mp4", 17: "q.mp4"}
    text = "2 of 17 samples exceed it, sample 17, has 9; sample 1 too"
    assert named(text, 17, names.__getitem__) == text.replace("sample 17,", "sample 17 (q.mp4),")
    assert named(text, 1, names.__getitem__) == f"{text.removesuffix(' too')} (b.mp4) too"
    error = naming(Oversize("sample 1 is too large", 1), names.__getitem__)
    assert (str(error), error.sample) == ("sample 1 (b.mp4) is too large", 1)
    assert str(naming(Oversize("too large"), names.__getitem__)) == "too large"


# ---- what may be held --------------------------------------------------------------------------------------


def test_a_batch_may_be_held_while_a_gap_takes_the_largest() -> None:
    attachment = _serving(arena_bytes=300, max_bytes=100)
    for generation, offset in enumerate((0, 100), 1):
        ready = _ready(generation - 1, offset=offset)
        assert attachment.may_hold(ready)
        attachment.held[generation] = (offset, 100)
    assert not attachment.may_hold(_ready(2, offset=200))
    del attachment.held[1]
    assert attachment.may_hold(_ready(2, offset=200))


def test_scattered_gaps_that_are_too_small_one_by_one_do_not_count() -> None:
    attachment = _serving(arena_bytes=300, max_bytes=100)
    attachment.held[1] = (60, 60)
    assert not attachment.may_hold(_ready(1, offset=210, nbytes=60))  # gaps of 90, and of 90 over the end


def test_a_gap_may_run_over_the_end_of_the_ring() -> None:
    attachment = _serving(arena_bytes=300, max_bytes=100)
    attachment.held[1] = (60, 60)
    assert attachment.may_hold(_ready(1, offset=190, nbytes=60))  # 70, and 50 + 60 over the end
    assert not attachment.may_hold(_ready(1, offset=210, nbytes=110))  # this one itself runs over the end


def test_a_batch_as_large_as_the_ring_must_be_copied_out() -> None:
    assert not _serving(arena_bytes=300, max_bytes=100).may_hold(_ready(0, offset=100, nbytes=300))
