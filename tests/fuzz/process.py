"""The process that reads damaged files: with little memory, so that whoever asks for much is seen.

A question is the path of a whole file, that of another, and a seed; an answer is how reading ended.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from libhelix.errors import IndexProblem, MediaError
from libhelix.index.crew import answers_only
from libhelix.index.formats import Options
from libhelix.index.formats.parquet import extract
from libhelix.index.sources import FORMATS
from libhelix.recipe import DTYPES, Item
from tests.fuzz.mutate import mutated

MEMORY_BYTES = 1 << 30
"""Of private memory, all told: what a worker may take for one sample is less."""
_MOST_FRAMES = 24
_MOST_PIXELS = 1 << 24
_MOST_SAMPLES = 1 << 20
_MOST_VALUES = 1 << 22


class Question(msgspec.Struct, array_like=True):
    """Which damage to read."""

    path: str
    other: str
    seed: int


class Ended(msgspec.Struct, array_like=True):
    """`how`: "read", "refused", "no memory" (refused for lack of it), or "raised" with what; `peak_bytes` of
    the process so far."""

    how: str
    text: str
    peak_bytes: int


def main() -> None:
    """Answer until the input ends."""
    answers = answers_only()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # FFmpeg says a lot of such files
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin.buffer:
            question = msgspec.json.decode(line, type=Question)
            answers.write(msgspec.json.encode(_answer(question, Path(folder))) + b"\n")
            answers.flush()


def _answer(question: Question, folder: Path) -> Ended:
    whole = Path(question.path)
    target = folder / f"damaged{whole.suffix}"
    target.write_bytes(mutated(whole.read_bytes(), Path(question.other).read_bytes(), question.seed))
    how, text = "read", ""
    try:
        read(str(target))
    except MediaError as e:
        how, text = "refused", str(e)
        if "cannot allocate memory" in text.lower():
            how = "no memory"
    except Exception as e:  # noqa: BLE001  # to be reported as what it is
        how, text = "raised", f"{type(e).__name__}: {e}"
    return Ended(how, text, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def read(path: str) -> None:
    """List what it holds; or probe it, decode some as training does, and all as lint does."""
    from libhelix.media import probe_items
    from libhelix.media.examine import examine

    suffix = os.path.splitext(path)[1]
    if suffix in FORMATS:
        _list(path, suffix)
        return
    for item in probe_items(path):
        _READERS[item.kind](item)
        examine(item)


def _list(path: str, suffix: str) -> None:
    try:
        FORMATS[suffix](path, Options())
        if suffix == ".parquet":
            extract(path, f"{path}.tar", Options())
    except IndexProblem as e:
        raise MediaError(str(e)) from e
    finally:
        if os.path.exists(f"{path}.tar"):
            os.unlink(f"{path}.tar")


def _video(item: Item) -> None:
    from libhelix.media.pixels import write_frame
    from libhelix.media.sampler import decode

    assert item.video is not None
    info = item.video
    out = np.empty((32, 48, 3), np.uint8)
    some = range(0, info.frames, max(1, info.frames // _MOST_FRAMES))[:_MOST_FRAMES]
    decode(item, some, lambda _, picture: write_frame(picture, info, out, "HWC"))


def _image(item: Item) -> None:
    from libhelix.media.image import decode

    decode(item, np.empty((32, 48, 3), np.uint8), "HWC")


def _audio(item: Item) -> None:
    from libhelix.media.pcm import decode

    assert item.audio is not None
    n = min(item.audio.samples, _MOST_SAMPLES)
    decode(item, np.empty((item.audio.channels, n), np.float32), stop=n)
    late = max(0, item.audio.samples - 1000)
    decode(item, np.empty(item.audio.samples - late, np.float32), start=late)


def _tensor(item: Item) -> None:
    from libhelix.media import values

    assert item.tensor is not None
    info = item.tensor
    if math.prod(info.shape) <= _MOST_VALUES:
        dtype = "uint16" if info.dtype == "bfloat16" else info.dtype
        assert np.dtype(dtype).itemsize == DTYPES[info.dtype]
        values.read(item, np.empty(info.shape, dtype))


def _text(item: Item) -> None:
    from libhelix.media import text

    text.read(item).encode()


_READERS = {"video": _video, "image": _image, "audio": _audio, "tensor": _tensor, "text": _text}
if __name__ == "__main__":
    main()
