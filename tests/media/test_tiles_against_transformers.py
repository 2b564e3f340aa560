"""Tiles equal those of the image processors of transformers: the Pillow ones bit by bit, torchvision's within
two levels, and one almost everywhere."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from libhelix.media import tiles
from libhelix.media.tiles import Array
from libhelix.plan.counts import internvl, llava
from tests.vlms import need_torchvision, rows_first

pytest.importorskip("transformers", reason="transformers, the independent oracle, is missing")
need_torchvision()

ROUNDS = 40


@pytest.fixture(autouse=True)
def before_pillow_13(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_first(monkeypatch)


def _processor(module: str, name: str, **settings: Any) -> Any:
    found = importlib.import_module(f"transformers.models.{module}")
    return getattr(found, name)(do_rescale=False, do_normalize=False, **settings)


def _pictures(seed: int, rounds: int) -> list[Array]:
    """Of random sizes: coarse noise, which has edges, and fine noise."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(rounds):
        height, width = (int(n) for n in rng.integers(3, 700, 2))
        coarse = rng.integers(0, 256, (height // 9 + 1, width // 9 + 1, 3), np.uint8)
        picture = coarse.repeat(9, axis=0).repeat(9, axis=1)[:height, :width]
        made.append(picture ^ rng.integers(0, 32, picture.shape, np.uint8))
    return made


def _compare(ours: Array, theirs: Any, pil: bool) -> None:
    difference = np.abs(ours.astype(int) - np.asarray(theirs).astype(int))
    assert difference.max() <= (0 if pil else 2)
    assert (difference > 1).mean() < 1e-4


@pytest.mark.parametrize("pil", [True, False])
def test_tiles_of_internvl(pil: bool) -> None:
    name = "image_processing_pil_got_ocr2" if pil else "image_processing_got_ocr2"
    theirs = _processor(
        f"got_ocr2.{name}",
        "GotOcr2ImageProcessorPil" if pil else "GotOcr2ImageProcessor",
        size={"height": 448, "width": 448},
        crop_to_patches=True,
    )
    for picture in _pictures(1, ROUNDS):
        counts = internvl.image(*picture.shape[:2])
        ours = np.empty((counts.tiles, 3, 448, 448), np.uint8)
        tiles.grid(picture, counts.columns, counts.rows, ours, "exact")
        _compare(ours, theirs(picture, input_data_format="channels_last")["pixel_values"], pil)


@pytest.mark.parametrize("pil", [True, False])
def test_crops_of_llava(pil: bool) -> None:
    name = "image_processing_pil_llava_onevision" if pil else "image_processing_llava_onevision"
    theirs = _processor(
        f"llava_onevision.{name}", f"LlavaOnevisionImageProcessor{'Pil' if pil else ''}", image_mean=[0.5] * 3
    )
    for picture in _pictures(2, ROUNDS):
        counts = llava.anyres(*picture.shape[:2])
        ours = np.empty((counts.crops, 3, 384, 384), np.uint8)
        tiles.anyres(picture, counts.rows, counts.columns, ours, "exact")
        found = theirs([picture], input_data_format="channels_last")
        _compare(ours, found["pixel_values"][0], pil)
        assert tuple(int(n) for n in found["image_sizes"][0]) == picture.shape[:2]


@pytest.mark.parametrize("pil", [True, False])
def test_squares_of_llava(pil: bool) -> None:
    name = "image_processing_pil_llava_onevision" if pil else "image_processing_llava_onevision"
    theirs = _processor(
        f"llava_onevision.{name}", f"LlavaOnevisionImageProcessor{'Pil' if pil else ''}", image_mean=[0.5] * 3
    )
    pictures = _pictures(3, ROUNDS)
    found = theirs([pictures], input_data_format="channels_last")["pixel_values"]
    for picture, crops in zip(pictures, found):
        ours = np.empty((3, 384, 384), np.uint8)
        tiles.square(picture, (127, 127, 127), ours, "exact")
        _compare(ours, crops[0], pil)
