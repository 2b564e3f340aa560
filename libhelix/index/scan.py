"""A process that probes files: a path per line in, an answer per line out.

A decoder that crashes on a file takes only this process with it.
"""

from __future__ import annotations

import sys

import msgspec

from libhelix.errors import HelixError
from libhelix.index.crew import answers_only
from libhelix.recipe import Item


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The items a file is, or why it is none."""

    items: tuple[Item, ...] = ()
    refused: str = ""


def main() -> None:
    """Answer until the input ends."""
    from libhelix.media import probe_items

    answers = answers_only()
    encoder = msgspec.json.Encoder()
    for line in sys.stdin.buffer:
        path = msgspec.json.decode(line, type=str)
        try:
            answer = Answer(items=probe_items(path))
        except HelixError as e:
            answer = Answer(refused=str(e))
        except Exception as e:  # noqa: BLE001 - an unforeseen fault concerns this file, not the thousands after
            answer = Answer(refused=f"{path}: probing failed with {type(e).__name__}: {e}")
        answers.write(encoder.encode(answer) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
