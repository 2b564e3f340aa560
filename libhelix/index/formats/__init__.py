"""The formats people have, each listed without opening its media: what may be a sample, and where it lies.

A format gives a `Listing`. Whatever it names is a file or a byte range of one, so that training reads it
where it lies, at random, and nothing is unpacked.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Options(msgspec.Struct, frozen=True):
    """How sources are read. `media_root`: where relative paths in JSONL and Parquet begin, instead of beside
    the file. `group`: "stem" joins files of one folder that differ in their suffix alone, "folder" all files
    of one folder. `extract`: a folder for what lies inside Parquet. `ignore_zeros`: read on behind the end of
    a tar, as of joined ones.
    `keep_incomplete`: keep samples without a kind of item that most others have.
    """

    media_root: str | None = None
    group: Literal["", "stem", "folder"] = ""
    extract: str | None = None
    ignore_zeros: bool = False
    keep_incomplete: bool = False


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A file, or a byte range of one, of which the items of a sample are made.

    `name` tells it apart in its sample, `label` is for people. Text is not opened. `needed`: without it the
    sample is left out; what has no suffix of media may be anything, and is left out alone.
    """

    name: str
    path: str
    offset: int
    size: int
    mtime_ns: int
    whole: bool = True
    text: bool = False
    needed: bool = True
    label: str = ""

    @property
    def place(self) -> tuple[str, int, int, int]:
        """What an answer about it holds for."""
        return self.path, self.offset, self.size, self.mtime_ns


class Draft(msgspec.Struct, frozen=True, array_like=True):
    """A sample before its members are probed. `where` begins what is said about it, such as a line."""

    key: str
    members: tuple[Member, ...]
    where: str = ""


class Listing(msgspec.Struct, tag=True):
    """What a source holds. `refused` are (path, reason) of what cannot be used.

    `below_root`: keys are absolute paths, to be cut to what is below the root. `alike`: samples have the
    same kinds of items, so that one without a kind lacks it.
    """

    origin: str
    samples: list[Draft] = []
    refused: list[tuple[str, str]] = []
    warnings: list[str] = []
    below_root: bool = False
    alike: bool = False


TEXT_SUFFIXES = frozenset(
    {"txt", "text", "transcript", "caption", "json", "jsn"}
    | {"cls", "cls2", "class", "count", "index", "inx", "id"}  # numbers, by webdataset's names
)
MEDIA_SUFFIXES = frozenset(
    {"jpg", "jpeg", "jpe", "png", "webp", "gif", "bmp", "avif", "heic", "heif", "tif", "tiff", "ppm"}
    | {"mp4", "m4v", "mov", "mkv", "webm", "avi", "flv", "ts", "mts", "mpg", "mpeg", "wmv", "ogv", "3gp"}
    | {"wav", "flac", "mp3", "ogg", "opus", "m4a", "aac", "wma", "aiff", "npy", "npz", "safetensors"}
)
"""A member with such a name that cannot be used is broken, not something else."""


def last_suffix(name: str) -> str:
    """What follows the last dot, in lower case; all of it without one."""
    return name.rpartition(".")[2].lower()
