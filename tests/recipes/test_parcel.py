"""Anything that pickles goes into bytes and comes out, its arrays and tensors in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from libhelix.recipes.parcel import Parcel, opened


def _there_and_back(value: Any) -> tuple[Any, torch.Tensor]:
    parcel = Parcel(value)
    raw = torch.full((parcel.nbytes + 100,), 7, dtype=torch.uint8)
    parcel.write(raw.numpy()[: parcel.nbytes])
    assert raw[parcel.nbytes :].eq(7).all()
    return opened(raw), raw


def _within(tensor: torch.Tensor, raw: torch.Tensor) -> bool:
    return raw.data_ptr() <= tensor.data_ptr() < raw.data_ptr() + raw.nbytes


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12).view(3, 4),
        torch.arange(12).view(3, 4).T,
        torch.tensor(3.5, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.zeros(0, 5),
        torch.tensor([1 + 2j]).conj(),
        torch.ones(3, dtype=torch.float8_e4m3fn),
    ],
    ids=["plain", "strided", "scalar", "bool", "empty", "conjugated", "float8"],
)
def test_a_tensor_comes_out_as_it_was_and_aliases_the_bytes(tensor: torch.Tensor) -> None:
    out, raw = _there_and_back({"x": [tensor, "text"]})
    found = out["x"][0]
    assert out["x"][1] == "text"
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(
        found.float() if found.itemsize == 1 else found, tensor.float() if found.itemsize == 1 else tensor
    )
    assert not found.numel() or _within(found, raw)


def test_arrays_and_what_holds_none_come_out_too() -> None:
    array = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3))
    sparse, names = torch.eye(3).to_sparse(), np.array(["a", "bc"], dtype=object)
    out, raw = _there_and_back((array, sparse, names, None))
    assert out[0].dtype == array.dtype
    assert np.array_equal(out[0], array)
    assert torch.equal(out[1].to_dense(), torch.eye(3))
    assert out[2].tolist() == ["a", "bc"]
    out[0][0, 0] = 99
    assert opened(raw)[0][0, 0] == 99


def test_tensors_that_need_gradients_come_out_without() -> None:
    out, _ = _there_and_back(torch.ones(2, requires_grad=True) * 2)
    assert not out.requires_grad
    assert out.tolist() == [2, 2]
