"""Probing and decoding of media. The only package that imports av."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from libhelix.errors import MediaError
from libhelix.recipe import Item

_OTHER_STILLS = (b"II*\0", b"MM\0*", *(b"P%d\n" % kind for kind in range(1, 8)))
"""Magic of TIFF and of PBM, PGM, PPM and PAM."""
_STILL_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"heif", b"mif1", b"msf1")


def probe_items(path: str | Path) -> tuple[Item, ...]:
    """The items of the sample that a file is, by its content: stored arrays and images by their magic, else
    a video, else audio. Only text has no magic, and is known by its name, .txt.

    A video with sound is two items, the sound the second. Raises MediaError that names the file, the cause
    and the cure.
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
    item = Item(kind="", path=path, offset=0, size=found.st_size, mtime_ns=found.st_mtime_ns)
    return probe_media(item, head)


def probe_file(path: str | Path) -> Item:
    """The first item that a file is: of a video, its pictures."""
    return probe_items(path)[0]


def probe_media(item: Item, head: bytes) -> tuple[Item, ...]:
    """The items that a file, or a range of one that begins with `head`, is: pictures, video or sound.

    An animated GIF is two: its first picture, and a video.
    """
    from libhelix.media import headers
    from libhelix.media.headers import image

    if head[4:8] == b"ftyp" and head[8:12] in _STILL_BRANDS:
        # FFmpeg would show it as a video of one frame.
        raise MediaError(f"{item.path}: AVIF and HEIF images are not read; convert it to PNG, JPEG or WebP")
    if head.startswith(_OTHER_STILLS):
        raise MediaError(f"{item.path}: TIFF and PNM images are not read; convert it to PNG, JPEG or WebP")
    if image.sniff(head) is not None:
        still = replace(item, kind="image", image=image.probe_range(item.path, item.offset, item.size))
        if image.sniff(head) != "gif":
            return (still,)
        from libhelix.media import video

        film = video.probe_animation(item)
        return (still,) if film is None else (still, replace(item, kind="video", video=film))
    found = headers.probe(item, head)
    return found if found is not None else scan_media(item)


def scan_media(item: Item) -> tuple[Item, ...]:
    """What reading and beginning to decode a file, or a range of one, shows: pictures, video or sound."""
    # Imported here: most files are read without FFmpeg.
    from libhelix.media import audio, video
    from libhelix.media.container import has_video, open_container

    with open_container(item, quick=False) as container:
        if not has_video(container):
            return (replace(item, kind="audio", audio=audio.probe_open(container, item)),)
        pictures, sound = video.probe_open(container, item)
    shown = replace(item, kind="video", video=pictures)
    return (shown,) if sound is None else (shown, replace(item, kind="audio", audio=sound))
