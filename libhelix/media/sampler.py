"""Exact frames of a video: each wanted frame is decoded from its key frame and matched by its time.

Per key-frame group: one seek, packets up to the last wanted one, then a drain, which spares the packets a
decoder with reordering would still ask for. Pictures that no other refers to are skipped where the codec
allows it. Nothing is taken on trust: a seek that lands late backs off, what is missing is decoded from the
start, and what follows a decode error counts as missing until the next key frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import av
import av.error

from libhelix.errors import MediaError
from libhelix.media.container import open_container, reason
from libhelix.recipe import Item, VideoInfo

Put = Callable[[int, av.VideoFrame], None]

_SKIPS_UNREFERENCED = frozenset({"h264", "hevc", "mpeg4", "mpeg2video", "mpeg1video"})
"""Codecs whose unreferenced pictures can be left out. With AV1 (dav1d) the result is other frames."""

_BACK_OFF = 2
"""Key frames a run goes back when a seek lands late, before everything is decoded from the start."""


class _Late(Exception):
    """The seek landed after the first wanted frame."""


def decode(item: Item, frames: Sequence[int], put: Put, *, threads: int = 1) -> None:
    """Call `put(frame, picture)` for every distinct frame number in `frames`, in decoding order.

    A picture is only valid during the call. A frame that turns out to be damaged afterwards is put again;
    the last call counts. Raises MediaError where the file changed, a frame is out of
    range, or frames cannot be decoded without error; some may have been put by then.
    """
    info = item.video
    if info is None:
        raise MediaError(f"{item.path}: not indexed as a video; use a recipe for {item.kind}")
    wanted = sorted(set(frames))
    if not wanted:
        return
    if not 0 <= wanted[0] <= wanted[-1] < info.frames:
        bad = wanted[0] if wanted[0] < 0 else wanted[-1]
        raise MediaError(f"{item.path}: frame {bad} was asked for, it has {info.frames}")
    sampler = _Sampler(item, info, wanted, put, threads)
    # The quick open may leave a decoder with too little reordering; plain reading is the second try.
    for quick in (True, False):
        if info.seekable and not info.ordered and sampler.left:
            with open_container(item, quick=quick) as container:
                sampler.by_groups(container)
    if sampler.left:
        with open_container(item, quick=False) as container:
            sampler.forward(container)
    if sampler.left:
        missing = sorted(sampler.left.values())
        some = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        cause = f" ({sampler.error})" if sampler.error else ""
        raise MediaError(
            f"{item.path}: frames {some} of {info.frames} cannot be decoded{cause}; encode the file again or "
            "leave it out"
        )


def count_frames(item: Item, stream: int) -> int:
    """Frames that decoding the whole stream gives."""
    with open_container(item, quick=False) as container:
        _prepare(container.streams[stream], 1)
        return sum(len(_feed(p)[0]) for p in container.demux(container.streams[stream]))


def _prepare(stream: Any, threads: int) -> Any:
    context = stream.codec_context
    context.options = {"err_detect": "explode"}
    stream.thread_type = "NONE" if threads == 1 else "FRAME"
    context.thread_count = threads
    context.skip_frame = "DEFAULT"
    return context


def _feed(packet: Any) -> tuple[list[Any], Exception | None]:
    try:
        return list(packet.decode()), None
    except av.error.FFmpegError as e:
        return [], e


def _is_end(packet: Any) -> bool:
    """Whether this is the demuxer's last word. AVI also has empty packets, with a time, for repeats."""
    return packet.size == 0 and packet.dts is None


def _skippable(context: Any) -> bool:
    """Whether unreferenced pictures of this stream may be left out without changing any other."""
    if context.name not in _SKIPS_UNREFERENCED:
        return False
    if context.name == "hevc":
        # Higher temporal layers may refer to pictures that are called unreferenced in their own layer.
        record = bytes(context.extradata or b"")
        return len(record) > 21 and record[0] == 1 and (record[21] >> 3) & 7 <= 1
    return True


class _Taint:
    """Which packets of a run cannot be trusted after an error, by their time.

    A picture refers to earlier ones in decoding order, never across a key frame, except for those shown
    before it (leading pictures of an open group).
    """

    def __init__(self) -> None:
        self.times: set[int | None] = set()
        self._fed: list[int | None] = []
        self._bad = False
        self._clean_from: int | None = None

    def feed(self, pts: int | None, key: bool) -> None:
        """A packet goes to the decoder."""
        if key:
            self._fed.clear()
            if self._bad:
                # The first key frame after an error leaves only what is shown before it in doubt.
                self._bad, self._clean_from = self._clean_from is None, pts
        self._fed.append(pts)
        if self._bad and (self._clean_from is None or pts is None or pts < self._clean_from):
            self.times.add(pts)

    def error(self, pts: int | None) -> None:
        """The decoder refused that packet, or gave a damaged picture for it."""
        at = self._fed.index(pts) if pts in self._fed else 0
        self.times.update(self._fed[at:])
        self._bad, self._clean_from = True, None


class _Sampler:
    """The frames still wanted of one video, and the ways to get them."""

    def __init__(self, item: Item, info: VideoInfo, wanted: Sequence[int], put: Put, threads: int) -> None:
        self._info, self._put, self._threads = info, put, threads
        self._path = item.path
        self.error: str = ""
        # In ordered files a frame's number stands in for its time.
        self.left: dict[int, int] = {(f if info.ordered else info.frame_pts(f)): f for f in wanted}
        self._given: dict[int, int] = {}

    def by_groups(self, container: Any) -> None:
        """One run per key-frame group that holds wanted frames."""
        stream = container.streams[self._info.stream]
        context = _prepare(stream, self._threads)
        skip = _skippable(context)
        groups: dict[int, list[int]] = {}
        for pts, frame in sorted(self.left.items()):
            groups.setdefault(self._info.group_of(frame), []).append(pts)
        fresh = True
        for group, times in groups.items():
            governing = self._info.key_pts[group]
            for key in range(group, max(-1, group - _BACK_OFF - 1), -1):
                try:
                    if not (fresh and key == 0):
                        container.seek(self._info.key_pts[key], stream=stream)
                    fresh = False
                    self._run(container.demux(stream), context, times, governing, skip)
                except _Late:
                    continue
                except av.error.FFmpegError as e:
                    self.error = reason(e)
                times = [t for t in times if t in self.left]
                if not times:
                    break

    def _run(
        self, packets: Iterable[Any], context: Any, times: Sequence[int], key_pts: int, skip: bool
    ) -> None:
        """Decode from the packet the demuxer stands at to the last of `times`, then drain.

        `key_pts` is when their key frame is shown. Raises _Late where the demuxer stands behind it.
        """
        pending = set(times)
        taint = _Taint()
        first = True
        for packet in packets:
            if packet.size and first:
                first = False
                if packet.pts is None or packet.pts > key_pts:
                    raise _Late
            if _is_end(packet):
                pending.clear()
            elif packet.size:
                wanted = packet.pts in pending
                if skip:
                    context.skip_frame = "DEFAULT" if wanted else "NONREF"
                self._step(packet, taint, key_pts)
                pending.discard(packet.pts)
            if not pending:
                # The end of the input as the decoder sees it: everything fed comes out now.
                context.skip_frame = "DEFAULT"
                self._drain(context, taint, key_pts)
                return
            if not any(t in self.left for t in times):
                return

    def forward(self, container: Any) -> None:
        """Decode everything from the start, without seeking, until nothing is wanted any more."""
        stream = container.streams[self._info.stream]
        context = _prepare(stream, self._threads)
        if self._info.ordered:
            self._count(container.demux(stream))
            return
        skip = not self._info.seekable and _skippable(context)
        first_key = self._info.key_pts[0] if self._info.key_pts else self._info.start_pts
        taint = _Taint()
        pending = set(self.left)
        try:
            for packet in container.demux(stream):
                if packet.size:
                    if skip:
                        context.skip_frame = "DEFAULT" if packet.pts in pending else "NONREF"
                    self._step(packet, taint, first_key)
                    pending.discard(packet.pts)
                if _is_end(packet) or not pending:
                    self._drain(context, taint, first_key)
                    return
        except av.error.FFmpegError as e:
            self.error = reason(e)

    def _count(self, packets: Iterable[Any]) -> None:
        number = 0
        for packet in packets:
            pictures, error = _feed(packet)
            if error is not None:
                # Without times nobody can tell which frame was lost: all later numbers are in doubt.
                self.error = reason(error)
                return
            for picture in pictures:
                if number in self.left and not picture.is_corrupt:
                    self._put(self.left.pop(number), picture)
                number += 1
            if not self.left:
                return

    def _step(self, packet: Any, taint: _Taint, from_pts: int) -> None:
        taint.feed(packet.pts, packet.is_keyframe)
        pictures, error = _feed(packet)
        if error is not None:
            self.error = reason(error)
            taint.error(packet.pts)
        self._accept(pictures, taint, from_pts)

    def _drain(self, context: Any, taint: _Taint, from_pts: int) -> None:
        try:
            pictures = list(context.decode(None))
        except av.error.EOFError:
            pictures = []
        except av.error.FFmpegError as e:
            self.error = reason(e)
            pictures = []
        self._accept(pictures, taint, from_pts)

    def _accept(self, pictures: Iterable[Any], taint: _Taint, from_pts: int) -> None:
        for picture in pictures:
            pts = picture.pts
            if picture.is_corrupt and (pts is None or pts >= from_pts):
                self.error = self.error or "damaged picture"
                taint.error(pts)
                # Pictures that refer to this one may be shown before it and have been put already.
                for bad in taint.times & self._given.keys():
                    if bad is not None:
                        self.left[bad] = self._given.pop(bad)
            if pts in self.left and pts not in taint.times:
                frame = self.left.pop(pts)
                self._put(frame, picture)
                self._given[pts] = frame
