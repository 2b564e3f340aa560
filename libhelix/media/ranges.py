"""Probing what lies inside another file, such as a member of a tar."""

from __future__ import annotations

from libhelix.errors import MediaError
from libhelix.media import probe_media, tensor
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
    if head.startswith(tensor.NPY_MAGIC) or tensor.is_safetensors(path, head, size):
        raise MediaError(f"{path}: stored arrays inside archives are not read; unpack them")
    return probe_media(Item(kind="", path=path, offset=offset, size=size, mtime_ns=mtime_ns), head)
