"""The bicubic filter, against one of our own."""

from __future__ import annotations

import numpy as np
import pytest

from libhelix.media.resample import bicubic


def weights(had: int, wanted: int) -> np.ndarray:
    """[wanted, had]: Keys' cubic with a = -0.5, widened where it makes smaller."""
    scale = had / wanted
    x = (np.arange(had) + 0.5 - (np.arange(wanted) + 0.5)[:, None] * scale) / max(scale, 1)
    near, x = np.abs(x) < 1, np.abs(x)
    found = np.where(
        near, (1.5 * x - 2.5) * x * x + 1, np.where(x < 2, ((-0.5 * x + 2.5) * x - 4) * x + 2, 0)
    )
    made: np.ndarray = found / found.sum(1, keepdims=True)
    return made


def rounded(values: np.ndarray) -> np.ndarray:
    return np.clip(np.floor(values + 0.5), 0, 255)


@pytest.mark.parametrize(
    ("had", "wanted"),
    [((48, 64), (28, 56)), ((128, 96), (84, 84)), ((30, 40), (56, 84)), ((64, 50), (64, 28))],
)
def test_rows_then_columns_each_rounded(had: tuple[int, int], wanted: tuple[int, int]) -> None:
    # Black and white dots: the filter swings beyond both, and what is cut off between the passes shows.
    image = np.random.default_rng(0).integers(0, 2, (*had, 3)).astype(np.uint8) * 255
    rows = rounded(np.einsum("Ww,hwc->hWc", weights(had[1], wanted[1]), image))
    expected = rounded(np.einsum("Hh,hWc->HWc", weights(had[0], wanted[0]), rows))
    found = bicubic(image, *wanted)
    assert found.shape == (*wanted, 3)
    assert np.abs(found - expected).max() <= 1


def test_a_picture_of_that_size_is_not_touched() -> None:
    image = np.zeros((5, 6, 3), np.uint8)
    assert bicubic(image, 5, 6) is image
