"""Log-mel spectrograms equal the definition, computed one frequency and one frame at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

from libhelix.media.mel import WINDOW, log_mel, mel_filters
from libhelix.plan.counts.audio import HOP
from tests.sounds import tones

Array = np.ndarray[Any, np.dtype[Any]]


def made(sound: Array, frames: int, bins: int = 128) -> Array:
    out = np.full((bins, frames), 77, np.float32)
    log_mel(sound, out)
    return out


def by_definition(sound: Array, frames: int) -> Array:
    """The sound as long as the frames, mirrored at its ends; a sum over samples for every frequency."""
    whole = np.zeros(frames * HOP)
    whole[: len(sound)] = sound[: len(whole)]
    mirrored = np.concatenate([whole[WINDOW // 2 : 0 : -1], whole, whole[-2 : -WINDOW // 2 - 2 : -1]])
    t = np.arange(WINDOW)
    hann = np.sin(np.pi * t / WINDOW) ** 2
    waves = np.exp(-2j * np.pi * np.outer(np.arange(WINDOW // 2 + 1), t) / WINDOW)
    log = np.empty((128, frames))
    for i in range(frames):
        power = np.abs(waves @ (hann * mirrored[i * HOP : i * HOP + WINDOW])) ** 2
        log[:, i] = np.log10(np.maximum(mel_filters(128).T.astype(float) @ power, 1e-10))
    made: Array = (np.maximum(log, log.max() - 8) + 4) / 4
    return made


@pytest.mark.parametrize("samples", [1, 199, 200, 201, 1500, 10 * HOP - 41, 10 * HOP, 10 * HOP + 7])
def test_a_spectrogram_equals_its_definition(samples: int) -> None:
    (sound,) = tones(samples / 16_000, 16_000)
    assert len(sound) == samples
    np.testing.assert_allclose(made(sound, 10), by_definition(sound, 10), atol=2e-6)


def test_many_blocks_of_frames_equal_one_at_a_time() -> None:
    (sound,) = tones(3.1, 16_000)
    np.testing.assert_allclose(made(sound, 300), by_definition(sound, 300), atol=2e-6)


def test_silence_and_what_follows_a_sound_are_the_floor() -> None:
    assert (made(np.zeros(5, np.float32), 40) == -1.5).all()
    loud = made(tones(0.1, 16_000)[0], 40)
    heard = -(-(1600 + WINDOW // 2) // HOP)
    assert (loud[:, heard:] == loud.min()).all()
    assert loud.min() == pytest.approx(max(loud.max() - 2, -1.5))


def test_a_tone_lies_in_the_bin_of_its_frequency() -> None:
    t = np.arange(16_000) / 16_000
    for hertz in (400, 1000, 3120):
        found = made(np.sin(2 * np.pi * hertz * t).astype(np.float32), 50)
        assert found[:, 25].argmax() == mel_filters(128)[hertz // 40].argmax()


def test_filters_are_triangles_of_one_area() -> None:
    for bins in (80, 128):
        filters = mel_filters(bins)
        assert filters.shape == (201, bins)
        assert ((filters > 0).sum(axis=1) <= 2).all()
        wide = (filters > 0).sum(axis=0) > 5
        np.testing.assert_allclose(filters[:, wide].sum(axis=0) * 40, 1, atol=0.02)


def test_a_strided_target_is_filled() -> None:
    (sound,) = tones(0.5, 16_000)
    base = np.full((128, 100), 5, np.float32)
    log_mel(sound, base[:, ::2])
    np.testing.assert_array_equal(base[:, ::2], made(sound, 50))
    assert (base[:, 1::2] == 5).all()


def test_a_spectrogram_is_the_same_in_processes_with_more_and_less_threads() -> None:
    code = """
        import sys, zlib
        import numpy as np
        from libhelix.media.mel import log_mel
        sound = np.random.default_rng(0).standard_normal(5 * 16_000).astype(np.float32)
        log_mel(sound, out := np.empty((128, 500), np.float32))
        print(zlib.crc32(out.tobytes()))
    """
    found = set()
    for threads in ("1", "2"):
        environ = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        command = [sys.executable, "-c", textwrap.dedent(code)]
        found.add(subprocess.run(command, env=environ, capture_output=True, check=True, timeout=60).stdout)
    assert len(found) == 1
