"""All libraries in turn, several rounds: the least CPU time of each, and whether it gives the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np

from bench.media.requests import Decode, Decoded, Use, Used, Work
from bench.media.systems import OURS
from bench.side import Side

SIDE_MODULE = "bench.media.side"
MOST_DIFFERENCE = {"video": 6.0, "image": 6.0, "sound": 0.02}
"""Mean absolute difference from ours beyond which it is another picture: levels, or of full scale."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A library and a class. `cpu_s`: of all its work, each the least of the rounds. `wrong`: parts of the
    output (frames; all of an image or sound) that are not what was asked for; ours is the reference."""

    cpu_s: float = 0.0
    wrong: int = 0
    of: int = 0
    error: str = ""


def measure(
    classes: Mapping[str, Sequence[Work]],
    systems: Sequence[str],
    *,
    rounds: int,
    scratch: Path,
    on_class: Callable[[], None],
) -> tuple[dict[str, Used], dict[str, dict[str, Outcome]]]:
    """The libraries, and what they reach by class and library."""
    with ExitStack() as stack:
        sides = {name: stack.enter_context(Side(SIDE_MODULE)) for name in systems}
        used = {name: side.ask(Use(name), Used) for name, side in sides.items()}
        there = [name for name in systems if used[name].version]
        found: dict[str, dict[str, Outcome]] = {}
        for label, works in classes.items():
            found[label] = _class(works, {name: sides[name] for name in there}, rounds, scratch)
            on_class()
        return used, found


def _class(
    works: Sequence[Work], sides: Mapping[str, Side], rounds: int, scratch: Path
) -> dict[str, Outcome]:
    saved = {name: [str(scratch / f"{i}-{j}.npy") for i in range(len(works))] for j, name in enumerate(sides)}
    errors: dict[str, str] = {}
    for name, side in sides.items():  # also warms up
        for work, path in zip(works, saved[name]):
            answer = side.ask(Decode(work, save=path), Decoded)
            if answer.error:
                errors[name] = answer.error
    least = {name: [float("inf")] * len(works) for name in sides if name not in errors}
    for number in range(rounds):
        order = list(least) if number % 2 == 0 else list(reversed(least))
        for i, work in enumerate(works):
            for name in order:
                answer = sides[name].ask(Decode(work, times=2), Decoded)
                least[name][i] = min(least[name][i], answer.cpu_s)
    outcomes = {name: Outcome(error=text) for name, text in errors.items()}
    for name, times in least.items():
        wrong = of = 0
        for work, path, ours in zip(works, saved[name], saved[OURS]):
            a, b = _wrong(work, path, ours)
            wrong, of = wrong + a, of + b
        outcomes[name] = Outcome(cpu_s=sum(times), wrong=wrong, of=of)
    for paths in saved.values():
        for path in paths:
            Path(path).unlink(missing_ok=True)
    return outcomes


def _wrong(work: Work, path: str, reference: str) -> tuple[int, int]:
    """How many parts differ from the reference, and how many there are."""
    ours, theirs = np.load(reference), np.load(path)
    parts = len(ours) if work.medium == "video" else 1
    if theirs.shape != ours.shape:
        return parts, parts
    pairs = zip(ours, theirs) if work.medium == "video" else [(ours, theirs)]
    most = MOST_DIFFERENCE[work.medium]
    return sum(float(np.abs(a.astype(np.float32) - b).mean()) > most for a, b in pairs), parts
