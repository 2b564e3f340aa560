"""What the audio recipe declares, which stretch it takes, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from libhelix.errors import MediaError, UsageError
from libhelix.media import probe_items
from libhelix.plan.counts.audio import qwen2_audio
from libhelix.recipe import Descriptor, Item, Pack, Part, Rng, Sample, check_descriptor
from libhelix.recipes import Audio
from tests.clips import make_clip
from tests.sounds import Array, decode_all, encode, tones, with_sound

RATE = 44_100


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encode(tmp_path_factory.mktemp("sounds") / "a.flac", tones(3, RATE, 2), RATE)


@pytest.fixture(scope="module")
def sample(path: Path) -> Sample:
    return Sample(0, "a.flac", probe_items(path))


def run(recipe: Audio, sample: Sample, occurrence: int = 0) -> tuple[Descriptor, Array]:
    desc = check_descriptor(recipe.describe(sample, Rng(1, 0, 0, occurrence)), "Audio")
    (field,) = desc.fields
    out = np.full(field.shape, 77, field.dtype)
    recipe.fill(sample, desc, Part(0, 1, 1), {"audio": out})
    return desc, out


def test_a_whole_sound_by_default_is_mono_at_16_khz(sample: Sample) -> None:
    desc, out = run(Audio(), sample)
    assert out.shape == (48_000,)
    assert out.dtype == np.float32
    assert desc.costs == {"tokens": qwen2_audio(48_000).tokens, "samples": 48_000}
    assert desc.costs["tokens"] == 75
    assert desc.kind == "flac"
    assert 0.1 < np.abs(out).max() < 1


def test_at_its_own_rate_and_channels_it_is_what_the_file_holds(sample: Sample, path: Path) -> None:
    _, out = run(Audio(rate=RATE, channels=2), sample)
    np.testing.assert_array_equal(out, decode_all(path))
    _, out = run(Audio(rate=RATE, channels=2, dtype="int16"), sample)
    np.testing.assert_array_equal(out, np.rint(decode_all(path) * 32768).astype(np.int16))


@pytest.mark.parametrize("seconds", [1 / 3, 1.0, 2.5, 3.0])
@pytest.mark.parametrize("rate", [RATE, 16_000, 48_000])
def test_a_random_stretch_is_of_the_length_asked_for_and_lies_inside(
    sample: Sample, path: Path, seconds: float, rate: int
) -> None:
    recipe = Audio(rate=rate, channels=2, seconds=seconds, start="random", layout="stack")
    starts = set()
    for occurrence in range(5):
        desc, out = run(recipe, sample, occurrence)
        assert out.shape == (2, round(seconds * rate))
        start, stop = desc.draws
        assert 0 <= start < stop <= 3 * RATE
        starts.add(start)
        if rate == RATE:
            np.testing.assert_array_equal(out, decode_all(path)[:, start:stop])
        assert run(recipe, sample, occurrence)[0] == desc
    assert len(starts) > 1 or seconds == 3.0


def test_the_head_is_the_beginning(sample: Sample, path: Path) -> None:
    _, out = run(Audio(rate=RATE, channels=2, seconds=1), sample)
    np.testing.assert_array_equal(out, decode_all(path)[:, :RATE])


def test_a_short_sound_is_padded_with_silence_only_when_stacked(sample: Sample) -> None:
    for layout in ("pad", "pack", "ragged"):
        assert run(Audio(seconds=5, layout=layout), sample)[1].shape == (48_000,)
    _, out = run(Audio(seconds=5, layout="stack"), sample)
    assert out.shape == (80_000,)
    assert np.abs(out[:48_000]).max() > 0.1
    assert not out[48_000:].any()


def test_packs_lie_along_time(sample: Sample) -> None:
    for channels, axis in ((1, 0), (2, 1)):
        (field,) = run(Audio(channels=channels, layout="pack"), sample)[0].fields
        assert field.layout == Pack(axis=axis)


def test_a_long_sound_counts_piece_by_piece(sample: Sample) -> None:
    recipe = Audio()
    assert recipe._costs(30 * 16_000)["tokens"] == 750
    assert recipe._costs(75 * 16_000)["tokens"] == 2 * 750 + qwen2_audio(15 * 16_000).tokens
    assert recipe._costs(1)["tokens"] == 1
    assert Audio(rate=48_000)._costs(30 * 48_000)["tokens"] == 750


@pytest.mark.parametrize("caps", [{"tokens": 40}, {"samples": 9000}, {"tokens": 40, "samples": 9000}])
def test_a_sound_shrinks_to_the_most_that_fits(sample: Sample, caps: dict[str, int]) -> None:
    recipe = Audio(seconds=2.5, start="random")
    desc = recipe.shrink(sample, Rng(1, 0, 0), caps)
    assert desc is not None
    n = desc.costs["samples"]
    assert all(desc.costs[name] <= cap for name, cap in caps.items())
    assert any(recipe._costs(n + 1)[name] > cap for name, cap in caps.items())
    assert desc == recipe.shrink(sample, Rng(1, 0, 0), caps)
    assert recipe.shrink(sample, Rng(1, 0, 0), {"tokens": 0}) is None
    assert recipe.shrink(sample, Rng(1, 0, 0), {"pages": 0}) == recipe.describe(sample, Rng(1, 0, 0))
    assert Audio(seconds=1, layout="stack").shrink(sample, Rng(1, 0, 0), caps) is None


def test_a_video_with_sound_is_heard_and_a_silent_one_is_not(tmp_path: Path) -> None:
    silent = make_clip(tmp_path / "silent.mp4", 25)
    both = with_sound(tmp_path / "a.mp4", silent, tones(1, 48_000, 2), 48_000, "aac")
    desc, out = run(Audio(), Sample(0, "a.mp4", probe_items(both)))
    assert out.shape == (16_000,)
    assert desc.kind == "aac"
    with pytest.raises(
        MediaError, match=r"silent\.mp4: the recipe needs an item of kind audio, .* has video"
    ):
        run(Audio(), Sample(0, "silent.mp4", probe_items(silent)))
    unknown = Item(kind="audio", path="x", offset=0, size=1, mtime_ns=0)
    with pytest.raises(MediaError, match="run helixctl index again"):
        run(Audio(), Sample(0, "x", (unknown,)))


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"rate": 0}, "rate=0"),
        ({"rate": 16_000.0}, "rate=16000.0"),
        ({"channels": 65}, "channels=65"),
        ({"dtype": "float16"}, "float32"),
        ({"seconds": 0}, "seconds=0"),
        ({"seconds": float("nan")}, "seconds=nan"),
        ({"start": "tail"}, "head"),
        ({"layout": "row"}, "stack, pad, pack, ragged"),
        ({"layout": "stack"}, "need seconds="),
        ({"start": "random"}, "need seconds="),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_written(how: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Audio(**how)


def test_making_one_loads_no_ffmpeg() -> None:
    import subprocess
    import sys

    code = "import sys; from libhelix.recipes import Audio; Audio(); print('av' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
