"""`python -m bench device`: bandwidth of the tiers, overlap with computing, and whether data arrive whole."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import click
import torch

from libhelix.accelerator import TorchAccelerator, resolved
from libhelix.lease import Arena
from libhelix.wire import segment

SLOT = 64 << 20
SLOTS = 4
ROUNDS = 16
KERNELS = 500


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
    plain = _seconds(accelerator, slots, lambda host: host)
    click.echo(f"plain       {SLOT / plain / 1e9:6.1f} GB/s")
    staged = _seconds(accelerator, slots, accelerator.stage)
    click.echo(f"staged      {SLOT / staged / 1e9:6.1f} GB/s")
    undo = accelerator.register(arena.memory)
    if undo is None:
        click.echo("registered  not possible here: the driver refused, or torch does not see it as pinned")
        return
    registered = _seconds(accelerator, slots, lambda host: host)
    click.echo(f"registered  {SLOT / registered / 1e9:6.1f} GB/s")
    _overlap(accelerator, found, slots)
    _launching(found)
    wrong = _wrong(accelerator, slots)
    click.echo(
        f"correctness {ROUNDS - wrong} of {ROUNDS} batches whole, extents rewritten after their events"
    )
    torch.accelerator.synchronize()
    undo()
    if wrong:
        raise click.ClickException("batches arrived damaged; please report this with the lines above")


def _seconds(
    accelerator: TorchAccelerator, slots: list[torch.Tensor], through: Callable[..., torch.Tensor | None]
) -> float:
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


def _overlap(accelerator: TorchAccelerator, found: torch.device, slots: list[torch.Tensor]) -> None:
    """Computing alone, and with copies beside it."""
    matrix = torch.randn(4096, 4096, device=found)
    took = []
    for copies in (False, False, True):  # the first warms up
        torch.accelerator.synchronize()
        began = time.perf_counter()
        for i in range(ROUNDS):
            if copies:
                with accelerator.side():
                    accelerator.upload(slots[i % SLOTS])
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


def _wrong(accelerator: TorchAccelerator, slots: list[torch.Tensor]) -> int:
    """How many batches differ from what was sent, when extents are rewritten once their event is done."""
    wrong = 0
    for i in range(ROUNDS):
        slot, value = slots[i % SLOTS], i % 251 + 1
        slot.fill_(value)
        with accelerator.side():
            tensor = accelerator.upload(slot)
        event = accelerator.event()
        accelerator.wait(event)
        accelerator.keep(tensor)
        while not event.query():
            time.sleep(0)
        slot.fill_(0)
        wrong += not bool((tensor == value).all())
    return wrong
