"""What is in a media file, told by its headers alone, without FFmpeg and in a few reads.

boxes.py   bytes and boxes           movie.py    tracks of an mp4        edits.py    which samples are shown
mp4.py     a whole file              tables.py   samples of a track      bits.py     bits
sounds.py  sound in mp4              wave.py, flac.py   sound alone      image.py    images
h264.py, hevc.py, other_codecs.py    sizes of pictures, and what key frames begin with

The answer equals that of a demux scan (`libhelix.media.video`, `libhelix.media.audio`), field for field, or
there is none: whatever is unusual is left to the scan.
"""

from __future__ import annotations

import struct

from msgspec.structs import replace

from libhelix.media.headers.boxes import Source, Unsure
from libhelix.recipe import Item


def probe(item: Item, head: bytes) -> tuple[Item, ...] | None:
    """The items that a file, or a range of one that begins with `head`, is; None where a scan has to say it.

    Raises MediaError where the file is gone or has changed, and for an mp4 that ends before its pictures do.
    """
    wave = head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE"
    flac = head[:4] == b"fLaC"
    if not wave and not flac and head[4:8] != b"ftyp":
        return None
    # Imported here: a tree of pictures needs none of it.
    from libhelix.media.headers import flac as flac_file
    from libhelix.media.headers import mp4
    from libhelix.media.headers import wave as wave_file

    with item.open() as file:
        source = Source(file.fileno(), item.offset, item.size)
        try:
            if wave or flac:
                sound = (wave_file if wave else flac_file).probe(source)
                return (replace(item, kind="audio", audio=sound),)
            shown, heard = mp4.probe(source, item.path)
        except (Unsure, OSError, IndexError, struct.error):
            return None  # the latter: something is too short for what should be in it
    found = []
    if shown is not None:
        found.append(replace(item, kind="video", video=shown))
    if heard is not None:
        found.append(replace(item, kind="audio", audio=heard))
    return tuple(found)
