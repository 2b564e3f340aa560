"""Probing and decoding of media. The only package that imports av."""

from __future__ import annotations

import os
from pathlib import Path

from libhelix.errors import MediaError
from libhelix.recipe import Item

_STILL_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"heif", b"mif1", b"msf1")


def probe_items(path: str | Path) -> tuple[Item, ...]:
    """The items of the sample that a file is, by its content: stored arrays and images by their magic, else
    a video. Only text has none, and is known by its name, .txt.

    Raises MediaError that names the file, the cause and the cure.
    """
    from libhelix.media import tensor, text

    path = os.fspath(path)
    try:
        with open(path, "rb") as file:
            head = file.read(32)
            found = os.fstat(file.fileno())
    except OSError as e:
        raise MediaError(f"{path}: {e.strerror}; check the path and its permissions") from e
    if path.lower().endswith(".txt"):
        return (text.probe(path),)
    if not head:
        raise MediaError(f"{path}: the file is empty; fetch it again")
    tensor.refuse_pickled(path, head)
    if head.startswith(tensor.NPY_MAGIC):
        return (tensor.probe_npy(path),)
    if tensor.is_safetensors(path, head, found.st_size):
        return tensor.probe_safetensors(path)
    return (_probe_pictures(path, head, found),)


def probe_file(path: str | Path) -> Item:
    """The item of a file that has one. Raises MediaError as `probe_items`, and where there are several."""
    items = probe_items(path)
    if len(items) != 1:
        raise MediaError(f"{path}: holds {len(items)} items, not one; use probe_items")
    return items[0]


def _probe_pictures(path: str, head: bytes, found: os.stat_result) -> Item:
    # Imported here: stored arrays and texts are read without FFmpeg.
    from libhelix.media import image, video

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
