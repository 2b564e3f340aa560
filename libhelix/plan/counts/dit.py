"""Latents and tokens of video diffusion transformers.

causal   Wan 2.1 (wan/text2video.py), HunyuanVideo (hyvideo/inference.py, "884") and Open-Sora 2
         (opensora/utils/sampling.py, is_causal_vae): a VAE of 4x8x8, patches of 1x2x2
dc_ae    Open-Sora 2 with the high-compression autoencoder f32t4 of 4x32x32, patches of 1x1x1
"""

from __future__ import annotations

import msgspec

from libhelix.errors import UsageError
from libhelix.plan.counts._numbers import check_frames, check_picture


class LatentCounts(msgspec.Struct, frozen=True):
    """The latent's size (`t`, `h`, `w`), without channels, and the transformer's `tokens`."""

    t: int
    h: int
    w: int
    tokens: int


def frames_4k1(frames: int) -> int:
    """The most frames of these that a causal VAE takes: 4k + 1, so (frames - 1) // 4 * 4 + 1.

    Source: musubi-tuner's dataset code. Raises MediaError for none.
    """
    check_frames(frames)
    return (frames - 1) // 4 * 4 + 1


def causal(height: int, width: int, frames: int) -> LatentCounts:
    """Latent ((F - 1) / 4 + 1, H / 8, W / 8) and ((F - 1) / 4 + 1) * (H / 16) * (W / 16) tokens.

    Padding for sequence parallelism is not counted. Raises UsageError unless F = 4k + 1 and H and W are
    multiples of 16: there the three codes round in different directions.
    """
    check_frames(frames)
    _check_multiples(height, width, 16)
    if frames % 4 != 1:
        raise UsageError(f"{frames} frames are not 4k + 1; take {frames_4k1(frames)} (frames_4k1)")
    t = (frames - 1) // 4 + 1
    return LatentCounts(t, height // 8, width // 8, t * (height // 16) * (width // 16))


def dc_ae(height: int, width: int, frames: int) -> LatentCounts:
    """Latent (F / 4, H / 32, W / 32) with a token each; one frame makes t = 1.

    Raises UsageError unless F is 1 or a multiple of 4, and H and W are multiples of 32.
    """
    check_frames(frames)
    _check_multiples(height, width, 32)
    if frames > 1 and frames % 4:
        raise UsageError(f"{frames} frames are no multiple of 4; take {max(1, frames // 4 * 4)}")
    t, h, w = max(1, frames // 4), height // 32, width // 32
    return LatentCounts(t, h, w, t * h * w)


def _check_multiples(height: int, width: int, of: int) -> None:
    check_picture(height, width)
    if height % of or width % of:
        raise UsageError(f"{width}x{height} pixels are no multiples of {of}; scale or crop to such a size")
