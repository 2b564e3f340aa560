"""Qwen2-Audio: conversations with sounds as log-mel spectrograms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from msgspec.structs import force_setattr

from libhelix.errors import MediaError, UsageError
from libhelix.media.jsonfile import warn_of_defaults
from libhelix.plan.counts.audio import HOP, MOST_MEL_FRAMES, RATE_HZ, AudioCounts, qwen2_audio
from libhelix.recipe import (
    AudioInfo,
    Descriptor,
    Field,
    Item,
    Pack,
    Part,
    Recipe,
    Rng,
    Sample,
    merge_segments,
)
from libhelix.recipes.folder import check_checkpoint, processor_of
from libhelix.recipes.talk import (
    Spoken,
    TextLayout,
    check_choice,
    of_the_recipe,
    script,
    text_us,
    write_text,
)

_MARK = "<|AUDIO|>"
_MARKS = {"audio": _MARK}
_BINS = 128
_MOST_SAMPLES = HOP * MOST_MEL_FRAMES
_AHEAD = 1600
"""Samples decoded behind the 30 seconds, so that changing the rate is what it is in the whole sound."""
_US_PER_MEL_FRAME = 3


class Qwen2Audio(Recipe, frozen=True):
    """A conversation for Qwen2-Audio, in the words of a checkpoint's chat template.

    input_ids, labels        int64 [tokens]; labels are -100 but for what the assistant says
    position_ids             int64 [tokens], where packed; else attention_mask
    input_features           float32 [sounds, 128, 3000], packed: the log-mel spectrogram of each
    feature_attention_mask   int32 [sounds, 3000], packed: 1 where there is sound

    Sounds become mono at 16 kHz; of more than 30 seconds the first are taken, as the processor does. What a
    video sounds like is a sound only where the text has <audio> for it.

    Costs: tokens, targets, sounds.
    """

    checkpoint: str
    layout: TextLayout = "pack"

    def __post_init__(self) -> None:
        force_setattr(self, "checkpoint", check_checkpoint("Qwen2Audio", self.checkpoint))
        check_choice("Qwen2Audio", "layout", self.layout, ("pack", "pad"))
        warn_of_defaults(
            self.checkpoint, "feature_extractor", f"Qwen2Audio takes spectrograms to have {_BINS} bins"
        )
        bins = processor_of(self.checkpoint, "feature_extractor").get("feature_size", _BINS)
        if bins != _BINS:
            raise UsageError(
                f"Qwen2Audio(checkpoint={self.checkpoint!r}): its spectrograms have {bins!r} bins, not "
                f"{_BINS}; it is another model's checkpoint"
            )

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """The tokens, and how much is heard of each sound."""
        del rng
        with of_the_recipe("Qwen2Audio"):
            told = script(self.checkpoint, sample, _MARKS)
            sounds = tuple(_heard(slot.item) for slot in told.slots)
            said, fields = told.read([((_MARK, one.counts.tokens),) for one in sounds], self.layout)
        n = len(sounds)
        cuts, us = merge_segments(range(1, n), [_us(one) for one in sounds] or [0])
        return Descriptor(
            fields=(
                *fields,
                Field("input_features", "float32", (n, _BINS, MOST_MEL_FRAMES), Pack(), rows_per_unit=1),
                Field("feature_attention_mask", "int32", (n, MOST_MEL_FRAMES), Pack(), rows_per_unit=1),
            ),
            units=max(1, n),
            cuts=cuts,
            segment_us=(us[0] + text_us(sample), *us[1:]),
            costs={**said.costs, "sounds": n},
            draws=_Drawn(said, sounds),
            kind=sounds[0].info.codec if sounds else "text",
        )

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """Decode the part's sounds, and with the first part write the tokens."""
        from libhelix.media.mel import log_mel
        from libhelix.media.pcm import decode

        del sample
        drawn: _Drawn = desc.draws
        if part.first:
            write_text(drawn.said, out)
        rows = zip(out["input_features"], out["feature_attention_mask"])
        for one, (features, mask) in zip(drawn.sounds[part.begin : part.end], rows):
            sound = np.empty(one.samples, np.float32)
            decode(one.item, sound, stop=one.stop, rate=RATE_HZ)
            log_mel(sound, features)
            mask[: one.counts.mel_frames] = 1
            mask[one.counts.mel_frames :] = 0


class _Sound(NamedTuple):
    """A sound: decoded up to `stop` at its own rate, `samples` of it at 16 kHz are heard."""

    item: Item
    info: AudioInfo
    stop: int
    samples: int
    counts: AudioCounts


class _Drawn(NamedTuple):
    said: Spoken
    sounds: tuple[_Sound, ...]


def _heard(item: Item) -> _Sound:
    info = item.audio
    if info is None:
        raise MediaError(f"{item.path}: indexed without its sound's length; run helixctl index again")
    samples = min(-(-info.samples * RATE_HZ // info.rate), _MOST_SAMPLES)
    stop = min(info.samples, -(-(samples + _AHEAD) * info.rate // RATE_HZ))
    counts = qwen2_audio(samples)
    if counts.tokens < 1:
        raise MediaError(f"{item.path}: {samples} samples at 16 kHz make no token; leave it out of the index")
    return _Sound(item, info, stop, samples, counts)


def _us(sound: _Sound) -> int:
    from libhelix.media.audio import decode_cost_us

    us = decode_cost_us(sound.info, 0, sound.stop, RATE_HZ, 1)
    return us + sound.counts.mel_frames * _US_PER_MEL_FRAME
