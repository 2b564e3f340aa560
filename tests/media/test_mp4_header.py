"""An mp4 is told by its header, exactly as by reading all of it; what is unusual is left to the scan."""

from __future__ import annotations

import io
import random
import struct
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image as Pil

from libhelix.media import headers, probe_items
from libhelix.media.examine import examine
from libhelix.media.headers.other_codecs import Mpeg4
from libhelix.recipe import Item, VideoInfo
from tests.atoms import box, content_of, edit_list, find, inside, patch, with_box
from tests.clips import make_clip
from tests.media.both import agreed, by_headers, by_scan
from tests.sounds import add_sound, encode, tones, with_sound, write_sound

STBL = "moov/trak/mdia/minf/stbl"
VARIABLE = [0, 1, 2, 5, 6, 13, 15, 16, 17, 27]


def table(rows: Sequence[Sequence[int]], before: bytes = b"") -> bytes:
    """The content of a table: version and flags, what stands before it, the number of rows, the rows."""
    packed = b"".join(struct.pack(f">{len(row)}I", *row) for row in rows)
    return b"\0\0\0\0" + before + len(rows).to_bytes(4, "big") + packed


def film_of(items: tuple[Item, ...]) -> VideoInfo:
    assert items[0].video is not None
    return items[0].video


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1", "mpeg4", "vp9"])
@pytest.mark.parametrize(
    "clip",
    [
        {},
        {"bframes": 0},
        {"start": 7},
        {"size": (98, 130)},
        {"muxer": {"movflags": "faststart"}},
        {"gop": 1},
    ],
    ids=lambda c: "-".join(c) or "plain",
)
def test_headers_say_what_the_scan_says(codec: str, clip: dict[str, Any], tmp_path: Path) -> None:
    agreed(make_clip(tmp_path / "a.mp4", codec=codec, **clip))


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1", "mpeg4"])
@pytest.mark.parametrize("bframes", [0, 2])
def test_times_that_vary_are_kept(codec: str, bframes: int, tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 10, codec=codec, gop=5, pts=VARIABLE, bframes=bframes)
    found = film_of(agreed(path))
    assert found.pts is not None
    num, den = found.time_base
    assert [round(t * num * 25 / den) for t in found.pts] == VARIABLE


def test_how_long_the_last_picture_of_a_varying_vp9_is_shown_is_left_to_the_scan(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 10, codec="vp9", gop=5, pts=VARIABLE)
    assert by_headers(path) is None
    assert film_of(probe_items(path)).frames == 10


@pytest.mark.parametrize(
    "clip",
    [
        {"suffix": "mov"},
        {"bframes": 4, "gop": 7},
        {"frames": 1},
        {"frames": 2},
        {"codec": "hevc", "open_gop": True, "bframes": 4},
        {"muxer": {"video_track_timescale": "90000"}},
        {"muxer": {"use_editlist": "0"}},
        {"muxer": {"movflags": "negative_cts_offsets"}},
        {"rotation": 90},
        {"rotation": 180},
        {"rotation": 270, "suffix": "mov"},
    ],
    ids=lambda c: "-".join(map(str, c)),
)
def test_so_they_do_of_h264_of_all_kinds(clip: dict[str, Any], tmp_path: Path) -> None:
    found = film_of(agreed(make_clip(tmp_path / f"a.{clip.pop('suffix', 'mp4')}", **clip)))
    assert found.rotation == clip.get("rotation", 0)


@pytest.mark.parametrize(
    "matrix", [(-1, 0, 0, 1), (1, 0, 0, -1), (0, 1, 1, 0), (0, -1, -1, 0), (2, 0, 0, 1), (1, 1, -1, 1)]
)
def test_mirrors_are_told_and_other_matrices_left_to_the_scan(
    matrix: tuple[int, ...], tmp_path: Path
) -> None:
    path = make_clip(tmp_path / "a.mp4")
    header = bytearray(content_of(path.read_bytes(), "moov/trak/tkhd"))
    a, b, c, d = (v * 0x10000 for v in matrix)
    header[40:76] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 0x40000000)
    patch(path, "moov/trak/tkhd", bytes(header))
    if abs(matrix[0] * matrix[3] - matrix[1] * matrix[2]) == 1:
        assert film_of(agreed(path)).mirrored
    else:
        assert by_headers(path) is None


def test_a_size_as_played_that_is_another_is_left_to_the_scan(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4")
    header = bytearray(content_of(path.read_bytes(), "moov/trak/tkhd"))
    header[76:80] = (300 << 16).to_bytes(4, "big")
    patch(path, "moov/trak/tkhd", bytes(header))
    assert by_headers(path) is None
    assert film_of(probe_items(path)).sar != (1, 1)


def test_a_long_table_of_offsets_is_read(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4")
    short = content_of(path.read_bytes(), "moov/trak/mdia/minf/stbl/stco")
    wide = short[:8] + b"".join(b"\0\0\0\0" + short[i : i + 4] for i in range(8, len(short), 4))
    body = with_box(path.read_bytes(), "moov/trak/mdia/minf/stbl/stco", wide)
    path.write_bytes(body.replace(b"stco", b"co64"))
    agreed(path)


def ticks_of(path: Path) -> int:
    """How long the first track is."""
    return int.from_bytes(content_of(path.read_bytes(), "moov/trak/mdia/mdhd")[16:20], "big")


@pytest.mark.parametrize(
    "clip",
    [
        {},
        {"bframes": 0},
        {"codec": "hevc", "bframes": 3},
        {"codec": "mpeg4", "bframes": 0},
        {"codec": "vp9"},
        {"frames": 16, "gop": 5, "pts": [*VARIABLE, 28, 29, 33, 35, 36, 40]},
        {"frames": 16, "gop": 5, "pts": [*VARIABLE, 28, 29, 33, 35, 36, 40], "bframes": 0},
        {"muxer": {"movflags": "negative_cts_offsets"}},
    ],
    ids=lambda c: "-".join(c) or "plain",
)
def test_edit_lists_show_what_ffmpeg_shows(clip: dict[str, Any], tmp_path: Path) -> None:
    """Edits that begin and end anywhere, on key frames and between them, with and without a pause before."""
    path = make_clip(tmp_path / "whole.mp4", **clip)
    body = path.read_bytes()
    total = ticks_of(path)
    draw = random.Random(5)
    said: Counter[bool] = Counter()
    for _ in range(25):
        rows = [(draw.randrange(3000), -1)] if draw.random() < 0.4 else []
        begin = draw.choice([0, draw.randrange(total), total // 4 * draw.randrange(4)])
        rows.append((draw.choice([draw.randrange(1, 2500), 1920, 5000]), begin))
        edited = tmp_path / "edited.mp4"
        edited.write_bytes(with_box(body, "moov/trak/edts", edit_list(rows, wide=draw.random() < 0.3)))
        ours = by_headers(edited)
        said[ours is not None] += 1
        assert ours is None or ours == by_scan(edited), rows
    assert said[True] > 15, f"{said[False]} of 25 were left to the scan"


@pytest.mark.parametrize(
    "before", [[(500, 0)], [(500, 0), (100, -1)], [(100, -1), (500, 0)], [(100, -1), (100, -1)]]
)
def test_several_edits_are_left_to_the_scan(before: list[tuple[int, int]], tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4")
    patch(path, "moov/trak/edts", edit_list([*before, (500, 6144)]))
    assert by_headers(path) is None
    assert film_of(probe_items(path)).frames < 48


@pytest.mark.parametrize(
    ("suffix", "codec"),
    [
        ("mp4", "aac"), ("mov", "aac"), ("mp4", "libmp3lame"), ("mp4", "libopus"), ("mp4", "alac"),
        ("mov", "alac"), ("mov", "pcm_s16le"), ("mov", "pcm_s16be"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("channels", [1, 2])
def test_the_sound_of_a_film_is_told_too(suffix: str, codec: str, channels: int, tmp_path: Path) -> None:
    silent = make_clip(tmp_path / "silent.mp4", 30)
    rate = 48_000 if codec == "libopus" else 44_100
    path = with_sound(tmp_path / f"a.{suffix}", silent, tones(1.2, rate, channels), rate, codec)
    shown, heard = agreed(path)
    assert (shown.kind, heard.kind) == ("video", "audio")
    alone = encode(tmp_path / f"b.{suffix}", tones(0.7, rate, channels), rate, codec=codec)
    (heard,) = agreed(alone)
    assert heard.audio is not None
    assert heard.audio.channels == channels


@pytest.mark.parametrize("codec", ["aac", "libopus", "pcm_s16le"])
def test_edits_of_sound_leave_out_what_ffmpeg_leaves_out(codec: str, tmp_path: Path) -> None:
    suffix = "mov" if codec.startswith("pcm") else "mp4"
    path = encode(tmp_path / f"whole.{suffix}", tones(2.5, 48_000, 1), 48_000, codec=codec)
    body = path.read_bytes()
    draw = random.Random(6)
    said: Counter[bool] = Counter()
    for _ in range(20):
        rows = [(draw.randrange(1500), -1)] if draw.random() < 0.4 else []
        rows.append(
            (draw.choice([draw.randrange(1, 2600), 9000]), draw.choice([0, 1024, draw.randrange(99_000)]))
        )
        edited = tmp_path / f"edited.{suffix}"
        edited.write_bytes(with_box(body, "moov/trak/edts", edit_list(rows)))
        ours = by_headers(edited)
        said[ours is not None] += 1
        assert ours is None or ours == by_scan(edited), rows
    assert said[True] > 10, f"{said[False]} of 20 were left to the scan"


@pytest.mark.parametrize("codec", ["aac", "alac"])
@pytest.mark.parametrize("scale", [48_000, 90_000])
def test_sound_whose_times_jitter_has_its_samples_all_the_same(
    codec: str, scale: int, tmp_path: Path
) -> None:
    """As where it was copied from a transport stream."""
    path = encode(tmp_path / "a.m4a", tones(1.5, 48_000), 48_000, codec=codec)
    n = len(content_of(path.read_bytes(), f"{STBL}/stsz")) // 4 - 3
    each = (1024 if codec == "aac" else 4096) * scale // 48_000
    draw = random.Random(scale)
    for _ in range(10):
        ticks = [(1, each + draw.randrange(-3, 4)) for _ in range(n)]
        patch(path, f"{STBL}/stts", table(ticks))
        header = bytearray(content_of(path.read_bytes(), "moov/trak/mdia/mdhd"))
        header[12:16] = scale.to_bytes(4, "big")
        header[16:20] = sum(t for _, t in ticks).to_bytes(4, "big")
        patch(path, "moov/trak/mdia/mdhd", bytes(header))
        rows = [(draw.randrange(900), -1)] if draw.random() < 0.5 else []
        patch(path, "moov/trak/edts", edit_list([*rows, (draw.choice([9000, draw.randrange(1, 1600)]), 0)]))
        agreed(path)


def test_the_last_packet_of_alac_says_how_long_it_is(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.m4a", tones(1, 48_000), 48_000, codec="alac")
    n = len(content_of(path.read_bytes(), f"{STBL}/stsz")) // 4 - 3
    patch(path, f"{STBL}/stts", table([(n, 4096)]))
    header = bytearray(content_of(path.read_bytes(), "moov/trak/mdia/mdhd"))
    header[16:20] = (4096 * n).to_bytes(4, "big")
    patch(path, "moov/trak/mdia/mdhd", bytes(header))
    patch(path, "moov/trak/edts", edit_list([(9000, 0)]))
    (heard,) = agreed(path)
    assert heard.audio is not None
    assert heard.audio.samples == 48_000 < 4096 * n


@pytest.mark.parametrize("fixed", [False, True])
def test_mpeg4_has_its_size_behind_its_clock(fixed: bool) -> None:
    bits = "0" + "00000001" + "0" + "0001" + "0" + "00" + "1" + f"{30000:016b}" + "1"
    bits += "1" + f"{1001:015b}" if fixed else "0"
    bits += "1" + f"{640:013b}" + "1" + f"{360:013b}" + "1"
    layer = int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big")
    assert Mpeg4(b"\0\0\1\x20" + layer).size == (640, 360)


def _two_sounds(path: Path, silent: Path) -> Path:
    mono, stereo = tones(1.2, 48_000, 1), tones(1.2, 44_100, 2)
    with av.open(str(silent)) as source, av.open(str(path), "w") as container:
        pictures = container.add_stream_from_template(source.streams.video[0])
        first = add_sound(container, mono, 48_000, "aac")
        second = add_sound(container, stereo, 44_100, "aac")
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = pictures
                container.mux(packet)
        write_sound(container, first, mono, 48_000)
        write_sound(container, second, stereo, 44_100)
    return path


def test_of_several_sounds_the_enabled_one_is_told(tmp_path: Path) -> None:
    path = _two_sounds(tmp_path / "a.mp4", make_clip(tmp_path / "silent.mp4", 30))
    _, heard = agreed(path)
    assert heard.audio is not None
    assert heard.audio.stream == 1
    body = bytearray(path.read_bytes())
    for track, flags in ((1, 2), (2, 3)):
        body[find(bytes(body), "moov/trak/tkhd", track)[-1][0] + 11] = flags
    path.write_bytes(body)
    _, heard = agreed(path)
    assert heard.audio is not None
    assert (heard.audio.stream, heard.audio.rate) == (2, 44_100)


def test_a_track_of_time_codes_is_no_sample(tmp_path: Path) -> None:
    silent = make_clip(tmp_path / "silent.mp4", 30)
    with av.open(str(silent)) as source, av.open(str(tmp_path / "a.mov"), "w") as container:
        container.metadata["timecode"] = "01:00:00:00"
        pictures = container.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = pictures
                container.mux(packet)
    assert b"tmcd" in (tmp_path / "a.mov").read_bytes()
    assert len(agreed(tmp_path / "a.mov")) == 1


@pytest.mark.parametrize("suffix", ["m4a", "mp4"])
def test_cover_art_is_no_film(suffix: str, tmp_path: Path) -> None:
    path = encode(tmp_path / f"a.{suffix}", tones(1, 48_000), 48_000, codec="aac")
    picture = io.BytesIO()
    Pil.new("RGB", (20, 20)).save(picture, "JPEG")
    art = box("covr", box("data", b"\0\0\0\x0d\0\0\0\0" + picture.getvalue()))
    handler = box("hdlr", bytes(8) + b"mdirappl" + bytes(9))
    body = path.read_bytes()
    moov = find(body, "moov")[0]
    notes = [place for place in inside(body, moov[0] + 8, moov[1]) if place[0] == "udta"]
    assert notes[-1][2] == moov[1], "notes should be at the end"
    content = box("meta", b"\0\0\0\0" + handler + box("ilst", art))
    tracks = body[moov[0] + 8 : notes[-1][1]]
    path.write_bytes(body[: moov[0]] + box("moov", tracks + box("udta", content)))
    agreed(path)


# ---- what is left to the scan, or refused --------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "content"),
    [
        ("stts", table([(47, 512)])),
        ("stts", table([(48, 1 << 31)])),
        ("stss", table([(1,), (14,), (25,), (37,)])),
        ("stss", table([(2,), (13,), (25,), (37,)])),
        ("stss", table([(1,), (13,), (13,)])),
        ("stss", table([(1,), (49,)])),
        ("stss", table([])),
        ("stsc", table([(1, 47, 1)])),
        ("stsc", table([(2, 48, 1)])),
        ("stsc", table([(1, 48, 2)])),
        ("stsz", table([(9,)] * 48, before=b"\0\0\0\0")),
        ("ctts", table([(47, 512)])),
        ("sgpd", b"\1\0\0\0rap " + bytes(12)),
        ("saiz", bytes(9)),
    ],
)
def test_tables_that_contradict_one_another_are_left_to_the_scan(
    where: str, content: bytes, tmp_path: Path
) -> None:
    path = make_clip(tmp_path / "a.mp4")
    agreed(path)
    assert by_headers(patch(path, f"{STBL}/{where}", content)) is None


@pytest.mark.parametrize("sample", [0, 20, 47])
@pytest.mark.parametrize("change", [-4, 4])
def test_tables_have_to_account_for_every_byte(sample: int, change: int, tmp_path: Path) -> None:
    path = with_sound(tmp_path / "a.mp4", make_clip(tmp_path / "b.mp4"), tones(1.9, 48_000), 48_000, "aac")
    agreed(path)
    for track in (0, 1):
        sizes = bytearray(content_of(path.read_bytes(), f"{STBL}/stsz", track))
        at = 12 + 4 * sample
        sizes[at : at + 4] = (int.from_bytes(sizes[at : at + 4], "big") + change).to_bytes(4, "big")
        other = tmp_path / f"{track}.mp4"
        other.write_bytes(with_box(path.read_bytes(), f"{STBL}/stsz", bytes(sizes), track))
        assert by_headers(other) is None


@pytest.mark.parametrize("change", [-4, 4])
def test_so_does_the_last_sample_of_all(change: int, tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", codec="mpeg4")
    sizes = bytearray(content_of(path.read_bytes(), f"{STBL}/stsz"))
    sizes[-4:] = (int.from_bytes(sizes[-4:], "big") + change).to_bytes(4, "big")
    assert by_headers(patch(path, f"{STBL}/stsz", bytes(sizes))) is None


def test_all_frames_cannot_be_keys_where_the_codec_says_otherwise(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4")
    body = path.read_bytes()
    path.write_bytes(body.replace(b"stss", b"free"))
    assert by_headers(path) is None
    assert film_of(probe_items(path)).key_frames == (0, 12, 24, 36)


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1", "mpeg4", "vp9"])
def test_a_first_sample_that_is_no_key_frame_is_looked_at_by_a_decoder(codec: str, tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", codec=codec)
    agreed(path)
    body = bytearray(path.read_bytes())
    at = int.from_bytes(content_of(bytes(body), f"{STBL}/stco")[8:12], "big")
    body[at : at + 64] = bytes(64)
    path.write_bytes(body)
    assert by_headers(path) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b.replace(b"avc1\0\0\0\0", b"encv\0\0\0\0"),
        lambda b: with_box(b, "moov/mvex", box("trex", bytes(24))),
        lambda b: with_box(b, "moov/cmov", box("dcom", b"zlib")),
        lambda b: b.replace(b"ftypisom", b"moofisom"),
        lambda b: b.replace(b"url \0\0\0\1", b"url \0\0\0\0"),
        lambda b: with_box(b, "moov/trak/tref", box("chap", b"\0\0\0\2")),
        lambda b: b + box("moov", b""),
    ],
)  # fmt: skip
def test_what_headers_cannot_tell_is_left_to_the_scan(
    change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = make_clip(tmp_path / "a.mp4")
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before
    assert by_headers(path) is None or path.read_bytes().endswith(b"moov")


def _without_its_first_group(path: Path, whole: Path, muxer: dict[str, str]) -> Path:
    with av.open(str(whole)) as source, av.open(str(path), "w", options=muxer) as container:
        pictures = container.add_stream_from_template(source.streams.video[0])
        packets = [p for p in source.demux(video=0) if p.dts is not None]
        second = [i for i, p in enumerate(packets) if p.is_keyframe][1]
        assert any((p.pts or 0) < (packets[second].pts or 0) for p in packets[second:])
        for packet in packets[second:]:
            packet.stream = pictures
            container.mux(packet)
    return path


def test_pictures_before_the_first_key_frame_are_left_to_the_scan(tmp_path: Path) -> None:
    """Whether they can be shown depends on what they refer to; unless an edit leaves them out."""
    whole = make_clip(tmp_path / "whole.mp4", codec="hevc", open_gop=True, bframes=4)
    agreed(_without_its_first_group(tmp_path / "a.mp4", whole, {}))
    assert by_headers(_without_its_first_group(tmp_path / "b.mp4", whole, {"use_editlist": "0"})) is None


def test_fragments_are_left_to_the_scan(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", muxer={"movflags": "frag_keyframe+empty_moov"})
    assert by_headers(path) is None
    assert film_of(probe_items(path)).frames == 48


def test_an_interrupted_copy_is_refused_in_the_words_of_the_scan(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", muxer={"movflags": "faststart"})
    path.write_bytes(path.read_bytes()[:-2000])
    said = by_headers(path)
    assert isinstance(said, str)
    assert "truncated: its frames reach" in said
    assert said == by_scan(path)


def test_a_first_packet_that_ffmpeg_leaves_out_is_left_to_the_scan(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.m4a", tones(1, 48_000), 48_000)
    body = path.read_bytes()
    agreed(path)
    begin = body.index(b"Lavc")
    path.write_bytes(body[:begin] + b"libfaac " + body[begin + 8 :])
    assert by_headers(path) is None


@pytest.mark.parametrize("packet", [0, -1])
def test_a_packet_without_sound_is_left_to_the_scan(packet: int, tmp_path: Path) -> None:
    path = encode(tmp_path / "a.m4a", tones(1, 48_000), 48_000)
    body = bytearray(path.read_bytes())
    agreed(path)
    sizes = content_of(bytes(body), f"{STBL}/stsz")
    last = int.from_bytes(sizes[-4:], "big")
    mdat = find(bytes(body), "mdat")[0]
    body[mdat[0] + 8 if packet == 0 else mdat[1] - last] = 0xE0  # the end of a packet, at its beginning
    path.write_bytes(body)
    assert by_headers(path) is None


def test_sound_that_is_cut_off_is_left_to_the_scan(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.m4a", tones(1, 48_000), 48_000)
    body = path.read_bytes()
    moov = find(body, "moov")[0]
    path.write_bytes(body[: find(body, "ftyp")[0][1]] + body[moov[0] : moov[1]] + box("mdat", b""))
    assert by_headers(path) is None


@pytest.mark.parametrize("name", ["stts", "ctts", "stss", "stsc", "stsz", "stco"])
@pytest.mark.parametrize("count", [1 << 31, (1 << 32) - 1, 1 << 24])
def test_counts_of_billions_take_no_memory(name: str, count: int, tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4")
    body = bytearray(path.read_bytes())
    at = find(bytes(body), f"{STBL}/{name}")[-1][0] + (16 if name == "stsz" else 12)
    body[at : at + 4] = count.to_bytes(4, "big")
    if name == "stsz":
        body[at - 4 : at] = b"\0\0\0\1"  # all of one byte: no table is needed
    path.write_bytes(body)
    by_headers(path)  # what is imported
    tracemalloc.start()
    try:
        assert by_headers(path) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 7, 0])
def test_a_movie_header_of_gigabytes_is_not_read(size: int, tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", muxer={"movflags": "faststart"})
    body = bytearray(path.read_bytes())
    at = find(bytes(body), "moov")[0][0]
    body[at : at + 4] = size.to_bytes(4, "big")
    path.write_bytes(body)
    with path.open("r+b") as file:
        file.truncate(5 << 30)  # sparse: the header could lie in it
    assert by_headers(path) is None


@pytest.mark.parametrize("where", ["moov/udta", "moov", "moov/trak/mdia/minf/stbl"])
def test_a_million_boxes_take_no_memory(where: str, tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4")
    body = path.read_bytes()
    content = content_of(body, where) if where != "moov/udta" else b""
    path.write_bytes(with_box(body, where, box("free", b"") * 1_000_000 + content))
    by_headers(path)
    tracemalloc.start()
    try:
        assert by_headers(path) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size + (1 << 20)


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
@pytest.mark.parametrize("units", [10, 1_000_000])
def test_a_sample_of_a_million_units_is_not_searched(codec: str, units: int, tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 1, codec=codec, bframes=0)
    body = path.read_bytes()
    at = int.from_bytes(content_of(body, f"{STBL}/stco")[8:12], "big")
    filler = {"h264": b"\0\0\0\1\x0c", "hevc": b"\0\0\0\3\x4c\1\x80", "av1": b"\x7a\0"}[codec] * units
    mdat = find(body, "mdat")[0]
    sample = filler + body[at : mdat[1]]
    body = with_box(body, f"{STBL}/stsz", b"\0\0\0\0" + len(sample).to_bytes(4, "big") + b"\0\0\0\1")
    head = body[: mdat[0]] + box("mdat", sample)
    body = head + body[mdat[1] :]
    path.write_bytes(with_box(body, f"{STBL}/stco", table([(mdat[0] + 8,)])))
    began = time.monotonic()
    assert (by_headers(path) is not None) == (units == 10)
    assert time.monotonic() - began < 1


def test_a_range_of_a_file_is_a_file(tmp_path: Path) -> None:
    silent = make_clip(tmp_path / "silent.mp4", 30)
    alone = with_sound(tmp_path / "a.mp4", silent, tones(1.2, 48_000, 2), 48_000, "aac")
    body = alone.read_bytes()
    packed = tmp_path / "packed.bin"
    packed.write_bytes(b"x" * 777 + body + b"y" * 3000)
    item = Item(kind="", path=str(packed), offset=777, size=len(body), mtime_ns=packed.stat().st_mtime_ns)
    found = headers.probe(item, body[:32])
    assert found is not None
    assert [(i.video, i.audio) for i in found] == [(i.video, i.audio) for i in agreed(alone)]


def test_ffmpeg_is_not_needed(tmp_path: Path) -> None:
    """Its import alone takes as long as reading a hundred headers. (A GIF may be a film: FFmpeg counts.)"""
    with_sound(tmp_path / "a.mp4", make_clip(tmp_path / "b.mp4", 30), tones(1.2, 48_000), 48_000, "aac")
    encode(tmp_path / "c.wav", tones(1, 8000), 8000)
    encode(tmp_path / "d.flac", tones(1, 8000), 8000)
    for suffix in ("jpg", "png", "webp", "bmp"):
        Pil.new("RGB", (16, 16)).save(tmp_path / f"e.{suffix}")
    code = (
        "import sys; from libhelix.media import probe_items\n"
        "for path in sys.argv[1:]: assert probe_items(path)\n"
        "assert 'av' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, *map(str, tmp_path.iterdir())], check=True)


def test_frames_that_do_not_decode_are_for_lint_to_tell(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4")
    body = bytearray(path.read_bytes())
    (sizes,) = (content_of(bytes(body), f"{STBL}/stsz"),)
    at = int.from_bytes(content_of(bytes(body), f"{STBL}/stco")[8:12], "big")
    for i in range(48):
        size = int.from_bytes(sizes[12 + 4 * i : 16 + 4 * i], "big")
        if i:
            body[at + 8 : at + size] = random.Random(i).randbytes(size - 8)
        at += size
    path.write_bytes(body)
    item, *_ = agreed(path)
    findings = examine(item)
    assert findings is not None
    assert [found.grade for found in findings] == ["broken"]


# ---- damage --------------------------------------------------------------------------------------------


def mutated(body: bytes, begin: int, end: int, draw: random.Random) -> bytes:
    """A copy with up to three numbers or bytes of a stretch changed."""
    changed = bytearray(body)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(begin, end - 4)
        kind = draw.random()
        if kind < 0.4:
            changed[at] = draw.randrange(256)
        elif kind < 0.7:
            at -= (at - begin) % 4
            value = int.from_bytes(changed[at : at + 4], "big") + draw.choice([-1, 1, 2, 512])
            changed[at : at + 4] = (value & 0xFFFFFFFF).to_bytes(4, "big")
        else:
            changed[at : at + 4] = draw.choice([0, 1, 255, 1 << 31, (1 << 32) - 1]).to_bytes(4, "big")
    return bytes(changed)


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1", "mpeg4", "vp9"])
def test_damaged_headers_never_say_something_else_than_the_scan(codec: str, tmp_path: Path) -> None:
    """But that its first picture does not decode: training and lint will tell that."""
    clip = make_clip(tmp_path / "silent.mp4", 24, codec=codec)
    if codec != "av1":  # which PyAV cannot copy
        clip = with_sound(tmp_path / "whole.mp4", clip, tones(1, 48_000), 48_000, "aac")
    whole = clip.read_bytes()
    begin, end = find(whole, "moov")[0]
    draw = random.Random(codec)
    said: Counter[bool] = Counter()
    path = tmp_path / "a.mp4"
    for _ in range(200):
        path.write_bytes(mutated(whole, begin, end, draw))
        ours = by_headers(path)
        said[ours is not None] += 1
        if ours is None:
            continue
        theirs = by_scan(path)
        if isinstance(theirs, str) and not isinstance(ours, str):
            assert "can be decoded" in theirs
        else:
            assert ours == theirs
    assert said[True] > 15
    assert said[False] > 40


# ---- pixels that are not square --------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["h264", "hevc", "mpeg4"])
@pytest.mark.parametrize("boxed", [True, False], ids=["in the container", "in the stream alone"])
def test_the_aspect_of_pixels_is_the_scans(tmp_path: Path, codec: str, boxed: bool) -> None:
    for number, aspect in enumerate(((1, 1), (4, 3), (16, 11), (40, 33), (17, 13), (3, 4))):
        path = tmp_path / f"{number}.mp4"
        _with_aspect(path, codec, Fraction(*aspect))
        if not boxed:
            path.write_bytes(path.read_bytes().replace(b"pasp", b"free"))
        if codec == "mpeg4" and aspect != (1, 1):
            assert by_headers(path) is None, "that is left to the scan"
            assert film_of(probe_items(path)).sar == aspect
        else:
            assert film_of(agreed(path)).sar == aspect


def _with_aspect(path: Path, codec: str, aspect: Fraction) -> None:
    encoder = {"h264": "libx264", "hevc": "libx265", "mpeg4": "mpeg4"}[codec]
    options = {"x265-params": "log-level=none:pools=none"} if codec == "hevc" else {}
    with av.open(str(path), "w") as out:
        stream: Any = out.add_stream(encoder, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        stream.codec_context.sample_aspect_ratio = aspect
        stream.codec_context.thread_count = 1
        for i in range(6):
            frame = av.VideoFrame.from_ndarray(np.full((64, 96, 3), 40 * i, np.uint8), format="rgb24")
            frame.pts = i
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
