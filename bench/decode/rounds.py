"""The sides of one workload in turn, several rounds: what each took, how long, and for how much CPU time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.ceiling import LoopSettings, measure
from bench.decode.requests import HelixSide, Take, Taken, TorchSide
from bench.order import batches
from bench.processes import busy_s
from bench.samples import Visit
from bench.side import Side
from bench.torch_loader import Sharing
from bench.workloads import Workload

SIDE_MODULE = "bench.decode.side"
HELIX, TORCH, CEILING = "helix", "torch", "ceiling"
SIDES = (HELIX, TORCH, CEILING)

_QUIET_S = 0.3
_QUIET_CPU_S = 0.02
_QUIET_LIMIT_S = 30.0


class DecodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How all workloads are measured.

    ring: batches of memory of every side: of the ring, of the bare loops together, and, one of them with the
    trainer, of `prefetch` batches in each DataLoader worker. sharing: None tries both.
    """

    cores: tuple[int, ...]
    rounds: int
    seconds: float
    ring: int
    prefetch: int
    seed: int = 0
    sharing: Sharing | None = None


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One side in one round. foreign_cores: cores that others kept busy meanwhile; of the bare loops, those
    that they were not given."""

    side: str
    samples: int
    wall_s: float
    cpu_s: float
    foreign_cores: float

    @property
    def samples_per_s(self) -> float:
        """Throughput."""
        return self.samples / self.wall_s

    @property
    def cpu_s_per_sample(self) -> float:
        """Of all processes of the side."""
        return self.cpu_s / self.samples


class WorkloadRounds(msgspec.Struct, frozen=True, kw_only=True):
    """All windows of a workload, in the order in which they were measured."""

    workload: str
    sharing: Sharing
    windows: tuple[Window, ...]


def run_workload(
    workload: Workload, index: Path, samples: int, settings: DecodeSettings, on_window: Callable[[], None]
) -> WorkloadRounds:
    """Measure a workload. Sides are started once, and are quiet while it is another's turn."""
    with ExitStack() as stack:
        helix = stack.enter_context(Side(SIDE_MODULE))
        helix.ask(
            HelixSide(
                index=str(index),
                recipe=workload.recipe,
                batch=workload.batch,
                seed=settings.seed,
                ring=settings.ring,
            ),
            Taken,
        )
        sharing, torch = _tuned_torch(workload, index, settings, stack)
        windows: list[Window] = []
        rate = _warm_up(helix, settings)
        for number in range(settings.rounds):
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                if side == CEILING:
                    visits = tuple(_visits(workload, samples, settings, count=int(rate * settings.seconds)))
                    windows.append(_ceiling_window(workload, index, visits, settings))
                else:
                    windows.append(_window(side, helix if side == HELIX else torch, settings))
                on_window()
        return WorkloadRounds(workload=workload.name, sharing=sharing, windows=tuple(windows))


def _tuned_torch(
    workload: Workload, index: Path, settings: DecodeSettings, stack: ExitStack
) -> tuple[Sharing, Side]:
    """A DataLoader side with the strategy that takes less CPU time here."""
    strategies: tuple[Sharing, ...] = ("file_descriptor", "file_system")
    if settings.sharing is not None:
        strategies = (settings.sharing,)
    sides: dict[Sharing, tuple[float, Side]] = {}
    for sharing in strategies:
        side = Side(SIDE_MODULE)
        stack.callback(side.end)
        request = TorchSide(
            index=str(index),
            recipe=workload.recipe,
            batch=workload.batch,
            seed=settings.seed,
            workers=len(settings.cores),
            prefetch=settings.prefetch,
            sharing=sharing,
        )
        side.ask(request, Taken)
        trial = _window(TORCH, side, settings) if len(strategies) > 1 else None
        sides[sharing] = trial.cpu_s_per_sample if trial else 0.0, side
    best = min(sides, key=lambda s: sides[s][0])
    for sharing, (_, side) in sides.items():
        if sharing != best:
            side.end()
    return best, sides[best][1]


def _warm_up(side: Side, settings: DecodeSettings) -> float:
    """Samples/s after all that was decoded ahead has been taken."""
    side.ask(Take(batches=settings.ring + 1, seconds=0.0), Taken)
    taken = side.ask(Take(batches=2, seconds=min(1.0, settings.seconds)), Taken)
    return taken.samples / taken.wall_s


def _window(name: str, side: Side, settings: DecodeSettings) -> Window:
    side.ask(Take(batches=settings.ring + 1, seconds=0.0), Taken)
    busy_before_s, cpu_before_s = busy_s(), side.meter.read_s()
    taken = side.ask(Take(batches=2, seconds=settings.seconds), Taken)
    cpu_s, all_s = side.meter.read_s() - cpu_before_s, busy_s() - busy_before_s
    _wait_quiet(side)
    return Window(
        side=name,
        samples=taken.samples,
        wall_s=taken.wall_s,
        cpu_s=cpu_s,
        foreign_cores=max(0.0, all_s - cpu_s) / taken.wall_s,
    )


def _wait_quiet(side: Side) -> None:
    """Until the side has decoded as far ahead as it may: the next side's turn is its own."""
    deadline_s = time.monotonic() + _QUIET_LIMIT_S
    before_s = side.meter.read_s()
    while time.monotonic() < deadline_s:
        time.sleep(_QUIET_S)
        now_s = side.meter.read_s()
        if now_s - before_s <= _QUIET_CPU_S:
            return
        before_s = now_s


def _ceiling_window(
    workload: Workload, index: Path, visits: tuple[Visit, ...], settings: DecodeSettings
) -> Window:
    loops = LoopSettings(
        index=index,
        recipe=workload.recipe,
        seed=settings.seed,
        visits=visits,
        ring_bytes=settings.ring * workload.batch_bytes,
    )
    reached = measure(loops, settings.cores, lambda _: None)
    return Window(
        side=CEILING,
        samples=reached.samples,
        wall_s=reached.wall_s,
        cpu_s=reached.cpu_s,
        foreign_cores=max(0.0, reached.cores - reached.cpu_s / reached.wall_s),
    )


def _visits(workload: Workload, samples: int, settings: DecodeSettings, count: int) -> Iterator[Visit]:
    order = batches(samples=samples, batch=workload.batch, seed=settings.seed)
    flat = itertools.chain.from_iterable(order)
    return itertools.islice(flat, max(count, len(settings.cores)))
