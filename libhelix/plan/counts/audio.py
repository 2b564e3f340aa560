"""Qwen2-Audio: mel frames of the Whisper features, and tokens."""

from __future__ import annotations

import msgspec

from libhelix.errors import MediaError

RATE_HZ = 16_000
HOP = 160
"""Samples per mel frame."""
MOST_MEL_FRAMES = 3000
"""30 seconds: the rest is cut off, and less is padded, so that Whisper's encoder always has 1500 frames."""


class AudioCounts(msgspec.Struct, frozen=True):
    """Without padding: `mel_frames` at 100 Hz, `encoder_frames` at 50 Hz and `tokens` at 25 Hz.

    The begin and end tokens around the audio are not counted.
    """

    mel_frames: int
    encoder_frames: int
    tokens: int


def qwen2_audio(samples: int) -> AudioCounts:
    """The counts of so many samples at 16 kHz.

    m = min(ceil(samples / 160), 3000) mel frames, a = (m - 1) // 2 + 1 encoder frames, (a - 2) // 2 + 1
    tokens; two mel frames or fewer make no token. Source: transformers models/qwen2_audio/
    processing_qwen2_audio.py and models/whisper/feature_extraction_whisper.py. Raises MediaError for none.
    """
    if samples < 1:
        raise MediaError(f"audio of {samples} samples has none; leave it out of the index")
    mel = min(-(-samples // HOP), MOST_MEL_FRAMES)
    encoder = (mel - 1) // 2 + 1
    return AudioCounts(mel, encoder, (encoder - 2) // 2 + 1)
