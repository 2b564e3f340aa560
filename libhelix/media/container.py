"""Opening a container and choosing its streams."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Any

import av
import av.error
import av.stream
from av.container import InputContainer

from libhelix.errors import MediaError
from libhelix.recipe import Item

_FORMATS = (
    "mov,mp4,matroska,webm,avi,flv,mpegts,mpeg,mpegvideo,m4v,h264,hevc,vvc,av1,obu,ivf,ogg,asf,mxf,nut,dv,rm,wtv,"
    "yuv4mpegpipe,gif,mp3,flac,wav,w64,aiff,caf,aac,amr,ac3,eac3"
)
_SAFE = {"protocol_whitelist": "file,subfile", "format_whitelist": _FORMATS}
"""A play list or a data reference inside a file must not make a worker open other hosts. And FFmpeg finds a
"video" in anything that holds a JPEG, tar files for one: only real containers count."""

_QUICK = {"fpsprobesize": "0", "analyzeduration": "0", "probesize": "32768"}
_QUICK_DECODER = {"skip_frame": "all"}
"""Open without decoding anything: ten times cheaper, and enough where frames are matched by time.

Only for mp4 and mov, which gain by it. (A WAV says all in its header: it is never read further, which takes
20 ms.) PyAV frees one dictionary of decoder options per stream, also for
streams that FFmpeg found meanwhile, as in FLV and MPEG-TS: it crashes (PyAV issue 2010).
"""


def open_container(item: Item, *, quick: bool) -> InputContainer:
    """The container of an item, after the check that the file is still the one that was indexed.

    Raises MediaError where the file is gone, has changed, or is no container FFmpeg can read.
    """
    with item.open() as file:
        head = file.read(12)
        film, wave = quick and head[4:8] == b"ftyp", head[:4] == b"RIFF" and head[8:] == b"WAVE"
        whole = item.offset == 0 and os.fstat(file.fileno()).st_size == item.size
    if item.size == 0:
        raise MediaError(f"{item.path}: the file is empty; fetch it again")
    # The explicit protocol keeps names such as "a:b.mp4" from being read as one.
    url = f"file:{item.path}"
    if not whole:
        url = f"subfile,,start,{item.offset},end,{item.offset + item.size},,:{item.path}"
    try:
        return av.open(
            url,
            metadata_errors="replace",
            container_options={**_SAFE, **_QUICK} if film or wave else _SAFE,
            options=_QUICK_DECODER if film else None,
        )
    except (av.error.FFmpegError, ValueError) as e:
        if getattr(e, "errno", None) == errno.EINVAL:  # what FFmpeg says of formats that are not on the list
            raise MediaError(f"{item.path}: no image, video or audio container; leave it out") from e
        if isinstance(e, av.error.EOFError):
            raise MediaError(
                f"{item.path}: no frames, it ends with its header; fetch or encode it again"
            ) from e
        raise MediaError(f"{item.path}: unreadable container ({reason(e)}); fetch or encode it again") from e


def reason(error: Exception) -> str:
    """FFmpeg's words for an error, without numbers and file names."""
    return str(getattr(error, "strerror", None) or error).strip() or type(error).__name__


def pick_stream(container: InputContainer, path: str) -> Any:
    """The video stream to use: no cover art; a default one; the largest; the first.

    Raises MediaError where there is none.
    """
    streams = _decodable(_pictures(container))
    if not streams:
        raise _none_of("video", container, path)
    default = [s for s in streams if _has(s, "default")] or streams
    return max(default, key=lambda s: (s.codec_context.width * s.codec_context.height, -s.index))


def has_video(container: InputContainer) -> bool:
    """Whether it holds a video stream; cover art is none."""
    return bool(_pictures(container))


def pick_sound(container: InputContainer, path: str) -> Any:
    """The audio stream to use: a default one, the first. Raises MediaError where there is none."""
    streams = _sounds(container)
    if not streams:
        raise _none_of("audio", container, path)
    return next((s for s in streams if _has(s, "default")), streams[0])


def has_sound(container: InputContainer) -> bool:
    """Whether it holds an audio stream that can be decoded."""
    return bool(_sounds(container))


def check_complete(container: InputContainer, stream: Any, item: Item) -> None:
    """Refuse an mp4 that ends before its own table does: an interrupted copy would pass for a short film.

    Other containers do not say in advance how long they are; of them the frames that are there count. PyAV
    before 16 does not show the table.
    """
    entries = getattr(stream, "index_entries", None)
    if not entries or "mov" not in container.format.name.split(","):
        return
    end = max(e.pos + e.size for e in entries)
    if end > item.size:
        raise MediaError(
            f"{item.path}: truncated: its frames reach to byte {end}, it ends at {item.size}; fetch it again"
        )


def codec_name(stream: Any) -> str:
    """The codec, not the decoder that happens to be built in ("av1", not "libdav1d")."""
    codec = stream.codec_context.codec
    return str(getattr(codec, "canonical_name", None) or codec.name)


def _pictures(container: InputContainer) -> list[Any]:
    return [s for s in container.streams.video if not _has(s, "attached_pic")]


def _sounds(container: InputContainer) -> list[Any]:
    return _decodable(container.streams.audio)


def _decodable(streams: Iterable[Any]) -> list[Any]:
    """Those of a codec that FFmpeg knows."""
    return [s for s in streams if s.codec_context is not None]


def _none_of(kind: str, container: InputContainer, path: str) -> MediaError:
    if any(s.type == kind and s.codec_context is None for s in container.streams):
        return MediaError(f"{path}: the codec of its {kind} stream is not known; encode it again")
    kinds = ", ".join(sorted({s.type for s in container.streams}))
    if not kinds:
        return MediaError(f"{path}: no frames, the container has no streams; leave it out")
    return MediaError(f"{path}: no {kind} stream (it has {kinds}); leave it out or use another recipe")


def _has(stream: Any, disposition: str) -> bool:
    return bool(stream.disposition & getattr(av.stream.Disposition, disposition))
