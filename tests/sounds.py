"""Synthetic sounds, and what decoding must equal: plain PyAV, everything decoded, nothing skipped."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

CODECS = {
    "wav": "pcm_s16le",
    "flac": "flac",
    "mp3": "libmp3lame",
    "m4a": "aac",
    "opus": "libopus",
    "ogg": "vorbis",
}
"""An encoder for each suffix that the tests write."""


def tones(seconds: float, rate: int, channels: int = 1) -> Array:
    """float32 [channels, n]: a gliding tone of its own and some noise in every channel, peak below 0.6."""
    n = round(seconds * rate)
    t = np.arange(n) / rate
    noise = np.random.default_rng(7).standard_normal((channels, n))
    glides = [0.3 * np.sin(2 * np.pi * (200 * (c + 1) + 40 * np.sin(t)) * t) for c in range(channels)]
    return np.asarray(np.stack(glides) + 0.03 * noise * (np.sin(3 * t) > 0), np.float32)


def write_wav(
    path: Path, sound: Array, rate: int, kind: str = "s16", data_size: int | None = None, after: bytes = b""
) -> Path:
    """A WAV by hand; `data_size` is what its header says instead of the truth."""
    flat = sound.T.ravel()
    if kind == "f32":
        body, tag, width = flat.astype("<f4").tobytes(), 3, 4
    elif kind == "u8":
        body, tag, width = (np.rint(flat * 128) + 128).astype(np.uint8).tobytes(), 1, 1
    elif kind == "s24":
        wide = np.rint(flat * (1 << 23)).astype("<i4")
        body, tag, width = wide.view(np.uint8).reshape(-1, 4)[:, :3].tobytes(), 1, 3
    else:
        body, tag, width = np.rint(flat * (1 << 15)).astype("<i2").tobytes(), 1, 2
    block = width * len(sound)
    form = struct.pack("<HHIIHH", tag, len(sound), rate, rate * block, block, 8 * width)
    said = len(body) if data_size is None else data_size
    chunks = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", said) + body + after
    path.write_bytes(b"RIFF" + struct.pack("<I", min(len(chunks), 0xFFFFFFFF)) + chunks)
    return path


def encode(
    path: Path, sound: Array, rate: int, *, codec: str = "", options: dict[str, str] | None = None
) -> Path:
    """Write a sound; the suffix of `path` chooses container and codec."""
    codec = codec or CODECS[path.suffix[1:]]
    chosen = {"strict": "experimental"} if codec == "vorbis" else {}
    with av.open(str(path), "w") as container:
        write_sound(
            container, add_sound(container, sound, rate, codec, {**chosen, **(options or {})}), sound, rate
        )
    return path


def add_sound(
    container: Any, sound: Array, rate: int, codec: str, options: dict[str, str] | None = None
) -> Any:
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(sound)]
    stream = container.add_stream(codec, rate=rate, layout=layout, options=options or {})
    stream.codec_context.open()
    return stream


def write_sound(container: Any, stream: Any, sound: Array, rate: int) -> None:
    context = stream.codec_context
    layout = context.layout.name
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound), format="fltp", layout=layout)
    frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
    pieces = av.AudioResampler(context.format.name, layout, rate, frame_size=context.frame_size or 1024)
    for piece in (*pieces.resample(frame), *pieces.resample(None)):
        container.mux(stream.encode(piece))
    container.mux(stream.encode(None))


def with_sound(path: Path, silent: Path, sound: Array, rate: int, codec: str) -> Path:
    """A copy of a clip, with a sound."""
    with av.open(str(silent)) as source, av.open(str(path), "w") as container:
        pictures = container.add_stream_from_template(source.streams.video[0])
        stream = add_sound(container, sound, rate, codec, {})
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = pictures
                container.mux(packet)
        write_sound(container, stream, sound, rate)
    return path


def decode_all(path: str | Path, stream: int = 0) -> Array:
    """float32 [channels, n]: all samples of an audio stream, by its number among them."""
    blocks = []
    with av.open(str(path), metadata_errors="replace") as container:
        sound = container.streams.audio[stream]
        for packet in container.demux(sound):
            try:
                frames = packet.decode()
            except av.error.FFmpegError:
                continue
            for frame in frames:
                form = av.AudioResampler("flt", frame.layout, frame.sample_rate)
                flat = [f.to_ndarray() for f in (*form.resample(frame), *form.resample(None))]
                blocks.append(np.concatenate(flat, axis=1).reshape(-1, frame.layout.nb_channels).T)
    return np.concatenate(blocks, axis=1)
