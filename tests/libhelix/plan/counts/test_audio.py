"""Qwen2-Audio: 25 tokens a second, up to 30 seconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhelix.errors import MediaError
from libhelix.plan.counts import audio

from .shapes import some


def test_a_second_is_100_mel_frames_and_25_tokens() -> None:
    assert audio.qwen2_audio(audio.RATE_HZ) == audio.AudioCounts(100, 50, 25)


def test_thirty_seconds_are_all_that_is_heard() -> None:
    assert audio.qwen2_audio(30 * audio.RATE_HZ) == audio.AudioCounts(3000, 1500, 750)
    assert audio.qwen2_audio(3600 * audio.RATE_HZ).tokens == 750


def test_the_shortest_sounds_make_no_token() -> None:
    assert [audio.qwen2_audio(samples).tokens for samples in (1, 160, 320, 321)] == [0, 0, 0, 1]


def test_no_samples_are_refused() -> None:
    with pytest.raises(MediaError, match="0 samples"):
        audio.qwen2_audio(0)


@some
@given(st.integers(1, 600_000), st.integers(0, 50_000))
def test_more_samples_never_make_fewer_tokens(samples: int, more: int) -> None:
    less, longer = audio.qwen2_audio(samples), audio.qwen2_audio(samples + more)
    assert less.tokens <= longer.tokens <= 750
    assert less.mel_frames <= longer.mel_frames <= 3000
