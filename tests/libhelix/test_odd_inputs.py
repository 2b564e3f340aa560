"""Odd inputs: refused where they enter, or harmless."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
from typing import Any

import msgspec
import numpy as np
import pytest

from libhelix.errors import HelixError, UsageError
from libhelix.plan.layout import lay_out
from libhelix.recipe import Descriptor, Field, Pack, Pad, Recipe, Sample, check_descriptor
from libhelix.recipes import run
from libhelix.sources import checked
from libhelix.wire import codec, segment
from libhelix.wire import messages as m
from libhelix.wire.settings import Buckets, FixedBatch, TokenBudget
from tests.helixd.core.world import settings


def test_a_forked_child_that_drops_a_batch_unmaps_nothing_of_its_own() -> None:
    nbytes = 64 << 20
    view = segment.attach(segment.create(nbytes, memfd=True), nbytes)
    base = ctypes.addressof(ctypes.c_char.from_buffer(view))
    gc.collect()
    child = os.fork()
    if child == 0:
        blocks = []
        for _ in range(400):  # the kernel reuses the hole that MADV_DONTFORK left
            block = mmap.mmap(-1, 1 << 20)
            at = ctypes.addressof(ctypes.c_char.from_buffer(block))
            blocks.append(block)
            if base <= at < base + 2 * nbytes:
                del view
                gc.collect()
                block[0] = 2
                os._exit(0)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    "desc",
    [
        Descriptor((Field("x", "uint8", (8,)),), units=np.int64(8), cuts=(np.int64(4),), segment_us=(1, 1)),
        Descriptor((Field("x", "uint8", (8,)),), units=2.0),  # type: ignore[arg-type]
        Descriptor((Field("x", "uint8", (8,)),), segment_us=(True,)),
        Descriptor((Field("x", "uint8", (8,)),), segment_us=(1 << 62,)),
        Descriptor((Field("x", "uint8", (8,)),), costs={f"c{i}": 1 for i in range(33)}),
        Descriptor((Field("x", "uint8", (8,)),), costs={1: 2}),  # type: ignore[dict-item]
        Descriptor((Field("x", "uint8", (1 << 62,)),)),
        Descriptor((Field("x", "uint8", (8,), Pad),)),  # type: ignore[arg-type]
        Descriptor((Field("x", "uint8", (8,), Pad("zero")),)),  # type: ignore[arg-type]
        Descriptor((Field("x", "uint8", (8,), Pad(-100)),)),
    ],
    ids=[
        "numpy integers",
        "float units",
        "bool us",
        "huge us",
        "33 costs",
        "cost name",
        "huge shape",
        "layout class",
        "pad str",
        "pad range",
    ],
)
def test_a_descriptor_that_passes_the_check_can_be_sent(desc: Descriptor) -> None:
    class R(Recipe, frozen=True):
        def describe(self, sample: Sample, rng: Any) -> Descriptor:
            return desc

    try:
        check_descriptor(desc, "R")
    except HelixError:
        return
    row, schema = run.describe_row(run.Loaded(R(), "R", {0: Sample(0, "a", ())}, 0), 0, 0)  # type: ignore[arg-type]
    assert not row.error
    for spec in schema:
        np.zeros(1, "uint8")[...] = spec.pad_value
    codec.from_worker(codec.encode(m.Described(1, schema, (row,), True)))


def test_a_user_keeps_files_that_only_look_like_ours(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "SHM", str(tmp_path))
    (tmp_path / "helix-validation.arrow").touch()
    os.close(segment.create(segment.PAGE))
    assert (tmp_path / "helix-validation.arrow").exists()


def test_an_empty_packed_sample_may_have_any_other_axes() -> None:
    class R(Recipe, frozen=True):
        def describe(self, sample: Sample, rng: Any) -> Descriptor:
            return Descriptor((Field("p", "uint8", (0, 9) if sample.id == 0 else (3, 5), Pack()),))

        def fill(self, sample: Any, desc: Any, part: Any, out: Any) -> None:
            out["p"][...] = 1

    loaded = run.Loaded(R(), "R", {i: Sample(i, str(i), ()) for i in range(2)}, 0)  # type: ignore[arg-type]
    rows = [run.describe_row(loaded, 0, i) for i in range(2)]
    layout = lay_out(rows[0][1], [r for r, _ in rows])
    for i in range(2):
        piece = m.Piece(i, 0, 0, 1, layout.records[i], layout.places[i])
        run.fill(loaded, 0, piece, bytearray(layout.nbytes))


def test_a_seed_that_cannot_be_sent_is_a_usage_error() -> None:
    with pytest.raises(HelixError):
        checked(settings("stack", seed=1 << 70))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batching": TokenBudget(9, oversize="foo")}, 'batching.oversize=\'foo\': must be "error", "s'),  # type: ignore[arg-type]
        ({"batching": Buckets(9, same_kind="x")}, 'batching.same_kind=\'x\': must be "batch" or "step"'),  # type: ignore[arg-type]
        ({"batching": FixedBatch(0)}, "batching.samples=0: must be int >= 1"),
        ({"micro_batches": 0}, "micro_batches=0: must be int >= 1"),
        ({"ring": "3"}, "ring='3': must be int, got str"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_what_it_may_be(changes: Any, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        checked(msgspec.structs.replace(settings("stack"), **changes))
    assert str(raised.value).startswith(said)
