"""Probing what lies inside another file, such as a member of a tar."""

from __future__ import annotations

import msgspec

from libhelix.errors import MediaError
from libhelix.media import _STILL_BRANDS, image, video
from libhelix.recipe import Item


def probe_range(path: str, offset: int, size: int, mtime_ns: int) -> tuple[Item, ...]:
    """The items that `size` bytes of a file are, by their content.

    Raises MediaError that begins with the path.
    """
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            head = file.read(min(size, 32))
    except OSError as e:
        raise MediaError(f"{path}: {e.strerror}; check the path and its permissions") from e
    if not head:
        raise MediaError(f"{path}: it is empty; write it again")
    if head[4:8] == b"ftyp" and head[8:12] in _STILL_BRANDS:
        raise MediaError(f"{path}: AVIF and HEIF images are not read; convert it to PNG, JPEG or WebP")
    is_image = image.sniff(head) is not None
    item = Item(kind="image" if is_image else "video", path=path, offset=offset, size=size, mtime_ns=mtime_ns)
    if is_image:
        return (msgspec.structs.replace(item, image=image.probe_range(path, offset, size)),)
    return (msgspec.structs.replace(item, video=video.probe_item(item)),)
