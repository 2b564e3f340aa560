"""Any object in a range of bytes: arrays and tensors as they are, so that they are read in place.

| offset and bytes of the rest, 2 x uint64 | array | array | ... | the rest, pickled |

Each array begins at a multiple of 128. Written by a worker, read by the trainer it works for.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

_HEAD = struct.Struct("<QQ")
_ALIGNMENT = 128
Bytes = NDArray[np.uint8]


def _aligned(at: int) -> int:
    return -(-at // _ALIGNMENT) * _ALIGNMENT


class _Packer(pickle.Pickler):
    """Pickles all but arrays; these are kept in `found`, with their offsets."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.end = _ALIGNMENT
        self.found: list[tuple[int, Bytes]] = []

    def persistent_id(self, value: Any) -> tuple[str, str, tuple[int, ...], int, int] | None:
        """What stands for an array in the rest. Subclasses of arrays and tensors are pickled as they are."""
        torch = sys.modules.get("torch")
        if torch is not None and type(value) is torch.Tensor:
            if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
                return None
            flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
            name = str(value.dtype).removeprefix("torch.")
            return self._keep("tensor", name, tuple(value.shape), flat.view(torch.uint8).numpy())
        if type(value) is np.ndarray and value.dtype.kind in "biufc":
            flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            return self._keep("array", value.dtype.str, value.shape, flat)
        return None

    def _keep(
        self, kind: str, dtype: str, shape: tuple[int, ...], flat: Bytes
    ) -> tuple[str, str, tuple[int, ...], int, int]:
        at = self.end
        self.found.append((at, flat))
        self.end = _aligned(at + flat.nbytes)
        return kind, dtype, shape, at, flat.nbytes


class Parcel:
    """An object that is about to be written; `nbytes` is what it takes."""

    def __init__(self, value: Any) -> None:
        file = io.BytesIO()
        packer = _Packer(file)
        packer.dump(value)
        self._rest, self._found, self._end = file.getvalue(), packer.found, packer.end
        self.nbytes = self._end + len(self._rest)

    def write(self, out: Bytes) -> None:
        """Copy it to its place, the only copy that is made."""
        _HEAD.pack_into(out.data, 0, self._end, len(self._rest))
        for at, flat in self._found:
            out[at : at + flat.nbytes] = flat
        out[self._end : self.nbytes] = np.frombuffer(self._rest, dtype=np.uint8)


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, raw: Any) -> None:
        super().__init__(file)
        self._raw = raw

    def persistent_load(self, pid: Any) -> Any:
        """The array or tensor over its bytes."""
        torch = sys.modules["torch"]
        kind, dtype, shape, at, nbytes = pid
        if kind == "array":
            return self._raw[at : at + nbytes].numpy().view(dtype).reshape(shape)
        if nbytes == 0:
            return torch.empty(shape, dtype=getattr(torch, dtype))
        return self._raw[at : at + nbytes].view(getattr(torch, dtype)).view(shape)


def opened(raw: Any) -> Any:
    """The object in a uint8 tensor; its arrays and tensors alias that."""
    end, nbytes = _HEAD.unpack(raw[: _HEAD.size].numpy().tobytes())
    return _Unpacker(io.BytesIO(raw[end : end + nbytes].numpy().tobytes()), raw).load()
