"""Videos that broke other loaders, rebuilt, and what we answer.

Frames carry their numbers, so that it is known which one came. "exact" means: every frame asked for, in any
order and company, is the one with its number, and equal to plain decoding.

| case | what we answer | tested besides in |
|---|---|---|
| V01 variable rate | exact; on screen at t is the last frame that begins by then | recipes/test_clip... |
| V03 edit list into a group | what it cuts off does not count: index 0 is the first frame shown | |
| V04 start at 5 s | times are the file's; a rate counts from the first frame | ..._exact.py |
| V05 AVI with B-frames | exact, counted as the decoder gives them | ..._exact.py |
| V06 B-frames at the end | all of them | |
| V08 no moov, empty, 64 bytes | MediaError, at once | ..._probe.py |
| V10 damaged packets | outside the group exact, inside that or MediaError (HEVC: unnoticed) | ..._probe.py |
| V11 10-bit HEVC, and other depths | exact; 8 bits by scaling | ..._colours.py |
| V12 BT.601, 709, 2020, both ranges | within 6 levels, also resized | ..._colours.py |
| V14 odd sizes | exact | |
| V15 grey | three equal channels | ..._colours.py |
| V17 resolution changes | each frame is scaled by its own size | ..._exact.py |
| V18 no frames | MediaError "no frames" | |
| V19 sound alone | MediaError "no video stream" | ..._probe.py |
| V20 one frame | uniform frames repeat it | |
| V22 the header counts too many | frames that are there count | |
| V24 MPEG-TS | exact, decoded forward | ..._exact.py |
| V27 wrong suffix | by content | ..._probe.py |
| V28 interlaced | woven, and `helixctl lint` says so | |
| V30 very long | exact, in constant memory | |
| V31 tags that are not UTF-8 | exact | |
| V33 fragmented mp4 | exact | ..._exact.py |
| V37 GIF disposal | the film that browsers show | |
| V40 late, then early | exact | |
| V41 VP8 | exact | ..._exact.py |
| V43 beyond the end | times beyond it are not asked for; frame numbers beyond it are a MediaError | |
| V46 tracks without a decoder | passed over | |
"""

from __future__ import annotations

import resource
import struct
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image as Pil

from libhelix.errors import MediaError
from libhelix.media import probe_file, probe_items
from libhelix.media.examine import examine
from libhelix.media.pixels import write_picture
from libhelix.media.sampler import decode
from libhelix.recipe import Item, Part, Rng, Sample, VideoInfo
from libhelix.recipes import Clip
from tests.clips import make_clip, picture, read_number

SIZE = (48, 96)


def video(path: Path) -> tuple[Item, VideoInfo]:
    item = next(item for item in probe_items(path) if item.kind == "video")
    assert item.video is not None
    return item, item.video


def numbers(item: Item, frames: Sequence[int], size: tuple[int, int] = SIZE) -> dict[int, int]:
    """The number seen in each of these frames."""
    seen = {}

    def put(frame: int, shown: Any) -> None:
        out = np.zeros((*size, 3), np.uint8)
        write_picture(shown, out)
        seen[frame] = read_number(out)

    decode(item, frames, put)
    return seen


def check_exact(path: Path, first: int, count: int, seed: int = 0) -> VideoInfo:
    """Whole, one by one, and in drawn company: frame i shows number first + i."""
    item, info = video(path)
    assert info.frames == count
    draws = np.random.default_rng(seed)
    picks: list[list[int]] = [list(range(count)), [count - 1], [0]]
    picks += [sorted(draws.choice(count, min(count, 4), replace=False).tolist()) for _ in range(5)]
    for pick in picks:
        assert numbers(item, pick) == {i: first + i for i in pick}
    return info


def seconds(info: VideoInfo) -> list[Fraction]:
    num, den = info.time_base
    return [Fraction(info.frame_pts(i) * num, den) for i in range(info.frames)]


# ---- times ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.mov"])
@pytest.mark.parametrize("seed", [1, 2])
def test_v01_variable_rates(name: str, seed: int, tmp_path: Path) -> None:
    steps = np.random.default_rng(seed).integers(1, 11, 40).tolist()
    times = [sum(steps[:i]) for i in range(40)]
    info = check_exact(make_clip(tmp_path / name, 40, pts=times, fps=50, gop=9), 0, 40)
    assert [round(t * 50) for t in seconds(info)] == times
    for tick in range(times[-1]):
        at = info.start_pts + round(Fraction(tick, 50) / Fraction(*info.time_base))
        assert times[info.frame_at(at)] == max(t for t in times if t <= tick)


def cut_by_edit_list(path: Path, frames: int) -> None:
    """Have presentation begin so many frames later, by the edit list alone, as phones and editors do."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.time_base is not None
        assert stream.average_rate is not None
        ticks = int(frames / stream.average_rate / stream.time_base)
    body = bytearray(path.read_bytes())
    at = body.index(b"elst") + 4
    assert body[at] == 0
    assert struct.unpack_from(">I", body, at + 4) == (1,)
    duration, begin = struct.unpack_from(">Ii", body, at + 8)
    timescale = struct.unpack_from(">I", body, body.index(b"mvhd") + 4 + 12)[0]
    rate = Fraction(timescale) * frames / 25
    struct.pack_into(">Ii", body, at + 8, duration - int(rate), begin + ticks)
    path.write_bytes(body)


@pytest.mark.parametrize("codec", ["h264", "hevc", "mpeg4"])
@pytest.mark.parametrize("cut", [1, 10, 12, 29])
def test_v03_edit_lists_cut_frames_off(cut: int, codec: str, tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 48, codec=codec, gop=12)
    cut_by_edit_list(path, cut)
    info = check_exact(path, cut, 48 - cut)
    assert seconds(info)[0] == 0


@pytest.mark.parametrize("name", ["a.mkv", "a.mp4", "a.ts"])
def test_v04_a_start_time_is_no_offset_of_numbers(name: str, tmp_path: Path) -> None:
    path = make_clip(tmp_path / name, 40, start=125)
    info = check_exact(path, 0, 40)
    times = seconds(info)
    if name != "a.ts":  # whose muxer adds a delay of its own
        assert times[0] == 5
    assert times[-1] - times[0] == Fraction(39, 25)
    sample = Sample(0, name, probe_items(path))
    assert Clip(rate=5, layout="pad").describe(sample, Rng(0, 0, 0)).draws == tuple(range(0, 40, 5))


@pytest.mark.parametrize("rate", [1, 7, 25, 24.9])
def test_v43_a_rate_never_asks_beyond_the_end(rate: float, tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 60)
    chosen = Clip(rate=rate, layout="pad").describe(Sample(0, "a", probe_items(path)), Rng(0, 0, 0)).draws
    assert chosen == tuple(i * 25 // Fraction(str(rate)) for i in range(len(chosen)))
    assert len(chosen) == -(-60 * Fraction(str(rate)) // 25)
    item, info = video(path)
    assert info.frame_at(info.start_pts + 60 * info.pts_step - 1) == 59
    with pytest.raises(MediaError, match="frame 60 was asked for, it has 60"):
        decode(item, [60], lambda *_: None)


# ---- order -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [22, 23, 24, 25])
@pytest.mark.parametrize(
    ("name", "codec"), [("a.mp4", "h264"), ("a.mkv", "hevc"), ("a.avi", "mpeg4"), ("a.ts", "h264")]
)
def test_v05_v06_v24_the_last_frames_come(name: str, codec: str, frames: int, tmp_path: Path) -> None:
    check_exact(
        make_clip(tmp_path / name, frames, codec=codec, bframes=2 if codec == "mpeg4" else 3), 0, frames
    )


@pytest.mark.parametrize(("codec", "gop"), [("hevc", 3), ("h264", 3), ("vp8", 40), ("vp9", 40)])
def test_v40_v41_late_frames_and_then_early_ones(codec: str, gop: int, tmp_path: Path) -> None:
    suffix = "webm" if codec.startswith("vp") else "mp4"
    item, _ = video(make_clip(tmp_path / f"a.{suffix}", 161, codec=codec, gop=gop))
    for pick in ([159], [35], [159, 35, 160, 0]):
        assert numbers(item, pick) == {i: i for i in pick}


def test_v22_frames_that_are_there_count(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.avi", 60, codec="mpeg4", bframes=0)
    body = bytearray(path.read_bytes())
    struct.pack_into("<I", body, body.index(b"avih") + 8 + 16, 66)
    struct.pack_into("<I", body, body.index(b"strh") + 8 + 32, 66)
    path.write_bytes(body)
    check_exact(path, 0, 60)
    with pytest.raises(MediaError, match="frame 65 was asked for, it has 60"):
        decode(video(path)[0], [65], lambda *_: None)


@pytest.mark.parametrize("size", [(93, 187), (1, 31), (64, 25), (17, 16)])
@pytest.mark.parametrize(("name", "codec"), [("a.webm", "vp9"), ("a.mkv", "ffv1")])
def test_v14_odd_sizes(name: str, codec: str, size: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / name
    pictures = [picture(i, size) for i in range(6)]
    _encode(path, pictures, {"vp9": "libvpx-vp9"}.get(codec, codec), "yuv420p")
    item, info = video(path)
    assert (info.height, info.width, info.frames) == (*size, 6)
    got = {}
    decode(item, range(6), lambda i, f: got.update({i: f.to_ndarray(format="rgb24").mean()}))
    for i, mean in got.items():
        assert abs(mean - pictures[i].mean()) < 12


def _encode(
    path: Path, pictures: Sequence[np.ndarray], encoder: str, pixel_format: str, **options: str
) -> None:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(encoder, rate=25, options=options)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = pixel_format
        stream.codec_context.thread_count = 1
        for i, one in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(one, format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


# ---- containers ---------------------------------------------------------------------------------------


def test_v08_unreadable_containers_are_refused_at_once(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 60)
    body = path.read_bytes()
    for cut in (body[: body.index(b"moov") - 4], b"", body[:64]):
        path.write_bytes(cut)
        began = time.thread_time()
        with pytest.raises(MediaError, match=r"a\.mp4: (unreadable container|the file is empty)"):
            probe_file(path)
        assert time.thread_time() - began < 0.05


@pytest.mark.parametrize(
    ("name", "encoder"), [("a.mkv", "libx264"), ("a.mp4", "libx264"), ("a.avi", "mpeg4")]
)
def test_v18_a_header_without_frames_is_refused(name: str, encoder: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(encoder, rate=25)
        stream.height, stream.width, stream.pix_fmt = 96, 192, "yuv420p"
        container.start_encoding()
    with pytest.raises(MediaError, match=rf"{name}: .*no frames"):
        probe_file(path)


def test_v20_of_one_frame_all_are_that_one(tmp_path: Path) -> None:
    sample = Sample(0, "a", probe_items(make_clip(tmp_path / "a.mp4", 1, first_number=7)))
    recipe = Clip(frames=8, size=SIZE)
    desc = recipe.describe(sample, Rng(0, 0, 0))
    out = np.zeros((8, *SIZE, 3), np.uint8)
    recipe.fill(sample, desc, Part(0, 8, 8), {"video": out})
    assert [read_number(image) for image in out] == [7] * 8


def test_v28_interlaced_frames_are_woven_and_lint_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    _encode(
        path, [picture(i, (96, 192)) for i in range(12)], "libx264", "yuv420p", **{"x264-params": "tff=1"}
    )
    item, _ = video(path)
    assert numbers(item, range(12)) == {i: i for i in range(12)}
    findings = examine(item)
    assert findings is not None
    assert any(f.grade == "odd" and "12 of 12 frames are interlaced" in f.text for f in findings)


def test_v30_a_very_long_video_takes_no_memory(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 4000, size=(32, 96), gop=250, fps=1)
    item, info = video(path)
    assert info.frames == 4000
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    picks = [0, 571, 1142, 1713, 2284, 2855, 3426, 3999]
    assert numbers(item, picks, (32, 96)) == {i: i for i in picks}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 50 * 1024


def test_v31_tags_may_be_of_any_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.avi"
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "XXXXXXXX"
        stream: Any = container.add_stream("mpeg4", rate=25)
        stream.height, stream.width, stream.pix_fmt = 96, 192, "yuv420p"
        for i in range(6):
            frame = av.VideoFrame.from_ndarray(picture(i, (96, 192)), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    body = path.read_bytes()
    assert b"XXXXXXXX" in body
    path.write_bytes(body.replace(b"XXXXXXXX", "日本語字".encode("shift-jis")))
    check_exact(path, 0, 6)


@pytest.mark.parametrize("name", ["a.mov", "a.mp4"])
def test_v46_tracks_without_a_decoder_are_passed_over(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with av.open(str(path), "w") as container:
        container.metadata["timecode"] = "01:00:00:00"
        stream: Any = container.add_stream("libx264", rate=25, options={"x264-params": "keyint=12"})
        stream.height, stream.width, stream.pix_fmt = 96, 192, "yuv420p"
        for i in range(24):
            frame = av.VideoFrame.from_ndarray(picture(i, (96, 192)), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with av.open(str(path)) as container:
        assert [s.type for s in container.streams] == ["video", "data"]
    check_exact(path, 0, 24)


# ---- GIF -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("disposal", [0, 1, 2])
def test_v37_a_gif_is_the_film_that_browsers_show(disposal: int, tmp_path: Path) -> None:
    shown = []
    for i in range(6):
        frame = Pil.new("P", (60, 40), 0)
        frame.putpalette([10, 10, 10, 255, 0, 0])
        frame.paste(1, (2 + 8 * i, 10, 10 + 8 * i, 30))
        shown.append(frame)
    path = tmp_path / "a.gif"
    delays = [100, 50, 200, 100, 100, 100]
    shown[0].save(
        path, save_all=True, append_images=shown[1:], duration=delays, disposal=disposal, optimize=False
    )
    item, info = video(path)
    assert [float(t) for t in seconds(info)] == [0, 0.1, 0.15, 0.35, 0.45, 0.55]
    with Pil.open(path) as oracle:
        expected = []
        for i in range(6):
            oracle.seek(i)
            expected.append(np.asarray(oracle.convert("RGB")))
    for pick in (list(range(6)), [5], [3, 1]):
        got: dict[int, np.ndarray] = {}

        def put(frame: int, one: Any, got: dict[int, np.ndarray] = got) -> None:
            got[frame] = np.zeros((40, 60, 3), np.uint8)
            write_picture(one, got[frame])

        decode(item, pick, put)
        for i in pick:
            np.testing.assert_array_equal(got[i], expected[i], err_msg=f"frame {i}")
    still = probe_items(path)[0]
    assert (still.kind, Clip(frames=3).describe(Sample(0, "a", (still, item)), Rng(0, 0, 0)).draws) == (
        "image",
        (1, 3, 5),
    )
