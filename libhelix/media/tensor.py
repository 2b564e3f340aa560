"""Stored arrays: what the headers of .npy and .safetensors files say. `values` reads what follows them.

A header comes from whoever made the file: its size is bounded, and what it says is checked against the
length of the file before anything is allocated for it.
"""

from __future__ import annotations

import ast
import json
import math
import os
import struct
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, BinaryIO

import msgspec

from libhelix.errors import MediaError
from libhelix.recipe import DTYPES, Item, TensorInfo

NPY_MAGIC = b"\x93NUMPY"
MAX_NPY_HEADER_BYTES = 10_000
"""As numpy's own limit: the header is a Python literal, and parsing a long one is costly."""
MAX_SAFETENSORS_HEADER_BYTES = 1 << 20
"""Some 10,000 tensors. Those of a model may have more; a sample has a handful."""
MAX_AXES = 8
MAX_NAME = 128

_NPY_DTYPES = {
    "|u1": "uint8", "|i1": "int8", "|b1": "bool", "<i2": "int16", "<u2": "uint16", "<f2": "float16",
    "<i4": "int32", "<f4": "float32", "<i8": "int64", "<f8": "float64",
}  # fmt: skip
_SAFETENSORS_DTYPES = {
    "U8": "uint8", "I8": "int8", "BOOL": "bool", "I16": "int16", "U16": "uint16", "F16": "float16",
    "BF16": "bfloat16", "I32": "int32", "F32": "float32", "I64": "int64", "F64": "float64",
}  # fmt: skip
_PICKLED = (".pt", ".pth", ".pkl", ".pickle", ".npz")
_CONVERT = (
    "convert it once, where you trust it, with safetensors.numpy.save_file({name: array}, path) or "
    "safetensors.torch.save_file({name: tensor}, path)"
)


def refuse_pickled(path: str, head: bytes) -> None:
    """Raise MediaError for pickles and archives of them: reading these runs code that is stored in them."""
    pickled = head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    if pickled or os.path.splitext(path)[1].lower() in _PICKLED:
        raise MediaError(f"{path}: pickled objects and archives (.pt, .pkl, .npz) are not read; {_CONVERT}")


def is_safetensors(path: str, head: bytes, size: int) -> bool:
    """Whether a file is one, by its name or by how its header begins."""
    if path.lower().endswith(".safetensors"):
        return True
    return len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8


# ---- .npy ----------------------------------------------------------------------------------------------


def probe_npy(path: str) -> Item:
    """The array of a .npy file of version 1 to 3. Raises MediaError that names the file and the cure."""
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
        described = _npy_header(path, file)
        offset = file.tell()
    dtype, shape = _npy_array(path, described)
    size = _size(path, "the array", dtype, shape)
    if offset + size != found.st_size:
        has = found.st_size - offset
        cure = "fetch it again" if has < size else "save one array per file, or a .safetensors of several"
        raise MediaError(f"{path}: {has} bytes follow the header, the array {shape} has {size}; {cure}")
    info = TensorInfo(dtype=dtype, shape=shape)
    return Item(kind="tensor", path=path, offset=offset, size=size, mtime_ns=found.st_mtime_ns, tensor=info)


def _npy_header(path: str, file: BinaryIO) -> dict[Any, Any]:
    head = file.read(8)
    if len(head) < 8 or head[:6] != NPY_MAGIC or head[6] not in (1, 2, 3):
        version = f"version {head[6]}" if len(head) == 8 else "a cut header"
        raise MediaError(f"{path}: a .npy file of {version}; 1 to 3 are read: save it with numpy.save")
    wide = head[6] > 1
    length = int.from_bytes(file.read(4 if wide else 2), "little")
    if length > MAX_NPY_HEADER_BYTES:
        raise MediaError(
            f"{path}: its header has {length} bytes, more than {MAX_NPY_HEADER_BYTES}; save a plain array"
        )
    raw = file.read(length)
    try:
        found = ast.literal_eval(raw.decode("utf-8" if head[6] == 3 else "latin-1").strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError) as e:
        raise MediaError(f"{path}: the header of the .npy file cannot be read; fetch it again") from e
    if len(raw) < length or not isinstance(found, dict) or set(found) != {"descr", "fortran_order", "shape"}:
        raise MediaError(f"{path}: the header of the .npy file is cut or not one; fetch it again")
    return found


def _npy_array(path: str, header: Mapping[Any, Any]) -> tuple[str, tuple[int, ...]]:
    descr, shape, fortran = header["descr"], header["shape"], header["fortran_order"]
    if isinstance(descr, str) and "O" in descr:
        raise MediaError(f"{path}: an array of Python objects is a pickle, which is not read; {_CONVERT}")
    dtype = _NPY_DTYPES.get(descr) if isinstance(descr, str) else None
    if dtype is None:
        raise MediaError(f"{path}: dtype {descr!r:.80} is not read; {_dtype_cure(descr)}")
    if not isinstance(shape, tuple) or not isinstance(fortran, bool):
        raise MediaError(f"{path}: the header of the .npy file is no array's; fetch it again")
    _check_shape(path, "the array", shape)
    # Where at most one axis is longer than 1, both orders are the same bytes.
    if fortran and 0 not in shape and sum(n > 1 for n in shape) > 1:
        raise MediaError(
            f"{path}: stored in Fortran order; save it row by row: "
            "numpy.save(path, numpy.ascontiguousarray(array))"
        )
    return dtype, shape


def _dtype_cure(descr: object) -> str:
    if isinstance(descr, str) and descr[:1] == ">":
        return "save it little-endian: array.astype(array.dtype.newbyteorder('<'))"
    if isinstance(descr, str) and descr[1:2] == "V":
        return "numpy has no bfloat16: store it in a .safetensors file, where it has a name"
    return f"store one of {', '.join(DTYPES)}"


# ---- .safetensors --------------------------------------------------------------------------------------


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def probe_safetensors(path: str) -> tuple[Item, ...]:
    """The tensors of a .safetensors file, by name. Raises MediaError that names the file and the cure."""
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
        entries = _safetensors_header(path, file, found.st_size)
        start = file.tell()
    if not entries:
        raise MediaError(f"{path}: a .safetensors file without tensors; leave it out")
    _check_ranges(path, entries, found.st_size - start)
    items = []
    for name, entry in sorted(entries.items()):
        begin, end = entry.data_offsets
        info = TensorInfo(dtype=_safetensors_dtype(path, name, entry.dtype), shape=entry.shape)
        _check_shape(path, f"tensor {name!r}", entry.shape)
        size = _size(path, f"tensor {name!r}", info.dtype, entry.shape)
        if size != end - begin:
            raise MediaError(
                f"{path}: tensor {name!r} has shape {entry.shape} and {end - begin} bytes, not {size}; "
                "write the file again"
            )
        items.append(
            Item(
                kind="tensor",
                path=path,
                offset=start + begin,
                size=size,
                mtime_ns=found.st_mtime_ns,
                name=name,
                tensor=info,
            )
        )
    return tuple(items)


def _safetensors_header(path: str, file: BinaryIO, size: int) -> dict[str, _Entry]:
    head = file.read(8)
    length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
    if len(head) < 8 or length > size - 8:
        raise MediaError(f"{path}: the .safetensors file is cut; fetch it again")
    if length > MAX_SAFETENSORS_HEADER_BYTES:
        raise MediaError(
            f"{path}: its header has {length} bytes, more than {MAX_SAFETENSORS_HEADER_BYTES}; a model is no "
            "sample: store the tensors of a sample in a file of their own"
        )
    try:
        parsed = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_unique)
        if not isinstance(parsed, dict):
            raise ValueError("it is no object")
        parsed.pop("__metadata__", None)
        entries = msgspec.convert(parsed, dict[str, _Entry])
        for name in entries:
            name.encode()  # JSON can escape halves of characters, which no text can hold
            if not 1 <= len(name) <= MAX_NAME:
                raise ValueError(f"a tensor's name has {len(name)} characters; 1 to {MAX_NAME} are allowed")
    except (ValueError, RecursionError) as e:
        raise MediaError(f"{path}: bad .safetensors header ({e}); write the file again") from e
    return entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def _check_ranges(path: str, entries: Mapping[str, _Entry], size: int) -> None:
    """Tensors lie one after the other and fill the file: else two share bytes, or some belong to none."""
    ranges = sorted(entry.data_offsets for entry in entries.values())
    touching = all(a_end == b for (_, a_end), (b, _) in pairwise(ranges))
    if not touching or ranges[0][0] != 0 or ranges[-1][1] != size or any(a > b for a, b in ranges):
        raise MediaError(
            f"{path}: its tensors overlap, leave bytes between them, or do not end where the file ends "
            f"({size} bytes of values); fetch it again, or write it again"
        )


def _safetensors_dtype(path: str, name: str, dtype: str) -> str:
    if dtype not in _SAFETENSORS_DTYPES:
        raise MediaError(
            f"{path}: tensor {name!r} has dtype {dtype!r:.20}, which is not read; store one of "
            f"{', '.join(_SAFETENSORS_DTYPES)}"
        )
    return _SAFETENSORS_DTYPES[dtype]


# ---- both ----------------------------------------------------------------------------------------------


def _check_shape(path: str, what: str, shape: tuple[Any, ...]) -> None:
    plain = all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 48 for n in shape)
    if not plain or len(shape) > MAX_AXES:
        raise MediaError(
            f"{path}: {what} has shape {shape!r:.80}; up to {MAX_AXES} axes are read: reshape it"
        )


def _size(path: str, what: str, dtype: str, shape: tuple[int, ...]) -> int:
    size = DTYPES[dtype] * math.prod(shape)
    if size >= 1 << 62:
        raise MediaError(f"{path}: {what} has shape {shape}, larger than any file; write it again")
    return size
