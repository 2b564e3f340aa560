"""Every family's frames, by the integers that its own code gives."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhelix.errors import MediaError, UsageError
from libhelix.plan import frames as f

totals = st.integers(1, 20_000)
rates = st.sampled_from([1.0, 2.0, 8.0, 16.0, 24.0])
fpses = st.sampled_from([5.0, 15.0, 23.976, 24.0, 25.0, 29.97, 30.0, 50.0, 59.94])


def test_llava_video() -> None:
    assert f.llava_video(300, 30, bound=8, force=True) == (0, 42, 85, 128, 170, 213, 256, 299)
    assert f.llava_video(300, 30) == tuple(range(0, 300, 30))
    assert f.llava_video(300, 29.97, bound=32) == tuple(range(0, 300, 30))
    assert f.llava_video(10, 1, rate=4) == tuple(range(10))  # a stride of 0 elsewhere


def test_internvl() -> None:
    assert f.internvl(300, 8) == (18, 55, 93, 130, 168, 205, 243, 280)
    assert f.internvl(7, 8) == (0, 1, 2, 3, 4, 5, 6, 6)
    assert f.internvl_eval(300, 8)[-3:] == (205, 242, 280)
    assert f.internvl_processor(300, 8) == (18, 56, 93, 131, 168, 206, 243, 281)


@pytest.mark.parametrize(("frames", "kept"), [(80, 77), (82, 81), (4, 1), (33, 33), (31, 29)])
def test_causal_autoencoders_take_4k_plus_1_frames(frames: int, kept: int) -> None:
    assert f.whole_groups(frames) == kept


def test_ltx_takes_8k_plus_1_frames() -> None:
    assert [f.whole_groups(n, 8) for n in (1, 8, 9, 120, 121)] == [1, 1, 9, 113, 121]


def test_a_film_at_16_frames_a_second() -> None:
    # tdrussell/diffusion-pipe 391: 101 frames at 23.98 become 67.
    assert len(f.at_rate(101, 23.976, 16, "musubi")) == 67
    assert len(f.at_rate(101, 23.976, 16, "diffsynth")) == 67
    assert f.at_rate(10, 30, 15, "open-sora") == (0, 2, 4, 6, 8)
    assert f.at_rate(10, 30, 16, "open-sora") == (0, 2, 4, 6, 8)
    assert f.at_rate(6, 24, 24.05, "open-sora-plan") == (0, 1, 2, 3, 4, 5)


def test_clips() -> None:
    assert f.clips(10, 4, "head") == ((0, 1, 2, 3),)
    assert [c[0] for c in f.clips(10, 4, "chunk")] == [0, 4]
    assert [c[0] for c in f.clips(10, 4, "slide", stride=3)] == [0, 3, 6]
    assert [c[0] for c in f.clips(10, 4, "uniform", count=3)] == [0, 3, 6]
    with pytest.raises(MediaError, match="has no clip of 11"):
        f.clips(10, 11, "head")


@given(totals, fpses, rates, st.sampled_from(["musubi", "diffsynth", "open-sora-plan", "open-sora"]))
def test_frames_exist_and_never_go_back(total: int, fps: float, rate: float, rule: f.Resample) -> None:
    for chosen in (f.at_rate(total, fps, rate, rule), f.internvl_at_rate(total, fps, rate)):
        assert chosen
        assert all(0 <= frame < total for frame in chosen)
        assert list(chosen) == sorted(chosen)


@given(totals, st.integers(1, 512), fpses)
def test_rules_equal_the_numpy_that_the_families_write(total: int, n: int, fps: float) -> None:
    assert f.llava_video(total, fps, bound=n, force=True) == tuple(
        np.linspace(0, total - 1, n, dtype=int).tolist()
    )
    edges = np.linspace(0, total, min(n, total) + 1).astype(int)
    middles = [(int(a) + int(b) - 1) // 2 for a, b in pairwise(edges)]
    assert f.internvl(total, n) == tuple(middles + middles[-1:] * (n - len(middles)))
    drawn = f.internvl(total, n, lambda low, high: high - 1)
    assert all(a <= frame < max(b, a + 1) for frame, a, b in zip(drawn, edges[:-1], edges[1:]))


@given(totals, fpses, st.sampled_from([0.5, 1.0, 2.0, 3.0]))
def test_frames_at_a_rate_equal_internvls_arange(total: int, fps: float, rate: float) -> None:
    delta = 1 / rate
    seconds = np.arange(delta / 2, total / fps + delta / 2, delta)
    expected = [int(e) for e in np.around(seconds * fps) if e < total]
    assert f.internvl_at_rate(total, fps, rate) == (tuple(expected) or (0,))


def test_rules_without_sense_are_usage_errors() -> None:
    for wrong in (
        lambda: f.at_rate(10, 25, 10, "ours"),  # type: ignore[arg-type]
        lambda: f.clips(10, 2, "tail"),  # type: ignore[arg-type]
        lambda: f.llava_video(10, 25, rate=0),
    ):
        with pytest.raises(UsageError):
            wrong()
    with pytest.raises(MediaError, match="has none"):
        f.internvl(0, 8)
