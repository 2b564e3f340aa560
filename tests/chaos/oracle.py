"""What ranks wrote, against what inline decoding gives them: nothing lost, doubled or changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.trainer import line_of, loader_of

Line = dict[str, Any]


class Life(NamedTuple):
    """What one process of a rank was given, after the position that its state stood at; None: from the
    beginning. `began` is when it was ready to ask."""

    after: list[int] | None
    began: float
    lines: list[Line]


class Verdict(NamedTuple):
    """Batches and incarnations of a rank, samples that were masked, seconds of the longest wait for a batch,
    and what is wrong."""

    batches: int
    incarnations: int
    masked: int
    longest_s: float
    wrong: list[str]


def incarnations(log: Path) -> list[Life]:
    """The lives of a rank; a last line that a kill cut short is none."""
    found: list[Life] = []
    for text in log.read_text().splitlines() if log.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if "begins" in line:
            found.append(Life(line["after"], line["begins"], []))
        elif found:
            found[-1].lines.append(line)
    return found


def expected(index: str, rank: int, ranks: int) -> Iterator[Line]:
    """What a rank is to be given, from the beginning and without an end."""
    with loader_of(index, rank, ranks, backend="inline") as loader:
        for batch in loader:
            yield line_of(batch)


def judge(lives: Sequence[Life], right: Iterator[Line]) -> Verdict:
    """Every life is given just what follows the state that it resumed from, without a gap, and its samples
    are the right ones."""
    known: list[Line] = []
    places: dict[tuple[int, ...], int] = {}

    def reach(at: tuple[int, ...]) -> int | None:
        while at not in places and (not known or tuple(known[-1]["at"]) < at):
            known.append(next(right))
            places[tuple(known[-1]["at"])] = len(known) - 1
        return places.get(at)

    wrong: list[str] = []
    batches = masked = 0
    longest_s = 0.0
    for life in lives:
        before = reach(tuple(life.after)) if life.after is not None else -1
        at_s = life.began
        for line in life.lines:
            place = reach(tuple(line["at"]))
            if place is None or before is None:
                wrong.append(f"a batch at {line['at']} after {life.after}, where there is none")
                continue
            if place != before + 1:
                wrong.append(f"{line['at']} follows {known[before]['at'] if before >= 0 else 'nothing'}")
            longest_s = max(longest_s, line["t"] - at_s)
            masked += _compare(line, known[place], wrong)
            before, at_s = place, line["t"]
            batches += 1
    return Verdict(batches, len(lives), masked, longest_s, wrong)


def _compare(line: Line, right: Line, wrong: list[str]) -> int:
    """How many samples are masked; what differs otherwise is wrong."""
    masked = 0
    ours, theirs = line["samples"], right["samples"]
    if [s[0] for s in ours] != [s[0] for s in theirs]:
        wrong.append(f"{line['at']}: samples {[s[0] for s in ours]}, not {[s[0] for s in theirs]}")
        return 0
    for (sample, valid, checksum), (_, _, of_it) in zip(ours, theirs):
        masked += not valid
        if valid and checksum != of_it:
            wrong.append(f"{line['at']}: sample {sample} has other pixels")
    return masked
