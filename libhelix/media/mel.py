"""Log-mel spectrograms, as Whisper's feature extractor makes them of 16 kHz sounds.

Source: transformers, models/whisper/feature_extraction_whisper.py and audio_utils.py, whose numpy path takes
one frame a time; here a block of frames is transformed at once, and frames of silence are not at all.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from libhelix.plan.counts.audio import HOP, RATE_HZ

Array = np.ndarray[Any, np.dtype[Any]]

WINDOW = 400
"""Samples of one Fourier transform: 25 ms."""
_HALF = WINDOW // 2
_BLOCK = 256
"""Frames transformed at once: what they need stays in the cache."""
_SILENCE = -10.0
"""Decades of the least power there is."""
_DECADES = 8.0
"""What lies further below the loudest is raised to there."""
_BREAK_HZ = 1000.0
_HZ_PER_MEL = 200 / 3
_BREAK_MEL = _BREAK_HZ / _HZ_PER_MEL
_LOG_STEP = math.log(6.4) / 27


def log_mel(sound: Array, out: Array) -> None:
    """Write the spectrogram of `sound`, float [n] at 16 kHz, to `out`, float32 [bins, frames].

    A frame is 160 samples. Silence follows a shorter sound, and what exceeds the frames is cut off. Values
    are (log10(power) + 4) / 4, from 8 decades below the loudest on.
    """
    bins, frames = out.shape
    padded, heard = _padded(sound, frames)
    window, (places, weights, begins) = _window(), _bands(bins)
    for begin in range(0, heard, _BLOCK):
        end = min(begin + _BLOCK, heard)
        samples = padded[begin * HOP : (end - 1) * HOP + WINDOW]
        # In double precision: what is 8 decades weaker than its neighbours drowns in the rounding of floats.
        spectrum = np.fft.rfft(sliding_window_view(samples, WINDOW)[::HOP] * window)
        power = np.asarray(spectrum.real**2 + spectrum.imag**2, np.float32)
        # A product of matrices depends on how many threads BLAS has, and so on the process.
        mel = np.add.reduceat(power[:, places] * weights, begins, axis=1)
        out[:, begin:end] = np.log10(np.maximum(mel, np.float32(10**_SILENCE))).T
    out[:, heard:] = _SILENCE
    np.maximum(out, max(out[:, :heard].max() - _DECADES, _SILENCE), out=out)
    out += np.float32(4)
    out *= np.float32(0.25)


@lru_cache(maxsize=4)
def mel_filters(bins: int) -> Array:
    """float32 [201, bins]: the weight of each frequency in each bin, 0 to 8000 Hz.

    Triangles of equal area on Slaney's scale: linear below 1000 Hz, logarithmic above.
    """
    ends = _hertz(np.linspace(0.0, _mel(RATE_HZ / 2), bins + 2))
    frequencies = np.linspace(0, RATE_HZ // 2, WINDOW // 2 + 1)[:, np.newaxis]
    width = np.diff(ends)
    rising = (frequencies - ends[:-2]) / width[:-1]
    falling = (ends[2:] - frequencies) / width[1:]
    triangles = np.maximum(0, np.minimum(rising, falling))
    return np.asarray(triangles * (2 / (ends[2:] - ends[:-2])), np.float32)


@lru_cache(maxsize=4)
def _bands(bins: int) -> tuple[Array, Array, Array]:
    """The frequencies that the bins take, bin after bin, their weights there, and where each bin begins."""
    filters = mel_filters(bins)
    found = (np.flatnonzero(column) for column in filters.T)
    # A bin that lies between two frequencies takes one with a weight of 0.
    taken = [of if len(of) else np.zeros(1, np.intp) for of in found]
    weights = [filters[of, i] for i, of in enumerate(taken)]
    begins = np.cumsum([0, *map(len, taken[:-1])])
    return np.concatenate(taken), np.concatenate(weights), begins


@lru_cache(maxsize=1)
def _window() -> Array:
    """A Hann window of as many samples, for periodic sounds."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)


def _padded(sound: Array, frames: int) -> tuple[Array, int]:
    """The sound with half a window before it, and how many frames hear it.

    Before its beginning, and behind the end of the last frame, the sound is mirrored.
    """
    whole = frames * HOP
    n = min(len(sound), whole)
    heard = min(frames, -(-(n + _HALF) // HOP))
    padded = np.zeros(max((heard - 1) * HOP + WINDOW, 2 * _HALF + 1))
    fits = min(n, len(padded) - _HALF)
    padded[_HALF : _HALF + fits] = sound[:fits]
    padded[:_HALF] = padded[2 * _HALF : _HALF : -1]
    beyond = len(padded) - _HALF - whole
    if beyond > 0:
        last = _HALF + whole - 1
        padded[last + 1 :] = padded[last - beyond : last][::-1]
    return padded, heard


def _mel(hertz: float) -> float:
    """Of a frequency above the break."""
    return _BREAK_MEL + math.log(hertz / _BREAK_HZ) / _LOG_STEP


def _hertz(mel: Array) -> Array:
    above = _BREAK_HZ * np.exp(_LOG_STEP * (np.maximum(mel, _BREAK_MEL) - _BREAK_MEL))
    return np.where(mel < _BREAK_MEL, mel * _HZ_PER_MEL, above)
