"""A small file of every format that is read, for damage to be done to it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image as Pil
from pyarrow import parquet

from tests.clips import make_clip, picture
from tests.index.sources import image, tar
from tests.sounds import encode, tones, with_sound
from tests.stored import write_safetensors

_VIDEOS = {
    "h264.mp4": "h264",
    "hevc.mp4": "hevc",
    "vp9.webm": "vp9",
    "vp8.mkv": "vp8",
    "mpeg4.avi": "mpeg4",
    "h264.ts": "h264",
    "h264.flv": "h264",
    "av1.mkv": "av1",
}
_PICTURES = {"jpg": "jpeg", "png": "png", "webp": "webp", "gif": "gif", "bmp": "bmp"}
_SOUNDS = ("wav", "flac", "mp3", "m4a", "opus", "ogg")
_MORE_SOUNDS = {"aiff": "pcm_s16be", "caf": "pcm_s16be", "ac3": "ac3", "mka": "libopus"}


def write_all(folder: Path) -> list[Path]:
    """The files, in an order that does not change."""
    for name, codec in _VIDEOS.items():
        make_clip(folder / name, 12, codec=codec, size=(64, 96), gop=6)
    with_sound(folder / "sound.mp4", folder / "h264.mp4", tones(0.5, 16_000), 16_000, "aac")
    for suffix, kind in _PICTURES.items():
        (folder / f"a.{suffix}").write_bytes(image(3, kind, (40, 60)))
    _odd_pictures(folder)
    for suffix in _SOUNDS:
        encode(folder / f"a.{suffix}", tones(0.3, 48_000, 2), 48_000)
    for suffix, codec in _MORE_SOUNDS.items():
        encode(folder / f"a.{suffix}", tones(0.3, 48_000, 2), 48_000, codec=codec)
    np.save(folder / "a.npy", np.arange(300, dtype=np.float32).reshape(10, 30))
    write_safetensors(folder / "a.safetensors", {"x": ("float32", np.ones((4, 5), np.float32))})
    (folder / "a.txt").write_text("a cat \u65e5\u672c\n" * 20)
    tar(folder / "a.tar", [(f"{i}.{s}", b"x" * 700) for i in range(4) for s in ("jpg", "json")], form=2)
    lines = [
        {"id": i, "image": "a.png", "conversations": [{"from": "human", "value": "a"}]} for i in range(20)
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = {"image": [{"bytes": image(i), "path": f"{i}.png"} for i in range(4)], "label": [0, 1, 2, 3]}
    parquet.write_table(pa.table(rows), folder / "a.parquet")
    parquet.write_table(pa.table({"image": ["a.png"] * 4, "text": ["a"] * 4}), folder / "paths.parquet")
    return sorted(folder.iterdir())


def _odd_pictures(folder: Path) -> None:
    """A JPEG that is progressive and turned, a PNG with alpha and a palette, an animation."""
    whole = Pil.fromarray(picture(7, (40, 60)))
    exif = Pil.Exif()
    exif[0x112] = 6
    whole.save(folder / "turned.jpg", progressive=True, exif=exif)
    whole.convert("RGBA").save(folder / "alpha.png")
    whole.convert("P").save(folder / "palette.png")
    others = [Pil.fromarray(picture(i, (40, 60))) for i in range(3)]
    body = io.BytesIO()
    others[0].save(body, "gif", save_all=True, append_images=others[1:])
    (folder / "moving.gif").write_bytes(body.getvalue())
