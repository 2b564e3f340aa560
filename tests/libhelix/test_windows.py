"""What a device took for a batch is known once it is through, and nobody waits for it."""

from __future__ import annotations

from libhelix.device import OnDevice
from libhelix.windows import DeviceWindows
from libhelix.wire.messages import Measured
from libhelix.wire.settings import Position
from tests.late import Late
from tests.ring import Ring, at


def _run(late: Late) -> None:
    while late.queue:
        late.step()


def test_windows_are_told_of_the_batch_that_they_are_of_when_the_device_is_through() -> None:
    late = Late(marks=True)
    windows = DeviceWindows(late)
    for step in range(3):
        windows.asked()
        windows.taken(Position(0, step, 0))
        late.compute(0.1 * (step + 1))
    windows.asked()
    unknown = windows.measured()
    assert unknown is not None
    assert unknown.window_us == 0
    assert len(late.queue) == 9, "nothing waited"
    _run(late)
    told = [windows.measured() for _ in range(4)]
    assert [t and (t.at.step, round(t.window_us, -3), t.computing) for t in told] == [
        (0, 100_000, False),
        (1, 200_000, False),
        (2, 300_000, False),
        (0, 0, False),
    ]


def test_what_is_said_to_be_computing_is_all_that_counts() -> None:
    late = Late(marks=True)
    windows = DeviceWindows(late)
    windows.taken(Position(0, 0, 0))
    for _ in range(2):
        late.compute(1.0)
        with windows.computing(), windows.computing():
            late.compute(0.25)
    windows.asked()
    _run(late)
    told = windows.measured()
    assert told is not None
    assert (round(told.window_us, -3), told.computing) == (500_000, True)


def test_what_lies_between_seeks_is_no_window() -> None:
    late = Late(marks=True)
    windows = DeviceWindows(late)
    windows.taken(Position(0, 0, 0))
    late.compute(1.0)
    windows.restarted()
    windows.asked()
    _run(late)
    assert windows.measured() == Measured(Position(0, 0, 0), 0)


def test_a_device_that_has_no_marks_measures_nothing() -> None:
    windows = DeviceWindows(Late(marks=False))
    windows.taken(Position(0, 0, 0))
    windows.asked()
    assert windows.measured() is None


def test_a_device_source_tells_of_the_batches_before() -> None:
    ring, late = Ring(), Late(marks=True)
    device = OnDevice(ring, late, 2, {})
    for step in range(10):
        device.next(at(step))
        late.compute(0.5)
    told = [m.at.step for m in ring.measured if m is not None and m.window_us]
    assert told == sorted(set(told))
    assert len(told) > 4
    assert {round(m.window_us, -3) for m in ring.measured if m is not None and m.window_us} == {500_000}
