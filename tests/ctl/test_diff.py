"""helixctl diff names the first batch that differs, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.utils.data import DataLoader

import libhelix as hx
from libhelix.ctl.diff import differences
from libhelix.ctl.main import cli
from libhelix.errors import UsageError
from tests.system.datasets import Pairs


def data_loader() -> Any:
    return DataLoader(Pairs(), 4)


def the_same() -> Any:
    return hx.Loader.from_torch(Pairs(), 4, backend="inline")


def shorter() -> Any:
    return DataLoader(Pairs(8), 4)


def later() -> Any:
    for i, (image, label) in enumerate(DataLoader(Pairs(), 4)):
        image[0, 1, 2] += 3 * (i == 1)
        yield {"image": image, "label": label}


def _diff(*names: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
    args = ["diff", *(name if ":" in name else f"tests.ctl.test_diff:{name}" for name in names), *options]
    done = CliRunner().invoke(cli, args, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.return_value, done.stdout


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path))


def test_a_loader_and_the_data_loader_that_it_replaces_are_the_same() -> None:
    assert _diff("data_loader", "the_same") == (0, "the same: 3 batches\n")


def test_the_first_batch_that_differs_is_named_with_the_field_and_how_far() -> None:
    code, said = _diff("data_loader", "later")
    assert code == 1
    assert said.splitlines()[0] == "batch 1:"
    assert "image: largest difference 3, at [0, 1, 2]: 4 and 7; 2.08 % of values differ" in said
    assert "label" not in said
    assert _diff("data_loader", "later", options=("--tolerance", "3"))[0] == 0
    assert _diff("data_loader", "later", options=("--batches", "1")) == (0, "the same: 1 batch\n")


def test_one_that_ends_before_the_other_is_named() -> None:
    code, said = _diff("data_loader", "shorter")
    assert (code, said) == (
        1,
        "tests.ctl.test_diff:shorter ends after 2 batches, tests.ctl.test_diff:data_loader goes on\n",
    )


def test_shapes_types_and_names_are_told_apart() -> None:
    x = torch.arange(6)
    nan = torch.tensor([float("nan"), 1.0])
    assert differences({"a": x}, {"a": x.view(2, 3)}) == ["a: shapes [6] and [2, 3]"]
    assert differences({"a": x}, {"a": x.int()}) == ["a: dtypes int64 and int32"]
    assert differences({"a": x, "b": 1}, {"a": x}) == ["b: only in the first"]
    assert differences({"a": x}, {"a": x, "b": 1}) == ["b: only in the second"]
    assert differences({"a": ["one"]}, {"a": ["two"]}) == ["a.0: 'one' and 'two'"]
    assert differences([nan], [nan.clone()]) == []
    assert "inf" in differences([nan], [torch.ones(2)])[0]
    half = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    assert differences([half], [half + 1], 1) == []
    assert "largest difference 1" in differences([half], [half + 1])[0]
    assert differences([np.zeros(1, np.uint8)], [torch.tensor([255], dtype=torch.uint8)]) == [
        "0: largest difference 255, at [0]: 0 and 255; 100 % of values differ"
    ]
    least = torch.tensor([-(2**63)])
    assert "largest difference 9.22337e+18" in differences([least], [torch.zeros_like(least)])[0]
    big = torch.tensor([2**53 + 1])
    assert differences([big], [big - 1]), "integers are not compared as floats"


def test_what_batches_of_ours_cannot_hold_is_compared_too() -> None:
    waves = torch.tensor([1 + 2j, 3 + 0j])
    words = np.array(["a", "b"])
    assert differences({"x": waves, "y": words}, {"x": waves.clone(), "y": words.copy()}) == []
    (line,) = differences({"x": waves}, {"x": waves + 1})
    assert line.startswith("x: tensor")
    (line,) = differences({"y": words}, {"y": np.array(["a", "c"])})
    assert line.startswith("y: array")


def nothing() -> Any:
    return None


def demanding(what: str) -> Any:
    return [what]


@pytest.mark.parametrize("name", ["nothing", "demanding"])
def test_what_gives_no_batches_is_said_with_a_cure(name: str) -> None:
    with pytest.raises(UsageError, match="a function without parameters that returns a loader"):
        _diff("data_loader", name)


def test_what_cannot_be_imported_is_said_with_a_cure() -> None:
    with pytest.raises(UsageError, match="run this where it can be imported"):
        _diff("data_loader", "no_such_module_here:make")
    with pytest.raises(UsageError, match="write module:function"):
        CliRunner().invoke(cli, ["diff", "a", "b"], standalone_mode=False, catch_exceptions=False)
