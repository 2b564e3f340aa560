"""Stored arrays: what is written is what is read, in parts and in place; headers are not believed."""

from __future__ import annotations

import json
import os
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libhelix.errors import MediaError, UsageError
from libhelix.media import probe_file, probe_items, values
from libhelix.recipe import Item
from tests import stored


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stored")


def _check_parts(item: Item, expected: np.ndarray, data: st.DataObject) -> None:
    """Whole and in parts, dense and strided: the values, and nothing around them."""
    rows = expected.shape[0] if expected.ndim else 0
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(0, rows), max_size=3))})
    pads = [data.draw(st.integers(0, 3)) for _ in expected.shape]
    steps = [data.draw(st.sampled_from([1, 2, -1])) for _ in expected.shape]
    around = np.full([(n + p) * abs(s) for n, p, s in zip(expected.shape, pads, steps)], 77, expected.dtype)
    inside: tuple[Any, ...] = (*(slice(0, n) for n in expected.shape), ...)
    strided = around[tuple([slice(None, None, s) for s in steps])][inside]
    before = around.copy()
    for a, b in pairwise(cuts):
        values.read(item, strided[a:b], a)
    if not expected.ndim:
        values.read(item, strided)
    np.testing.assert_array_equal(strided, expected)
    strided[...] = 77
    np.testing.assert_array_equal(around, before)


@settings(max_examples=60, deadline=None)
@given(st.data(), stored.shapes, stored.dtypes.filter(lambda d: d != "bfloat16"))
def test_an_npy_file_comes_back_whole_and_in_parts(
    folder: Path, data: st.DataObject, shape: tuple[int, ...], dtype: str
) -> None:
    path = folder / "a.npy"
    expected = stored.array(dtype, shape)
    version = data.draw(st.sampled_from([(1, 0), (2, 0), (3, 0)]))
    with path.open("wb") as file:
        np.lib.format.write_array(file, expected, version=version)
    item = probe_file(path)
    assert item.tensor is not None
    assert (item.kind, item.name, item.tensor.dtype, item.tensor.shape) == ("tensor", "", dtype, shape)
    assert item.size == expected.nbytes
    _check_parts(item, expected, data)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.lists(st.tuples(stored.dtypes, stored.shapes), min_size=1, max_size=4))
def test_every_tensor_of_a_safetensors_file_is_an_item(
    folder: Path, data: st.DataObject, kinds: list[tuple[str, tuple[int, ...]]]
) -> None:
    arrays = {f"t{9 - i}": (dtype, stored.array(dtype, shape, i)) for i, (dtype, shape) in enumerate(kinds)}
    path = stored.write_safetensors(folder / "a.safetensors", arrays)
    items = probe_items(path)
    assert [item.name for item in items] == sorted(arrays)
    for item in items:
        dtype, expected = arrays[item.name]
        assert item.tensor is not None
        assert (item.tensor.dtype, item.tensor.shape) == (dtype, expected.shape)
        assert path.read_bytes()[item.offset : item.offset + item.size] == expected.tobytes()
        _check_parts(item, expected, data)


def test_what_the_safetensors_library_writes_is_read(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    torch = pytest.importorskip("torch")
    import safetensors.torch

    arrays = {name: stored.array(name, (3, 4)) for name in stored.SAFETENSORS if name != "bfloat16"}
    library.save_file(arrays, tmp_path / "a.safetensors")
    for item in probe_items(tmp_path / "a.safetensors"):
        out = np.empty((3, 4), item.name)
        values.read(item, out)
        np.testing.assert_array_equal(out, arrays[item.name])
    half = torch.arange(12).to(torch.bfloat16).reshape(3, 4)
    safetensors.torch.save_file({"half": half}, tmp_path / "b.safetensors")
    bits = np.empty((3, 4), np.uint16)
    values.read(probe_file(tmp_path / "b.safetensors"), bits)
    assert torch.equal(torch.from_numpy(bits).view(torch.bfloat16), half)


@pytest.mark.parametrize("inner", [1, 100, 40_000])
def test_long_arrays_are_read_by_every_way_there_is(tmp_path: Path, inner: int) -> None:
    """Pieces read in place and not, more than a system call takes, and rows that no buffer holds."""
    rows = 1_200_000 // inner
    expected = np.arange(rows * inner * 2, dtype=np.int16).reshape(rows, 2, inner)
    np.save(tmp_path / "a.npy", expected)
    item = probe_file(tmp_path / "a.npy")
    for slot in [(rows, 2, inner), (rows, 2, inner + 1), (rows, 3, inner)]:
        around = np.full(slot, -1, np.int16)
        out = around[:, :2, :inner]
        values.read(item, out[7:], 7)
        np.testing.assert_array_equal(out[7:], expected[7:])
        assert (around[:7] == -1).all()
        assert (around[:, 2:] == -1).all()
        assert (around[:, :, inner:] == -1).all()
    turned = np.zeros((rows, inner, 2), np.int16).transpose(0, 2, 1)
    values.read(item, turned)
    np.testing.assert_array_equal(turned, expected)


def test_a_file_system_that_gives_little_at_a_time_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = np.arange(20_000, dtype=np.int32).reshape(4, -1)
    np.save(tmp_path / "a.npy", expected)
    item = probe_file(tmp_path / "a.npy")
    real = os.preadv

    def slow(fd: int, pieces: list[memoryview], at: int) -> int:
        return real(fd, [piece[:7777] for piece in pieces[:1]], at)

    monkeypatch.setattr(os, "preadv", slow)
    for out in (np.zeros((4, 5000), np.int32), np.zeros((4, 6000), np.int32)[:, :5000]):
        values.read(item, out)
        np.testing.assert_array_equal(out, expected)


def test_values_that_end_too_early_are_an_error_not_garbage(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(1000))
    unchecked = msgspec.structs.replace(probe_file(tmp_path / "a.npy"), mtime_ns=0)
    with (tmp_path / "a.npy").open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(MediaError, match="ends inside its values"):
        values.read(unchecked, np.empty(1000, np.int64))


def test_a_byte_that_is_no_bool_reads_as_true(tmp_path: Path) -> None:
    path = stored.write_safetensors(tmp_path / "a.safetensors", {"b": ("bool", np.zeros(3, bool))})
    path.write_bytes(path.read_bytes()[:-2] + b"\x02\xff")
    out = np.zeros(3, bool)
    values.read(probe_file(path), out)
    assert out.view(np.uint8).tolist() == [0, 1, 1]


def test_a_file_that_changed_is_not_misread(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(1000))
    item = probe_file(tmp_path / "a.npy")
    with pytest.raises(UsageError, match="do not fit"):
        values.read(item, np.empty(1000, np.int32))
    with pytest.raises(UsageError, match="rows 1 to 1001"):
        values.read(item, np.empty(1000, np.int64), 1)
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    with pytest.raises(MediaError, match="changed since it was indexed"):
        values.read(item, np.empty(1000, np.int64))


# ---- what is refused -----------------------------------------------------------------------------------


def _npy(header: str | bytes, values: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    size = len(raw) if length is None else length
    return (
        b"\x93NUMPY" + bytes([version, 0]) + size.to_bytes(2 if version == 1 else 4, "little") + raw + values
    )


def _described(descr: str = "<f4", shape: object = (1,), fortran: object = False) -> str:
    return repr({"descr": descr, "fortran_order": fortran, "shape": shape})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (_npy(_described(), b"123"), "3 bytes follow the header.*fetch it again"),
        (_npy(_described(), b"12345"), "5 bytes follow.*one array per file"),
        (_npy(_described(shape=(1 << 40, 1 << 40))), "larger than any file"),
        (_npy(_described(shape=(-1,)), b""), r"shape \(-1,\)"),
        (_npy(_described(shape=(True,)), b""), r"shape \(True,\)"),
        (_npy(_described(shape=(1,) * 9), b"1234"), "up to 8 axes"),
        (_npy(_described(shape=[1])), "no array's"),
        (_npy(_described(fortran=1)), "no array's"),
        (_npy(_described(fortran=True, shape=(2, 3)), bytes(24)), "Fortran order.*ascontiguousarray"),
        (_npy(_described(">f4"), bytes(4)), r"newbyteorder\('<'\)"),
        (_npy(_described("<u4"), bytes(4)), r"'<u4' is not read; store one of uint8"),
        (_npy(_described("<V2"), bytes(2)), r"bfloat16.*\.safetensors"),
        (_npy(_described("|O"), pickle.dumps([1])), "Python objects.*save_file"),
        (_npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}", bytes(4)), "not read"),
        (_npy("{'descr': '<f4'}"), "cut or not one"),
        (_npy("[" * 9000), "cannot be read"),
        (_npy("__import__('os').abort()"), "cannot be read"),
        (_npy(b"\xff\xfe", version=3), "cannot be read"),
        (_npy(_described(), length=5000), "cut or not one"),
        (_npy("", version=2, length=1 << 31), "more than 10000"),
        (_npy(_described(), version=4), "version 4"),
        (b"\x93NUMPY", "cut header"),
    ],
)
def test_a_bad_npy_file_is_refused_with_a_cure(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(MediaError, match=rf"a\.npy: .*{text}") as raised:
        probe_items(path)
    assert ";" in str(raised.value) or ": " in str(raised.value)


def test_fortran_order_is_read_where_both_orders_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(_npy(_described(shape=(1, 3, 1), fortran=True), bytes(12)))
    assert probe_file(tmp_path / "a.npy").tensor is not None


def _entry(begin: int = 0, end: int = 4, dtype: str = "F32", shape: Any = (1,), **more: Any) -> Any:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end], **more}


@pytest.mark.parametrize(
    ("header", "size", "text"),
    [
        ({"a": _entry(), "b": _entry()}, 4, "overlap"),
        ({"a": _entry(), "b": _entry(2, 6)}, 6, "overlap"),
        ({"a": _entry(), "b": _entry(5, 9)}, 9, "overlap, leave bytes"),
        ({"a": _entry(4, 0)}, 4, "overlap"),
        ({"a": _entry(-4, 0)}, 4, "overlap"),
        ({"a": _entry()}, 3, "do not end where the file ends"),
        ({"a": _entry()}, 5, "do not end where the file ends"),
        ({"a": _entry(0, 1 << 70, shape=(1 << 70,))}, 4, "bad .safetensors header|do not end"),
        ({"a": _entry(shape=(2,))}, 4, "4 bytes, not 8"),
        ({"a": _entry(shape=(1 << 40, 1 << 40))}, 4, "larger than any file"),
        ({"a": _entry(shape=(-1,))}, 4, r"shape \(-1,\)"),
        ({"a": _entry(shape=(1,) * 9)}, 4, "up to 8 axes"),
        ({"a": _entry(dtype="U32")}, 4, "dtype 'U32', which is not read; store one of U8"),
        ({"a": _entry(dtype="F8_E4M3", shape=(4,))}, 4, "'F8_E4M3', which is not read"),
        ({"a": _entry(more=1)}, 4, "bad .safetensors header"),
        ({"a": {"dtype": "F32"}}, 4, "bad .safetensors header"),
        ({"": _entry()}, 4, "0 characters"),
        ({"x" * 129: _entry()}, 4, "129 characters"),
        (b'{"\\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}', 0, "bad .safetensors header"),
        (b'{"a": {"dtype": "U8", "dtype": "I8", "shape": [0], "data_offsets": [0, 0]}}', 0, "stands twice"),
        (b'{"a":' * 50_000, 0, "bad .safetensors header"),
        (b"{\xff}", 0, "bad .safetensors header"),
        ([], 0, "bad .safetensors header"),
        ({}, 0, "without tensors"),
        (b"{" + b" " * (1 << 20) + b"}", 0, "a model is no sample"),
    ],
)
def test_a_bad_safetensors_file_is_refused_with_a_cure(
    tmp_path: Path, header: Any, size: int, text: str
) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = stored.write_header(tmp_path / "a.safetensors", raw, bytes(size))
    with pytest.raises(MediaError, match=rf"a\.safetensors: .*({text}).*") as raised:
        probe_items(path)
    assert any(cure in str(raised.value) for cure in ("again", "store", "leave it out", "reshape"))


@pytest.mark.parametrize("content", [b"1234567", b"\xff" * 8 + b"{}", b"\x09" + b"\0" * 7 + b"{}"])
def test_a_cut_safetensors_file_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(MediaError, match=r"the \.safetensors file is cut; fetch it again"):
        probe_items(tmp_path / "a.safetensors")


def test_safetensors_are_known_by_their_header_too(tmp_path: Path) -> None:
    path = stored.write_safetensors(tmp_path / "no suffix", {"x": ("int8", np.arange(3, dtype=np.int8))})
    assert [item.name for item in probe_items(path)] == ["x"]


@pytest.mark.parametrize("name", ["a.pt", "a.PTH", "a.pkl", "a.npz", "no suffix"])
def test_pickles_are_refused_and_not_loaded(tmp_path: Path, name: str) -> None:
    if name == "a.npz":
        np.savez(tmp_path / name, x=np.arange(3))
    else:
        (tmp_path / name).write_bytes(pickle.dumps(object()))
    with pytest.raises(MediaError, match=r"not read; convert it once.*safetensors\.numpy\.save_file"):
        probe_items(tmp_path / name)
