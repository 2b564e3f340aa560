"""A sheet of pictures, waveforms and texts as a PNG, pixel by pixel: pictures are not smoothed."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from libhelix.ctl.parts import Pictures, Shown, Sound, Words
from libhelix.ctl.plotting import new_figure

Array = np.ndarray[Any, np.dtype[Any]]

_DPI = 100
_POINTS = 9
_CHARACTER, _LINE = 7.55, 16
"""Pixels of a monospaced character of that size, and of a line."""
_WIDTH, _MARGIN, _GAP = 1280, 16, 8
_WIDEST = 320
"""Of a picture; wider ones are shown smaller by a whole number."""
_MOST_PICTURES = 64
_MOST_CHANNELS = 8
_MOST_LINES = 60
_WAVE_HEIGHT = 96
_INK, _PAPER, _FAINT = (68, 119, 170), 255, 225
_FAMILIES = ("DejaVu Sans Mono", "Noto Sans Mono CJK SC", "Noto Sans CJK SC", "Noto Sans CJK JP")


@dataclass
class _Sheet:
    """Where things go, in pixels from the top left."""

    at: int = _MARGIN
    images: list[tuple[int, int, Array]] = field(default_factory=list)
    lines: list[tuple[int, int, str, str]] = field(default_factory=list)

    def write(self, text: str, color: str = "black", x: int = _MARGIN) -> None:
        self.lines.append((x, self.at, text, color))
        self.at += _LINE


def draw(title: str, parts: Sequence[Shown], file: IO[bytes]) -> None:
    """Write the sheet. Raises UsageError where matplotlib is missing."""
    sheet = _Sheet()
    for line in _wrapped(title, _MOST_LINES):
        sheet.write(line)
    for part in parts:
        sheet.at += _GAP
        for line in _wrapped(part.caption):
            sheet.write(line, "#225588")
        match part:
            case Pictures():
                _pictures(sheet, part)
            case Sound():
                for channel in part.samples[:_MOST_CHANNELS]:
                    sheet.images.append((_MARGIN, sheet.at, wave(channel, _WIDTH - 2 * _MARGIN)))
                    sheet.at += _WAVE_HEIGHT + _GAP
            case Words():
                for line in _wrapped(part.text, _MOST_LINES):
                    sheet.write(line)
    _save(sheet, file)


def _pictures(sheet: _Sheet, part: Pictures) -> None:
    count = len(part.images)
    shown = range(count)
    if count > _MOST_PICTURES:
        shown = range(0, count, -(-count // _MOST_PICTURES))
        sheet.write(f"{len(shown)} of {count} are shown", "#666666")
    small = [smaller(part.images[i]) for i in shown]
    factor = -(-part.images[0].shape[1] // _WIDEST)
    if factor > 1:
        sheet.write(f"shown at 1:{factor}", "#666666")
    height, width = small[0].shape[:2]
    columns = max(1, (_WIDTH - 2 * _MARGIN + _GAP) // (width + _GAP))
    for first in range(0, len(small), columns):
        row = range(first, min(first + columns, len(small)))
        for column, i in enumerate(row):
            sheet.images.append((_MARGIN + column * (width + _GAP), sheet.at, small[i]))
        sheet.at += height
        if any(part.labels):
            room = max(1, int((width + _GAP) / _CHARACTER) - 1)
            for column, i in enumerate(row):
                sheet.lines.append(
                    (_MARGIN + column * (width + _GAP), sheet.at + 2, part.labels[shown[i]][:room], "#666666")
                )
            sheet.at += _LINE + 2
        sheet.at += _GAP


def smaller(image: Array) -> Array:
    """A picture by a whole number smaller, each pixel the mean of those that it stands for."""
    k = -(-image.shape[1] // _WIDEST)
    if k == 1:
        return image
    h, w = max(1, image.shape[0] // k), image.shape[1] // k
    rows = min(k, image.shape[0])
    blocks = image[: h * rows, : w * k].reshape(h, rows, w, k, 3)
    small: Array = blocks.mean(axis=(1, 3)).astype(np.uint8)
    return small


def wave(samples: Array, width: int) -> Array:
    """The least and the largest of the samples of each column, as uint8 [h, width, 3]; full scale is its
    height."""
    image = np.full((_WAVE_HEIGHT, width, 3), _PAPER, np.uint8)
    middle = _WAVE_HEIGHT // 2
    image[middle] = _FAINT
    values = np.nan_to_num(samples, posinf=1, neginf=-1)
    columns = min(width, len(values))
    edges = np.linspace(0, len(values), columns + 1).astype(np.int64)
    low = np.minimum.reduceat(values, edges[:-1]) if columns else values
    high = np.maximum.reduceat(values, edges[:-1]) if columns else values
    top = np.clip(np.rint(middle - high * middle), 0, _WAVE_HEIGHT - 1).astype(int)
    bottom = np.clip(np.rint(middle - low * middle), 0, _WAVE_HEIGHT - 1).astype(int)
    for x in range(columns):
        image[top[x] : bottom[x] + 1, x] = _INK
    return image


def printable(text: str) -> str:
    """A text without what would move a cursor."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text.expandtabs(4))


def _wrapped(text: str, most: int = 8) -> Iterator[str]:
    room = int((_WIDTH - 2 * _MARGIN) / _CHARACTER)
    lines = [
        line
        for paragraph in printable(text).split("\n")
        for line in textwrap.wrap(paragraph, room, replace_whitespace=False, drop_whitespace=False) or [""]
    ]
    if not text:
        return
    yield from lines[:most]
    if len(lines) > most:
        yield f"... and {len(lines) - most:,} more lines"


def _save(sheet: _Sheet, file: IO[bytes]) -> None:
    height = sheet.at + _MARGIN
    figure = new_figure(_WIDTH / _DPI, height / _DPI, _DPI)
    for x, y, image in sheet.images:
        figure.figimage(image, x, height - y - image.shape[0], origin="upper")
    from matplotlib import font_manager

    known = set(font_manager.get_font_names())
    families = [name for name in _FAMILIES if name in known]
    for x, y, text, color in sheet.lines:
        figure.text(
            x / _WIDTH, 1 - y / height, text, va="top", fontsize=_POINTS, color=color, family=families,
            parse_math=False,
        )  # fmt: skip
    with warnings.catch_warnings():
        # A text may be in any script, and fonts have not all of them: boxes stand for what is missing.
        warnings.simplefilter("ignore")
        figure.savefig(file, format="png", dpi=_DPI)
