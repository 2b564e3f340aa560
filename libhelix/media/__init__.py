"""Probing and decoding of media. The only package that imports av."""

from __future__ import annotations

import os
from pathlib import Path

from libhelix.errors import MediaError
from libhelix.media import image, video
from libhelix.recipe import Item

_STILL_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"heif", b"mif1", b"msf1")


def probe_file(path: str | Path) -> Item:
    """The item that a file is, by its content: an image by its magic, else a video.

    Raises MediaError that names the file, the cause and the cure.
    """
    path = os.fspath(path)
    try:
        with open(path, "rb") as file:
            head = file.read(32)
            found = os.fstat(file.fileno())
    except OSError as e:
        raise MediaError(f"{path}: {e.strerror}; check the path and its permissions") from e
    if not head:
        raise MediaError(f"{path}: the file is empty; fetch it again")
    if head[4:8] == b"ftyp" and head[8:12] in _STILL_BRANDS:
        # FFmpeg would show it as a video of one frame.
        raise MediaError(f"{path}: AVIF and HEIF images are not read; convert it to PNG, JPEG or WebP")
    is_image = image.sniff(head) is not None
    return Item(
        kind="image" if is_image else "video",
        path=path,
        offset=0,
        size=found.st_size,
        mtime_ns=found.st_mtime_ns,
        image=image.probe(path) if is_image else None,
        video=None if is_image else video.probe(path),
    )
