"""What runs inside the environment: `python -m tests.npu.inside NAME`, each in a process of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import libhelix as hx
from libhelix.accelerator import TorchAccelerator, resolved
from libhelix.batch import Taken
from libhelix.device import OnDevice
from libhelix.lease import Arena
from libhelix.wire import segment
from tests.ring import Ring, at, values
from tests.system import processes
from tests.system.recipes import Plain

BYTES = 1 << 16
STEPS = 10


def _npu() -> torch.device:
    found = resolved("auto")
    assert found is not None
    assert found.type == "npu"
    return found


def _arena() -> tuple[Arena, torch.Tensor]:
    arena = Arena(segment.create(BYTES, memfd=True), BYTES)
    return arena, torch.frombuffer(arena.memory, dtype=torch.uint8, count=BYTES).fill_(7)


def a_registered_ring_is_read_while_the_host_goes_on() -> None:
    accelerator, (arena, host) = TorchAccelerator(_npu()), _arena()
    undo = accelerator.register(arena.memory)
    assert undo is not None
    assert host.is_pinned()
    with accelerator.side():
        device = accelerator.upload(host)
    event = accelerator.event()
    assert not event.query()
    accelerator.wait(event)
    accelerator.keep(device)
    assert not event.query(), "the current stream waits, not the host"
    assert accelerator.finish(event, 10)
    assert set(device.cpu().tolist()) == {7}
    undo()
    assert not host.is_pinned()
    assert accelerator.register(arena.memory) is not None, "it can be registered again"


def a_copy_from_a_ring_that_is_not_registered_is_read_when_it_returns() -> None:
    accelerator, (_, host) = TorchAccelerator(_npu()), _arena()
    with accelerator.side():
        device = accelerator.upload(host)
    host.fill_(9)
    event = accelerator.event()
    accelerator.wait(event)
    assert set(device.cpu().tolist()) == {7}


def a_wait_that_is_limited_ends() -> None:
    accelerator, (arena, host) = TorchAccelerator(_npu()), _arena()
    assert accelerator.register(arena.memory) is not None
    with accelerator.side():
        copies = [accelerator.upload(host) for _ in range(10)]
    event, began = accelerator.event(), time.monotonic()
    assert not accelerator.finish(event, 0.01)
    assert time.monotonic() - began < 0.2
    assert accelerator.finish(event, 10)
    del copies


def batches_arrive_whole_and_the_tier_is(tier: str) -> None:
    device = OnDevice(Ring(), TorchAccelerator(_npu()), 2, {})
    seen = [got for got, _ in values(device, STEPS)]
    assert seen == [{step + 1} for step in range(STEPS)]
    assert device.tier == tier
    device.close()


def without_the_wait_for_events_the_device_reads_what_came_after() -> None:
    class Hasty(OnDevice):
        def _begin(self, taken: Taken) -> Any:
            copy = super()._begin(taken)
            self._reading[-1].holds.clear()  # the mutation: the lease goes before the event
            return copy

    seen = [got for got, _ in values(Hasty(Ring(), TorchAccelerator(_npu()), 2, {}), STEPS)]
    assert seen != [{step + 1} for step in range(STEPS)]


def without_the_stream_dependency_the_trainer_sees_what_is_not_there_yet() -> None:
    class Unordered(TorchAccelerator):
        def wait(self, event: Any) -> None:
            pass

    accelerator = Unordered(_npu())
    seen = [got for got, _ in values(OnDevice(Ring(), accelerator, 2, {}), STEPS)]
    assert seen != [{step + 1} for step in range(STEPS)]


def windows_are_what_the_device_takes() -> None:
    ring, npu = Ring(), _npu()
    device = OnDevice(ring, TorchAccelerator(npu), 2, {})
    pinned = torch.zeros(BYTES, dtype=torch.uint8, pin_memory=True)
    results, queued_s = [], []
    for step in range(STEPS):
        device.next(at(step))
        began = time.monotonic()
        results.append([pinned.to(npu, non_blocking=True) for _ in range(3)])  # 90 ms of the current stream
        queued_s.append(time.monotonic() - began)
    torch.accelerator.synchronize()
    device.next(at(STEPS))
    told = [measured for measured in ring.measured if measured is not None and measured.window_us]
    assert len(told) > 2
    assert [measured.at.step for measured in told] == list(range(len(told)))
    assert all(85_000 < measured.window_us < 300_000 for measured in told), told
    assert sorted(queued_s)[STEPS // 2] < 0.08, "the host is through before"


def a_loader_gives_the_batches_that_it_gives_on_the_host(index: str) -> None:
    how: dict[str, Any] = {"recipe": Plain(), "batching": hx.FixedBatch(2), "epochs": 2, "ring": 5}
    with hx.Loader(index, **how) as loader:
        host = [(batch.sample_keys, batch["video"].clone()) for batch in loader]
    with hx.Loader(index, device="auto", **how) as loader:
        device = [(batch.sample_keys, batch["video"]) for batch in loader]
        assert loader.device_tier == "registered"
        loaded = [processes.maps(pid) for pid in processes.of_job(os.environ["HELIX_JOB"])]
        assert len(loaded) > 2, "a daemon, a host, workers"
        assert not any("torch_npu" in maps for maps in loaded), "only the trainer loads it"
        assert "torch_npu" in processes.maps(os.getpid())
    assert {video.device.type for _, video in device} == {"npu"}
    assert [keys for keys, _ in device] == [keys for keys, _ in host]
    assert all(torch.equal(a.cpu(), b) for (_, a), (_, b) in zip(device, host))


def with_a_torch_npu_that_is_broken_there_are_host_tensors(index: str) -> None:
    with hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2), device="auto") as loader:
        assert {batch["video"].device.type for batch in loader} == {"cpu"}


def main(name: str, arguments: Sequence[str]) -> None:
    """Run one. torch_npu's own leaving needs more of a device than there is, so it is left out."""
    scene: Callable[..., None] = globals()[name]
    scene(*arguments)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
