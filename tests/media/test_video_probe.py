"""What the demux scan says, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import av
import msgspec
import numpy as np
import pytest

from libhelix.errors import MediaError
from libhelix.media import probe_file, video
from libhelix.media.sampler import decode
from libhelix.recipe import VideoInfo
from tests.clips import damage_packets, make_clip
from tests.reference import decode_all


def probe(path: Path) -> VideoInfo:
    info = probe_file(path).video
    assert info is not None
    return info


def test_a_constant_rate_needs_no_table(tmp_path: Path) -> None:
    info = probe(make_clip(tmp_path / "a.mp4", 48, fps=25, gop=12))
    assert (info.codec, info.width, info.height, info.frames) == ("h264", 192, 96, 48)
    assert info.pts is None
    assert info.fps == pytest.approx(25)
    assert info.duration_s == pytest.approx(48 / 25)
    assert info.key_frames == (0, 12, 24, 36)
    assert sum(info.key_bytes) <= (tmp_path / "a.mp4").stat().st_size
    assert info.seekable
    assert not info.ordered


def test_variable_times_are_kept_and_rise(tmp_path: Path) -> None:
    times = [0, 1, 2, 5, 6, 13, 15, 16, 17, 27]
    info = probe(make_clip(tmp_path / "a.mp4", 10, fps=50, pts=times, gop=5))
    num, den = info.time_base
    assert info.pts is not None
    assert [round(p * num * 50 / den) for p in info.pts] == times
    assert [info.frame_pts(i) for i in range(10)] == list(info.pts)


def test_times_equal_those_of_decoded_frames(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mkv", 30, start=125)
    info = probe(path)
    assert [info.frame_pts(i) for i in range(30)] == [f.pts for f in decode_all(path)]


def test_leading_pictures_belong_to_the_group_before(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 48, codec="hevc", open_gop=True, bframes=4)
    info = probe(path)
    with av.open(str(path)) as container:
        packets = [p for p in container.demux(video=0) if p.size]
    leading = [
        p.pts
        for k in info.key_pts[1:]
        for p in packets[next(i for i, q in enumerate(packets) if q.pts == k) :]
        if p.pts < k
    ]
    assert leading, "the clip should have leading pictures"
    for pts in leading:
        assert info.key_pts[info.group_of(info.frame_at(pts))] < pts


def test_a_stream_cut_before_its_first_key_frame_counts_what_decodes(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.ts", 48, gop=12, bframes=0)
    packets = path.read_bytes()
    # Leave the tables (2 packets of 188 bytes or more) and drop the first group's beginning.
    with av.open(str(path)) as container:
        at = [p.pos for p in container.demux(video=0) if p.size]
    assert at[3] is not None
    cut = tmp_path / "cut.ts"
    cut.write_bytes(packets[: 3 * 188] + packets[at[3] :])
    info = probe(cut)
    got: list[int] = []
    decode(probe_file(cut), range(info.frames), lambda i, _: got.append(i))
    assert got == list(range(info.frames))
    assert 36 <= info.frames <= 45


@pytest.mark.parametrize(
    ("name", "body", "cause"),
    [
        ("zero.mp4", b"", "empty"),
        ("junk.mp4", bytes(range(256)) * 40, "container"),
        ("page.jpg", b"<html><body>404</body></html>" * 9, "container"),
        (
            "list.m3u8",
            b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://example.com/a.ts\n",
            "container",
        ),
    ],
)
def test_what_is_no_media_is_refused_by_name(name: str, body: bytes, cause: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(body)
    with pytest.raises(MediaError, match=cause) as caught:
        probe_file(path)
    assert str(path) in str(caught.value)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4")
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(MediaError, match="unreadable"):
        probe_file(path)


@pytest.mark.skipif(int(av.__version__.split(".")[0]) < 18, reason="PyAV does not show the sample table")
def test_an_interrupted_copy_is_not_a_short_film(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", muxer={"movflags": "faststart"})
    assert probe(path).frames == 48
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(MediaError, match="truncated: its frames reach"):
        probe_file(path)


@pytest.mark.parametrize("name", ["a.mkv", "a.ts", "a.flv"])
def test_a_stream_that_was_cut_off_keeps_the_frames_it_has(name: str, tmp_path: Path) -> None:
    path = make_clip(tmp_path / name)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    item = probe_file(path)
    assert item.video is not None
    assert 12 <= item.video.frames < 48
    got: list[int] = []
    decode(item, range(item.video.frames - 1), lambda i, _: got.append(i))
    assert got == list(range(item.video.frames - 1))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="No such file"):
        video.probe(tmp_path / "nothing.mp4")


def test_sound_alone_is_no_video(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000)
        for i in range(10):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
            frame.sample_rate, frame.pts = 16000, i * 1024
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(MediaError, match="no video stream"):
        video.probe(path)


def test_a_wrong_suffix_does_not_matter(tmp_path: Path) -> None:
    right = make_clip(tmp_path / "a.mp4")
    wrong = tmp_path / "a.avi"
    wrong.write_bytes(right.read_bytes())
    assert probe(wrong) == probe(right)


def test_names_that_look_like_protocols_are_files(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4")
    odd = path.rename(tmp_path / "concat:b|%03d?.mp4")
    item = probe_file(odd)
    got: list[int] = []
    decode(item, [5], lambda i, _: got.append(i))
    assert got == [5]


def test_a_changed_file_is_not_misread(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4")
    item = probe_file(path)
    make_clip(path, 40, gop=5)
    with pytest.raises(MediaError, match="changed"):
        decode(item, [5], lambda *_: None)


def test_a_frame_beyond_the_end_is_an_error(tmp_path: Path) -> None:
    item = probe_file(make_clip(tmp_path / "a.mp4"))
    with pytest.raises(MediaError, match="frame 48 was asked for, it has 48"):
        decode(item, [3, 48], lambda *_: None)


@pytest.mark.parametrize("codec", ["h264", "mpeg4"])
def test_damage_never_gives_a_wrong_picture(codec: str, tmp_path: Path) -> None:
    """HEVC has no part in it: FFmpeg decodes noise in its slices without noticing."""
    path = make_clip(tmp_path / "a.mp4", codec=codec, bframes=2)
    clean = [f.to_ndarray(format="rgb24") for f in decode_all(path)]
    damage_packets(path, [17, 18, 19])
    item = probe_file(path)
    lost, said = [], []
    for i in range(48):
        got: list[np.ndarray] = []
        try:
            decode(item, [i], lambda _, f, got=got: got.append(f.to_ndarray(format="rgb24")))  # type: ignore[misc]
        except MediaError as e:
            said.append(str(e))
            lost.append(i)
            continue
        np.testing.assert_array_equal(got[-1], clean[i], err_msg=f"frame {i}")
    assert lost
    assert all(f"frames {i} of 48" in text for i, text in zip(lost, said, strict=True))
    assert all(12 <= i < 24 for i in lost)


def test_costs_follow_the_segments(tmp_path: Path) -> None:
    info = probe(make_clip(tmp_path / "a.mp4", 48, gop=12))
    frames = (0, 6, 13, 13, 40)
    assert video.group_cuts(info, frames) == (2, 4)
    costs = video.decode_cost_us(info, frames, 224 * 224)
    assert len(costs) == 3
    assert all(c > 0 for c in costs)
    assert video.decode_cost_us(msgspec.structs.replace(info, seekable=False), frames, 1)[0] > sum(costs) // 2
    assert video.group_cuts(msgspec.structs.replace(info, seekable=False), frames) == ()
