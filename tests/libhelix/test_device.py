"""The device gets what the decoder wrote: an extent is not reused before the device has read it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from libhelix.accelerator import TorchAccelerator, resolved
from libhelix.batch import Taken
from libhelix.device import Affine, Normalize, OnDevice
from libhelix.errors import Stalled, UsageError
from tests.late import Late
from tests.ring import SLOTS, Ring, at, values


@pytest.mark.parametrize("prefetch", [0, 1, 2, 8])
@pytest.mark.parametrize("how", [{}, {"registers": False}, {"registers": False, "pins": False}])
def test_every_batch_arrives_whole_and_in_order(prefetch: int, how: dict[str, bool]) -> None:
    ring = Ring()
    device = OnDevice(ring, Late(**how), prefetch, {})
    kept = list(values(device, 20))
    assert [seen for seen, _ in kept] == [{step + 1} for step in range(20)]
    # What a trainer keeps is its own.
    assert [set(batch["x"].tolist()) for _, batch in kept] == [{step + 1} for step in range(20)]
    assert ring.handed == list(range(20))


def test_without_the_wait_for_events_the_device_reads_what_came_after() -> None:
    class Hasty(OnDevice):
        def _begin(self, taken: Taken):  # type: ignore[no-untyped-def]
            copy = super()._begin(taken)
            self._reading[-1].holds.clear()  # the mutation: the lease goes before the event
            return copy

    seen = [values for values, _ in values(Hasty(Ring(), Late(), 2, {}), 8)]
    assert seen != [{step + 1} for step in range(8)]


def test_leases_are_held_until_the_event_and_let_go_at_the_next_batch() -> None:
    ring, late = Ring(), Late()
    device = OnDevice(ring, late, 2, {})
    device.next(at(0))
    assert len(ring.free) == 1  # one is read, two are on their way
    assert len(late.queue) == 4
    while late.queue:
        late.step()
    assert len(ring.free) == 1
    device.next(at(1))
    assert len(ring.free) == 3  # all three came back, and one was looked ahead for
    device.close()
    assert ring.closed_with == SLOTS


def test_no_more_is_copied_ahead_than_asked_for() -> None:
    late = Late()
    device = OnDevice(Ring(), late, 1, {})
    device.next(at(0))
    assert len(late.queue) == 2  # a copy and its event


def test_close_waits_for_copies_before_memory_is_unregistered() -> None:
    ring, late = Ring(), Late()
    device = OnDevice(ring, late, 2, {})
    device.next(at(0))
    assert (device.tier, late.registered, late.unregistered) == ("registered", 1, 0)
    device.close()
    assert (late.unregistered, ring.closed_with) == (1, SLOTS)


def test_a_loader_that_is_forgotten_waits_for_its_copies_too() -> None:
    late = Late()
    device = OnDevice(Ring(), late, 2, {})
    device.next(at(0))
    assert late.queue
    del device
    gc.collect()
    assert (len(late.queue), late.unregistered) == (0, 1)


def test_a_transform_of_a_field_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"'y'.*'x'"):
        OnDevice(Ring(), Late(), 0, {"y": lambda x: x}).next(at(0))


def _failing_at(*calls: int) -> Callable[[torch.Tensor], torch.Tensor]:
    count = iter(range(1000))

    def transform(x: torch.Tensor) -> torch.Tensor:
        if next(count) in calls:
            raise ValueError("no memory on the device")
        return x

    return transform


def test_an_error_on_the_way_frees_nothing_that_the_device_reads_and_costs_no_batch() -> None:
    ring, late = Ring(), Late()
    device = OnDevice(ring, late, 0, {"x": _failing_at(1)})
    device.next(at(0))
    with pytest.raises(ValueError, match="no memory"):
        device.next(at(1))
    assert len(late.queue) == 1  # a copy is queued, and no event
    assert len(ring.free) == SLOTS - 1
    assert set(device.next(at(1)).batch["x"].tolist()) == {2}
    assert set(device.next(at(2)).batch["x"].tolist()) == {3}


def test_a_loader_that_is_forgotten_after_an_error_waits_for_its_copies_too() -> None:
    late = Late()
    device = OnDevice(Ring(), late, 0, {"x": _failing_at(0)})
    with pytest.raises(ValueError, match="no memory"):
        device.next(at(0))
    assert late.queue
    del device
    gc.collect()
    assert (len(late.queue), late.unregistered) == (0, 1)


def test_a_copy_ahead_that_fails_is_tried_again_in_its_turn() -> None:
    device = OnDevice(Ring(), Late(), 2, {"x": _failing_at(1)})
    for step in range(4):
        assert set(device.next(at(step)).batch["x"].tolist()) == {step + 1}
    device = OnDevice(Ring(), Late(), 2, {"x": _failing_at(1, 2)})
    device.next(at(0))
    with pytest.raises(ValueError, match="no memory"):
        device.next(at(1))
    assert set(device.next(at(1)).batch["x"].tolist()) == {2}


def test_a_device_that_hangs_stops_neither_close_nor_next_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr("libhelix.device._KEPT", kept)
    ring, late = Ring(), Late()
    device = OnDevice(ring, late, 1, {}, timeout_s=0.1)
    late.hangs = True
    device.next(at(0))
    device.next(at(1))
    with pytest.raises(Stalled, match="has not finished a copy"):
        device.next(at(2))
    with pytest.warns(UserWarning, match="is kept"):
        device.close()
    assert ring.closed_with < SLOTS
    assert late.unregistered == 0
    assert len(kept) == 1


def test_what_is_to_be_said_of_batches_that_were_polled_is_said_in_their_turn() -> None:
    ring = Ring()
    device = OnDevice(ring, Late(), 2, {})
    for step in range(4):
        device.next(at(step))
        assert ring.told == list(range(1, step + 1))


def test_what_was_copied_ahead_is_dropped_by_a_seek() -> None:
    device = OnDevice(Ring(), Late(), 2, {})
    device.next(at(0))
    device.seek(at(7))
    assert set(device.next(at(7)).batch["x"].tolist()) == {8}


@pytest.mark.parametrize(
    ("how", "tier"),
    [({}, "registered"), ({"registers": False}, "staged"), ({"registers": False, "pins": False}, "plain")],
)
def test_the_tier_that_runs_is_told(how: dict[str, bool], tier: str) -> None:
    ring = Ring()
    device = OnDevice(ring, Late(**how), 0, {})
    assert device.tier is None
    device.next(at(0))
    assert [device.tier, *ring.tiers] == [tier, tier]


def test_normalize_is_what_the_formula_says() -> None:
    x = torch.arange(2 * 3 * 4 * 5 * 3, dtype=torch.int64).remainder(256).to(torch.uint8).view(2, 3, 4, 5, 3)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    wanted = ((x.double() / 255 - torch.tensor(mean).double()) / torch.tensor(std).double()).movedim(-1, -3)
    got = Normalize(mean, std, layout="THWC")(x)
    assert got.is_contiguous()
    torch.testing.assert_close(got, wanted.float(), rtol=1e-5, atol=1e-5)
    half = Normalize(mean, std, torch.bfloat16)(x.movedim(-1, -3))
    torch.testing.assert_close(half, wanted.bfloat16(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("shape", [(4, 1176), (3, 1, 5, 5), (5,)])
def test_normalize_refuses_what_has_not_its_channels(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"3 means.*Affine"):
        Normalize((0.5,) * 3, (0.2,) * 3)(torch.zeros(shape, dtype=torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_affine_makes_the_models_floats_of_patches(dtype: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(32, 8)
    scale, shift = torch.linspace(0.01, 0.02, 8), torch.linspace(-2, 1, 8)
    affine = Affine(scale.tolist(), shift.tolist(), dtype)
    for _ in range(2):
        assert torch.equal(affine(x), (x.float() * scale + shift).to(dtype))
    assert torch.equal(Affine([0.5], [1.0])(x), x.float() * 0.5 + 1)
    with pytest.raises(UsageError, match="8 scales"):
        affine(x.view(16, 16))


def test_what_the_current_stream_uses_is_kept_from_the_side_streams_allocator() -> None:
    late = Late()
    device = OnDevice(Ring(), late, 2, {"x": lambda x: [x, x + 1]})
    for step in range(3):
        device.next(at(step))
    assert late.kept == 6  # both tensors of three batches


def test_a_refused_registration_leaves_no_error_for_the_next_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[torch.device] = []

    class Cuda(TorchAccelerator):
        def __init__(self) -> None:
            self._device, self._stream = torch.device("cuda"), nullcontext()  # type: ignore[assignment]

        def _clear_error(self) -> None:
            cleared.append(self._device)

    monkeypatch.setattr("libhelix.accelerator._host_registry", lambda _: (lambda *_: 1, lambda _: 0, 0))
    assert Cuda().register(memoryview(bytearray(4096))) is None
    assert cleared == [torch.device("cuda")]


def test_a_device_that_is_not_there_is_an_error_and_auto_finds_none() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator here")
    assert resolved("auto") is None
    assert resolved("cpu") is None
    for name in ("cuda", "nonsense"):
        with pytest.raises(UsageError, match="device="):
            resolved(name)
