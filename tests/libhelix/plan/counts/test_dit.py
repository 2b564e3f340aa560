"""Video diffusion transformers: the published totals, and sizes that no latent fits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhelix.errors import MediaError, UsageError
from libhelix.plan.counts import dit

from .shapes import some


@pytest.mark.parametrize(
    ("height", "width", "frames", "tokens"),
    [
        pytest.param(480, 832, 81, 32_760, id="wan-480p"),
        pytest.param(720, 1280, 81, 75_600, id="wan-720p"),
        pytest.param(720, 1280, 129, 118_800, id="hunyuan-720p"),
        pytest.param(256, 256, 129, 8_448, id="open-sora-256px"),
        pytest.param(768, 768, 129, 76_032, id="open-sora-768px"),
    ],
)
def test_published_totals(height: int, width: int, frames: int, tokens: int) -> None:
    assert dit.causal(height, width, frames).tokens == tokens


def test_the_latent_of_a_causal_vae_is_4_by_8_by_8_smaller() -> None:
    assert dit.causal(480, 832, 81) == dit.LatentCounts(21, 60, 104, 32_760)
    assert dit.causal(480, 832, 1).t == 1


def test_the_high_compression_autoencoder_has_a_token_per_latent() -> None:
    assert dit.dc_ae(768, 768, 128) == dit.LatentCounts(32, 24, 24, 18_432)
    assert dit.dc_ae(256, 256, 1).tokens == 64


@pytest.mark.parametrize(("frames", "kept"), [(80, 77), (82, 81), (4, 1), (33, 33), (1, 1)])
def test_frames_are_cut_to_4k_and_one(frames: int, kept: int) -> None:
    assert dit.frames_4k1(frames) == kept


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: dit.frames_4k1(0), MediaError),
        (lambda: dit.causal(0, 64, 5), MediaError),
        (lambda: dit.causal(64, 64, 0), MediaError),
        (lambda: dit.causal(64, 64, 80), UsageError),
        (lambda: dit.causal(64, 72, 81), UsageError),
        (lambda: dit.dc_ae(64, 48, 16), UsageError),
        (lambda: dit.dc_ae(64, 64, 129), UsageError),
    ],
)
def test_impossible_input_is_refused(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


@some
@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 2000))
def test_a_quarter_of_a_latent_frame_is_tokens(rows: int, columns: int, frames: int) -> None:
    kept = dit.frames_4k1(frames)
    counts = dit.causal(16 * rows, 16 * columns, kept)
    assert frames - 3 <= kept <= frames
    assert 4 * counts.tokens == counts.t * counts.h * counts.w
    assert counts.tokens < dit.causal(16 * rows, 16 * columns, kept + 4).tokens
