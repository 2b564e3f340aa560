"""Frames come out bit for bit as plain decoding gives them, whatever the codec, container and group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import msgspec
import numpy as np
import pytest

from libhelix.media import probe_file, sampler
from libhelix.media.container import open_container
from libhelix.media.pixels import write_frame
from libhelix.media.sampler import decode
from libhelix.recipe import Item
from tests.clips import make_clip, read_number
from tests.reference import decode_all, fit

SIZE = (48, 96)
VARIABLE = [sum([1, 1, 3, 1, 7, 2, 1, 1, 10, 1][j % 10] for j in range(i)) for i in range(40)]

CLIPS: dict[str, tuple[str, dict[str, Any]]] = {
    "h264 mp4": ("a.mp4", {}),
    "h264 mp4 without B-frames": ("a.mp4", {"bframes": 0, "gop": 7}),
    "h264 mp4, one group": ("a.mp4", {"gop": 250, "bframes": 3, "frames": 37}),
    "h264 mp4, open groups": ("a.mp4", {"open_gop": True}),
    "h264 mp4, every frame a key": ("a.mp4", {"gop": 1, "bframes": 0, "frames": 12}),
    "h264 fragmented mp4": ("a.mp4", {"muxer": {"movflags": "frag_keyframe+empty_moov"}}),
    "h264 mkv from second 5": ("a.mkv", {"start": 125}),
    "h264 mp4 from second 5": ("a.mp4", {"start": 125}),
    "h264 variable rate": ("a.mp4", {"frames": 40, "pts": VARIABLE, "fps": 50}),
    "h264 flv": ("a.flv", {}),
    "h264 ts": ("a.ts", {}),
    "h264 raw": ("a.h264", {}),
    "hevc mp4, open groups": ("a.mp4", {"codec": "hevc", "open_gop": True, "bframes": 4}),
    "hevc mp4, groups of 3": ("a.mp4", {"codec": "hevc", "gop": 3, "frames": 40}),
    "vp9 webm": ("a.webm", {"codec": "vp9"}),
    "vp8 webm": ("a.webm", {"codec": "vp8"}),
    "av1 mp4": ("a.mp4", {"codec": "av1"}),
    "mpeg4 mp4": ("a.mp4", {"codec": "mpeg4"}),
    "mpeg4 avi with B-frames": ("a.avi", {"codec": "mpeg4"}),
    "mpeg4 avi": ("a.avi", {"codec": "mpeg4", "bframes": 0}),
    "turned 90": ("a.mp4", {"rotation": 90}),
    "turned 180": ("a.mp4", {"rotation": 180}),
    "turned 270": ("a.mp4", {"rotation": 270}),
    "odd size": ("a.webm", {"codec": "vp9", "size": (93, 187)}),
    "one frame": ("a.mp4", {"frames": 1}),
}


def sample(item: Item, frames: Sequence[int], size: tuple[int, int] = SIZE) -> dict[int, np.ndarray]:
    assert item.video is not None
    info = item.video
    found: dict[int, np.ndarray] = {}

    def put(frame: int, picture: Any) -> None:
        out = np.zeros((*size, 3), np.uint8)
        write_frame(picture, info, out)
        assert frame not in found
        found[frame] = out

    decode(item, frames, put)
    return found


@pytest.mark.parametrize("name", CLIPS)
def test_sampled_frames_equal_plain_decoding(name: str, tmp_path: Path) -> None:
    file, settings = CLIPS[name]
    path = make_clip(tmp_path / file, **settings)
    item = probe_file(path)
    info = item.video
    decoded = decode_all(path)
    assert info is not None
    assert info.frames == len(decoded) == settings.get("frames", 48)
    expected = [fit(frame, SIZE) for frame in decoded]
    n = info.frames
    draws = np.random.default_rng(5)
    picks: list[list[int]] = [[0], [n - 1], list(range(n)), [*range(n // 3, n, 5)]]
    picks += [sorted(draws.choice(n, min(n, k), replace=False).tolist()) for k in (1, 2, 4, 7)]
    for pick in picks:
        got = sample(item, pick)
        assert sorted(got) == sorted(set(pick))
        for i, image in got.items():
            np.testing.assert_array_equal(image, expected[i], err_msg=f"frame {i} of {pick}")


@pytest.mark.parametrize("name", ["h264 mp4", "hevc mp4, open groups", "vp8 webm", "h264 ts", "av1 mp4"])
def test_the_number_in_the_picture_is_the_one_asked_for(name: str, tmp_path: Path) -> None:
    file, settings = CLIPS[name]
    item = probe_file(make_clip(tmp_path / file, **settings))
    for i, image in sample(item, [3, 11, 12, 13, 30, 47]).items():
        assert read_number(image) == i


def test_two_codec_threads_give_the_same_pixels(tmp_path: Path) -> None:
    item = probe_file(make_clip(tmp_path / "a.mp4", bframes=3))

    def pixels(threads: int) -> dict[int, np.ndarray]:
        found: dict[int, np.ndarray] = {}

        def put(frame: int, picture: Any) -> None:
            found[frame] = picture.to_ndarray(format="rgb24").copy()

        decode(item, range(5, 40, 3), put, threads=threads)
        return found

    one, two = pixels(1), pixels(2)
    assert one.keys() == two.keys()
    assert all((one[i] == two[i]).all() for i in one)


class _Misled:
    """A container whose seeks land `ticks` too late, and which counts them."""

    def __init__(self, container: Any, ticks: int) -> None:
        self._container, self._ticks = container, ticks
        self.seeks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    def __enter__(self) -> _Misled:
        return self

    def __exit__(self, *_: object) -> None:
        self._container.close()

    def seek(self, pts: int, stream: Any) -> None:
        self.seeks += 1
        self._container.seek(pts + self._ticks, stream=stream)


@pytest.mark.parametrize("open_gop", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 5])
def test_a_seek_that_lands_late_backs_off(
    groups: int, open_gop: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_clip(tmp_path / "a.mp4", 80, gop=8, open_gop=open_gop)
    item = probe_file(path)
    assert item.video is not None
    ticks = groups * 8 * item.video.pts_step
    opened: list[_Misled] = []

    def misled(item: Item, *, quick: bool) -> _Misled:
        opened.append(_Misled(open_container(item, quick=quick), ticks))
        return opened[-1]

    monkeypatch.setattr(sampler, "open_container", misled)
    expected = [fit(frame, SIZE) for frame in decode_all(path)]
    for i, image in sample(item, [2, 23, 27, 31, 39, 70]).items():
        np.testing.assert_array_equal(image, expected[i], err_msg=f"frame {i}")
    assert sum(container.seeks for container in opened) > 2
    # Within reach of the back-off one opening is enough; beyond it everything is decoded from the start.
    if not open_gop:
        assert len(opened) == (1 if groups <= 2 else 3)


def test_invisible_vp8_packets_are_no_frames(tmp_path: Path) -> None:
    source = make_clip(tmp_path / "a.webm", 24, codec="vp8")
    hidden = tmp_path / "hidden.webm"
    with av.open(str(source)) as reading, av.open(str(hidden), "w") as writing:
        stream = writing.add_stream_from_template(reading.streams.video[0])
        for number, packet in enumerate(p for p in reading.demux(video=0) if p.size):
            body = bytearray(bytes(packet))
            if number == 9:
                body[0] &= ~0x10  # show_frame: what alternate references do not have
            copy = av.Packet(bytes(body))
            copy.stream, copy.pts, copy.dts = stream, packet.pts, packet.dts
            copy.time_base, copy.is_keyframe = packet.time_base, packet.is_keyframe
            writing.mux(copy)
    item = probe_file(hidden)
    assert item.video is not None
    assert item.video.frames == 23
    expected = [fit(frame, SIZE) for frame in decode_all(hidden)]
    for i, image in sample(item, range(23)).items():
        np.testing.assert_array_equal(image, expected[i], err_msg=f"frame {i}")


def test_a_key_frame_that_is_none_is_survived(tmp_path: Path) -> None:
    """Some muxers flag more key frames than there are."""
    path = make_clip(tmp_path / "a.mp4", 48, gop=12)
    item = probe_file(path)
    info = item.video
    assert info is not None
    lie = msgspec.structs.replace(
        info,
        key_pts=(*info.key_pts[:2], info.frame_pts(18), *info.key_pts[2:]),
        key_frames=(*info.key_frames[:2], 18, *info.key_frames[2:]),
        key_bytes=(*info.key_bytes, 1),
    )
    expected = [fit(frame, SIZE) for frame in decode_all(path)]
    for i, image in sample(msgspec.structs.replace(item, video=lie), [17, 19, 30]).items():
        np.testing.assert_array_equal(image, expected[i], err_msg=f"frame {i}")


def test_a_stream_that_changes_its_size_fills_the_target(tmp_path: Path) -> None:
    small = make_clip(tmp_path / "s.ts", 20, size=(96, 192))
    large = make_clip(tmp_path / "l.ts", 20, size=(128, 256), start=20, first_number=20)
    both = tmp_path / "both.ts"
    both.write_bytes(small.read_bytes() + large.read_bytes())
    item = probe_file(both)
    assert item.video is not None
    assert item.video.frames == 40
    for i, image in sample(item, [0, 10, 19, 20, 30, 39]).items():
        assert read_number(image) == i


def test_a_byte_range_of_a_larger_file_is_read_in_place(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4")
    whole = probe_file(path)
    body = path.read_bytes()
    shard = tmp_path / "shard.tar"
    shard.write_bytes(b"x" * 512 + body + b"y" * 100)
    inside = Item(
        kind="video",
        path=str(shard),
        offset=512,
        size=len(body),
        mtime_ns=shard.stat().st_mtime_ns,
        video=whole.video,
    )
    expected, got = sample(whole, [0, 13, 47]), sample(inside, [0, 13, 47])
    assert all((expected[i] == got[i]).all() for i in expected)


@pytest.mark.parametrize(("rotation", "corner"), [(90, (0, -1)), (180, (-1, -1)), (270, (-1, 0))])
def test_rotation_is_clockwise(rotation: int, corner: tuple[int, int], tmp_path: Path) -> None:
    """Number 2048 lights the leftmost column at the top: its corner shows where the picture's left went."""
    path = make_clip(tmp_path / "a.mp4", 2, rotation=rotation, first_number=2048, size=(96, 96))
    item = probe_file(path)
    assert item.video is not None
    assert item.video.rotation == rotation
    image = sample(item, [0], (96, 96))[0]
    bright = {(y, x): image[y, x].mean() > 200 for y in (0, -1) for x in (0, -1)}
    assert bright == {at: at == corner for at in bright}
