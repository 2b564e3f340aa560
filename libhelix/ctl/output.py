"""What commands print, and files that they write: whole or not at all."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from libhelix.errors import UsageError


def output_option(*, help: str, required: bool = True) -> Callable[[Any], Any]:
    """The option -o, a path."""
    return click.option(
        "-o", "output", required=required, type=click.Path(dir_okay=False, path_type=Path), help=help
    )


def counted(n: int, noun: str) -> str:
    """ "1 sample", "2 samples"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def visible(text: str) -> str:
    """A text as one line of a terminal: control characters, with which a sample's key could move the cursor
    or forge lines, are escaped as in Python: a line break is shown as \\n."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


_HIDDEN = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""C0, DEL, C1, breaks of lines and paragraphs, and what turns the direction of writing."""


def say(*lines: str, err: bool = False) -> None:
    """Print lines, each of them `visible`."""
    for line in lines:
        click.echo(visible(line), err=err)


@contextmanager
def written(output: Path, option: str = "-o") -> Iterator[IO[bytes]]:
    """A file to write, which takes its place at the end: the one that a link leads to, and never that of what
    is no file. Raises UsageError that names the option."""
    output = output.resolve()
    if output.exists() and not output.is_file():
        raise UsageError(f"{output}: is no regular file; choose another {option}")
    try:
        fd, partial = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}-")
    except OSError as e:
        raise UsageError(f"{output}: {e.strerror}; choose another {option}") from e
    try:
        with open(fd, "wb") as file:
            yield file
        os.chmod(partial, 0o644)
        os.replace(partial, output)
    except BaseException as e:
        os.unlink(partial)
        if isinstance(e, OSError):
            raise UsageError(f"{output}: {e.strerror}; choose another {option}") from e
        raise
