"""Probing members on all cores: what is known is not asked, what answers come is written down at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import msgspec

from libhelix.errors import IndexProblem
from libhelix.index import crew
from libhelix.index.formats import Member
from libhelix.index.journal import Journal
from libhelix.index.known import Known, Place
from libhelix.index.scan import Answer

Progress = Callable[[int, int], None]

_MEMBERS_PER_PROCESS = 16
"""A scanning process takes 0.3 s to start: it should have something to do."""
_MOST_PER_QUESTION = 64
_QUESTIONS_PER_PROCESS = 8
"""At least, so that no process is idle for long at the end."""
_SCAN = "from libhelix.index.scan import main; main()"


class Probed(msgspec.Struct):
    """Answers by place, and how many of them were known."""

    answers: dict[Place, Answer]
    known: int


def probe_all(
    members: Sequence[Member], known: Known, journal: Journal, jobs: int | None, progress: Progress | None
) -> Probed:
    """Answers for all members that are to be probed, each place once. Raises IndexProblem."""
    found: dict[Place, Answer] = {}
    asked: dict[Place, Member] = {}
    for member in members:
        if member.text or member.place in found or member.place in asked:
            continue
        answer = known.answer(member)
        if answer is None:
            asked[member.place] = member
        else:
            found[member.place] = answer
    before, total = len(found), len(found) + len(asked)
    if before and progress is not None:
        progress(before, total)
    for some, answers in _ask(list(asked.values()), jobs):
        for member, answer in zip(some, answers, strict=True):
            found[member.place] = answer
            if progress is not None:
                progress(len(found), total)
        # What ended a process may have been the machine's fault, and is tried again the next time.
        if not answers[0].died:
            journal.add(some, answers)
    return Probed(found, before)


def _ask(members: Sequence[Member], jobs: int | None) -> Iterator[tuple[Sequence[Member], Sequence[Answer]]]:
    processes = jobs or min(crew.usable_cores(), -(-len(members) // _MEMBERS_PER_PROCESS))
    step = max(1, min(_MOST_PER_QUESTION, len(members) // max(1, processes * _QUESTIONS_PER_PROCESS)))
    alone: list[Sequence[Member]] = []
    for some, answers in _asked([members[i : i + step] for i in range(0, len(members), step)], processes):
        if isinstance(answers, crew.Died) and len(some) > 1:  # which of them kills is found out one by one
            alone += [[member] for member in some]
        else:
            yield some, _told(some[0], answers)
    for some, answers in _asked(alone, processes):
        yield some, _told(some[0], answers)


def _asked(
    questions: Sequence[Sequence[Member]], processes: int
) -> Iterator[tuple[Sequence[Member], list[Answer] | crew.Died]]:
    asking = crew.ask_all(
        [_ENCODER.encode(question) for question in questions],
        code=_SCAN,
        module="libhelix.index.scan",
        processes=processes,
        failed=_not_started,
    )
    with closing(asking):
        for at, answer in asking:
            yield (
                questions[at],
                answer if isinstance(answer, crew.Died) else _DECODER.decode(answer),
            )


def _told(member: Member, answers: list[Answer] | crew.Died) -> list[Answer]:
    if not isinstance(answers, crew.Died):
        return answers
    how = f"{member.path}: reading it ended the scanning process ({answers.how}); leave it out"
    return [Answer(refused=how, died=True)]


def _not_started(text: str) -> IndexProblem:
    return IndexProblem(f"the scanning process does not start {text}")


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(list[Answer])
