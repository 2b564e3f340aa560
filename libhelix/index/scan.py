"""A process that probes: a list of members per line in, a list of answers per line out.

A decoder that crashes on a file takes only this process with it.
"""

from __future__ import annotations

import sys

import msgspec

from libhelix.errors import HelixError
from libhelix.index.crew import answers_only
from libhelix.index.formats import Member
from libhelix.recipe import Item


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The items a member is, by the names that its content gives them, or why it is none. `died`: reading it
    ended a process."""

    items: tuple[Item, ...] = ()
    refused: str = ""
    died: bool = False


def probe(member: Member) -> Answer:
    """The answer for one member; what is unforeseen concerns this one, not the thousands after."""
    try:
        return Answer(_probed(member))
    except HelixError as e:
        return Answer(refused=str(e))
    except Exception as e:  # noqa: BLE001
        return Answer(refused=f"{member.path}: probing failed with {type(e).__name__}: {e}")


def _probed(member: Member) -> tuple[Item, ...]:
    # The one place where the index meets the media: a whole file by its path, else a range of one.
    from libhelix import media
    from libhelix.media.ranges import probe_range

    if member.whole:
        return media.probe_items(member.path)
    return probe_range(member.path, member.offset, member.size, member.mtime_ns)


def main() -> None:
    """Answer until the input ends."""
    answers = answers_only()
    encoder = msgspec.json.Encoder()
    decoder = msgspec.json.Decoder(list[Member])
    for line in sys.stdin.buffer:
        answers.write(encoder.encode([probe(member) for member in decoder.decode(line)]) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
