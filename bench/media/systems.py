"""Libraries that decode. Each does what its documentation recommends for a single core, opening the file for
each sample, as a loader does; what it knows of a file beforehand it may keep from one time to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class System:
    """A library. Methods that it lacks raise NotImplementedError: it has no such decoder."""

    version = ""

    def video(self, path: str, frames: Sequence[int]) -> Array:
        """These frames as uint8 [n, h, w, 3]."""
        raise NotImplementedError

    def image(self, path: str) -> Array:
        """The image as uint8 [h, w, 3]."""
        raise NotImplementedError

    def sound(self, path: str) -> Array:
        """All samples as float32 [channels, n]."""
        raise NotImplementedError


class DataHelix(System):
    """Ours, with files that were indexed before."""

    def __init__(self) -> None:
        import libhelix
        from libhelix.media import image, pcm, pixels, probe_items, sampler

        self.version = libhelix.__version__
        self._image, self._pcm, self._pixels, self._sampler = image, pcm, pixels, sampler
        self._items = lru_cache(maxsize=None)(probe_items)

    def video(self, path: str, frames: Sequence[int]) -> Array:
        item = self._items(path)[0]
        assert item.video is not None
        out = np.empty((len(frames), *item.video.display_size, 3), np.uint8)
        place = {frame: i for i, frame in enumerate(frames)}
        write, info = self._pixels.write_frame, item.video
        self._sampler.decode(item, list(frames), lambda f, picture: write(picture, info, out[place[f]]))
        return out

    def image(self, path: str) -> Array:
        item = self._items(path)[0]
        assert item.image is not None
        out = np.empty((*item.image.display_size, 3), np.uint8)
        self._image.decode(item, out)
        return out

    def sound(self, path: str) -> Array:
        item = self._items(path)[0]
        assert item.audio is not None
        out = np.empty((item.audio.channels, item.audio.samples), np.float32)
        self._pcm.decode(item, out)
        return out


class TorchCodec(System):
    """Exact seeking, one thread."""

    def __init__(self) -> None:
        decoders = import_module("torchcodec.decoders")
        self.version = version("torchcodec")
        self._video, self._audio = decoders.VideoDecoder, decoders.AudioDecoder

    def video(self, path: str, frames: Sequence[int]) -> Array:
        decoder = self._video(path, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="exact")
        found: Array = decoder.get_frames_at(indices=list(frames)).data.numpy()
        return found

    def sound(self, path: str) -> Array:
        found: Array = self._audio(path).get_all_samples().data.numpy()
        return found


class Decord(System):
    """One thread."""

    def __init__(self) -> None:
        self.version = version("decord")
        self._reader = import_module("decord").VideoReader

    def video(self, path: str, frames: Sequence[int]) -> Array:
        found: Array = self._reader(path, num_threads=1).get_batch(list(frames)).asnumpy()
        return found


class OpenCV(System):
    """Frames are grabbed one after the other and only the wanted ones retrieved: its seeks are not exact."""

    def __init__(self) -> None:
        self._cv2 = import_module("cv2")
        self._cv2.setNumThreads(1)
        self.version = self._cv2.__version__

    def video(self, path: str, frames: Sequence[int]) -> Array:
        cv2 = self._cv2
        capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
        found, at = [], -1
        for frame in frames:
            while at < frame and capture.grab():
                at += 1
            ok, picture = capture.retrieve()
            if not ok or at != frame:
                raise ValueError(f"frame {frame} cannot be read")
            found.append(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB))
        capture.release()
        return np.stack(found)

    def image(self, path: str) -> Array:
        picture: Array | None = self._cv2.imread(path, self._cv2.IMREAD_COLOR_RGB)
        if picture is None:
            raise ValueError("it cannot be read")
        return picture


class Pillow(System):
    """Images."""

    def __init__(self) -> None:
        self._open = import_module("PIL.Image").open
        self.version = version("pillow")

    def image(self, path: str) -> Array:
        with self._open(path) as picture:
            found: Array = np.asarray(picture.convert("RGB"))
            return found


class Spdl(System):
    """One thread; of a video it decodes all, and drops what is not wanted in a filter."""

    def __init__(self) -> None:
        self._io = import_module("spdl.io")
        self.version = version("spdl")

    def video(self, path: str, frames: Sequence[int]) -> Array:
        io = self._io
        packets = io.demux_video(path)
        chosen = "+".join(f"eq(n,{frame})" for frame in frames)
        decoded = io.decode_packets(packets, filter_desc=f"select='{chosen}',format=pix_fmts=rgb24")
        found: Array = io.to_numpy(io.convert_frames(decoded))
        return found

    def image(self, path: str) -> Array:
        io = self._io
        found: Array = io.to_numpy(io.load_image(path, filter_desc="format=pix_fmts=rgb24"))
        return found

    def sound(self, path: str) -> Array:
        io = self._io
        decoded = io.decode_packets(io.demux_audio(path), filter_desc="aformat=sample_fmts=fltp")
        found: Array = io.to_numpy(io.convert_frames(decoded))
        return found


class SoundFile(System):
    """Sound."""

    def __init__(self) -> None:
        self._read = import_module("soundfile").read
        self.version = version("soundfile")

    def sound(self, path: str) -> Array:
        samples, _ = self._read(path, dtype="float32", always_2d=True)
        return np.ascontiguousarray(samples.T)


OURS = "DataHelix"
SYSTEMS: dict[str, Callable[[], System]] = {
    OURS: DataHelix,
    "torchcodec": TorchCodec,
    "decord": Decord,
    "OpenCV": OpenCV,
    "Pillow": Pillow,
    "SPDL": Spdl,
    "soundfile": SoundFile,
}
