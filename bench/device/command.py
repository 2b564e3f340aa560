"""`python -m bench device`: bandwidth of the tiers, overlap with computing, and whether data arrive whole."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator

import click
import torch

from libhelix.accelerator import Event, TorchAccelerator, resolved
from libhelix.lease import Arena
from libhelix.wire import segment

SLOT = 64 << 20
SLOTS = 4
ROUNDS = 16
KERNELS = 500
CHECKED = 200
"""Batches that are compared with what was sent."""
Through = Callable[[torch.Tensor], torch.Tensor | None]
"""What is uploaded of a batch in the ring; None where memory cannot be pinned."""


@click.command()
def device() -> None:
    """Measure copies to the accelerator that torch sees; without one, say so."""
    found = resolved("auto")
    if found is None:
        click.echo(f"torch {torch.__version__} sees no accelerator here: nothing was measured")
        return
    accelerator = TorchAccelerator(found)
    arena = Arena(segment.create(SLOTS * SLOT, memfd=True), SLOTS * SLOT)
    slots = [
        torch.frombuffer(arena.memory, dtype=torch.uint8, count=SLOT, offset=i * SLOT) for i in range(SLOTS)
    ]
    for i, slot in enumerate(slots):
        slot.fill_(i + 1)
    click.echo(f"{found}, torch {torch.__version__}, batches of {SLOT >> 20} MiB")
    plain = _seconds(accelerator, slots, _itself)
    click.echo(f"plain       {SLOT / plain / 1e9:6.1f} GB/s")
    staged = _seconds(accelerator, slots, accelerator.stage)
    click.echo(f"staged      {SLOT / staged / 1e9:6.1f} GB/s")
    undo = accelerator.register(arena.memory)
    through: Through = accelerator.stage
    if undo is None:
        click.echo("registered  not possible here: the driver refused, or torch does not see it as pinned")
    else:
        through = _itself
        click.echo(f"registered  {SLOT / _seconds(accelerator, slots, through) / 1e9:6.1f} GB/s")
    _overlap(accelerator, found, slots, through)
    _launching(found)
    wrong = _wrong(accelerator, found, slots, through)
    click.echo(
        f"correctness {CHECKED - wrong} of {CHECKED} batches whole, beside computing, extents rewritten "
        "after their events"
    )
    torch.accelerator.synchronize()
    if undo is not None:
        undo()
    if wrong:
        raise click.ClickException("batches arrived damaged; please report this with the lines above")


def _itself(host: torch.Tensor) -> torch.Tensor:
    return host


def _or_itself(through: Through, host: torch.Tensor) -> torch.Tensor:
    found = through(host)
    return host if found is None else found


def _seconds(accelerator: TorchAccelerator, slots: list[torch.Tensor], through: Through) -> float:
    """Of one batch. The first round is not counted."""
    for timed in (False, True):
        began = time.perf_counter()
        for i in range(ROUNDS):
            with accelerator.side():
                host = through(slots[i % SLOTS])
                if host is not None:
                    accelerator.upload(host)
        accelerator.finish(accelerator.event(), 60)
        if timed:
            return (time.perf_counter() - began) / ROUNDS
    raise AssertionError


def _overlap(
    accelerator: TorchAccelerator, found: torch.device, slots: list[torch.Tensor], through: Through
) -> None:
    """Computing alone, and with copies beside it."""
    matrix = torch.randn(4096, 4096, device=found)
    took = []
    for copies in (False, False, True):  # the first warms up
        torch.accelerator.synchronize()
        began = time.perf_counter()
        for i in range(ROUNDS):
            if copies:
                with accelerator.side():
                    accelerator.upload(_or_itself(through, slots[i % SLOTS]))
            for _ in range(4):
                matrix @ matrix
        torch.accelerator.synchronize()
        took.append((time.perf_counter() - began) / ROUNDS * 1e3)
    click.echo(f"overlap     a step computes {took[1]:.2f} ms alone, {took[2]:.2f} ms beside a copy")


def _launching(found: torch.device) -> None:
    """Steps of small kernels, which a core has to launch, alone and while every core here is busy."""
    small = torch.zeros(1024, device=found)
    took = []
    for busy in (False, False, True):  # the first warms up
        with _busy(os.sched_getaffinity(0) if busy else set()):
            torch.accelerator.synchronize()
            began = time.perf_counter()
            for _ in range(ROUNDS * KERNELS):
                small.add_(1)
            torch.accelerator.synchronize()
            took.append((time.perf_counter() - began) / ROUNDS * 1e3)
    click.echo(
        f"launching   a step of {KERNELS} small kernels takes {took[1]:.2f} ms alone, {took[2]:.2f} ms with "
        "a worker busy on every core (HELIX_RESERVE keeps some free)"
    )


@contextlib.contextmanager
def _busy(cores: set[int]) -> Iterator[None]:
    """On each core a process that computes, and gives way as workers do."""
    code = "import os, sys; os.nice(19); os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(core)]) for core in cores]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _wrong(
    accelerator: TorchAccelerator, found: torch.device, slots: list[torch.Tensor], through: Through
) -> int:
    """How many batches differ from what was sent: all but one of the extents are on their way while kernels
    run, and each is rewritten once its event is passed. They are compared on the device, and asked for at the
    end."""
    matrix = torch.randn(1024, 1024, device=found)
    flying: deque[tuple[torch.Tensor, Event]] = deque()
    whole: list[torch.Tensor] = []
    for i in range(CHECKED):
        if len(flying) == SLOTS - 1:
            slot, event = flying.popleft()
            accelerator.finish(event, 60)
            slot.fill_(0)
        slot, value = slots[i % SLOTS], i % 251 + 1
        slot.fill_(value)
        with accelerator.side():
            tensor = accelerator.upload(_or_itself(through, slot))
        event = accelerator.event()
        flying.append((slot, event))
        matrix @ matrix
        accelerator.wait(event)
        accelerator.keep(tensor)
        whole.append((tensor == value).all())
    return CHECKED - int(torch.stack(whole).sum())
