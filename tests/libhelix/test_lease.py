"""An extent is given back once, when the last thing that can read it is gone, and not a moment before."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from libhelix.lease import Arena, tensors
from libhelix.wire import messages as m
from libhelix.wire import segment
from libhelix.wire.layout import Record
from libhelix.wire.settings import Position

PAGE = segment.PAGE
ROOT = Path(__file__).parents[2]


class Released(list[None]):
    """Counts releases."""

    def __call__(self) -> None:
        self.append(None)


def _arena() -> Arena:
    return Arena(segment.create(4 * PAGE, memfd=True), 4 * PAGE)


def test_an_abandoned_ring_keeps_what_is_held_and_returns_the_rest() -> None:
    fd = segment.create(8 * PAGE, memfd=True)
    look = os.dup(fd)
    arena = Arena(fd, 8 * PAGE)
    whole = arena.lease(0, 8 * PAGE, lambda: None)
    whole[:] = bytes([7]) * (8 * PAGE)
    del whole
    held = [(7 * PAGE, 2 * PAGE), (3 * PAGE, PAGE)]  # one of them over the ring's end
    extents = [arena.lease(offset, nbytes, lambda: None) for offset, nbytes in held]
    arena.abandon(held)
    assert os.fstat(look).st_blocks * 512 == 3 * PAGE
    assert all(set(extent) == {7} for extent in extents)
    arena.abandon([])
    assert os.fstat(look).st_blocks == 0
    os.close(look)


def _lease(arena: Arena, released: Released) -> torch.Tensor:
    """A float tensor over page 1 of a ring; nothing else refers to its extent."""
    extent = arena.lease(PAGE, PAGE, released)
    ready = _ready(PAGE, PAGE, m.FieldRange(PAGE, (4, 8)))
    fields, _ = tensors(extent, ready, (m.FieldSpec("x", "float32", "stack", 1),), list)
    found: torch.Tensor = fields["x"]
    return found


def _ready(offset: int, nbytes: int, *fields: m.FieldRange) -> m.Ready:
    return m.Ready(
        1, Position(0, 0, 0), 1, offset, nbytes, fields, (offset, 0), 1, 1, {}, {}, 0, Position(0, 1, 0)
    )


def _graph(tensor: torch.Tensor) -> Any:
    weight = torch.ones(4, 8, requires_grad=True)
    return (weight * tensor).sum()  # backward needs the tensor


HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda t: t,
    "view": lambda t: t[1:, 2:],
    "reshape": lambda t: t.view(-1),
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
    "numpy": lambda t: t.numpy(),
    "array of a view": lambda t: t[2].numpy()[1:],
    "storage": lambda t: t.untyped_storage(),
    "parameter": lambda t: torch.nn.Parameter(t),
    "autograd graph": _graph,
    "dlpack": lambda t: torch.utils.dlpack.to_dlpack(t),  # type: ignore[attr-defined]
    "tensor from dlpack": lambda t: torch.utils.dlpack.from_dlpack(t),
    "memoryview": lambda t: memoryview(t.numpy()),  # type: ignore[arg-type]
    "closure": lambda t: lambda: t,
}


@pytest.mark.parametrize("how", sorted(HOLDERS))
def test_an_extent_is_given_back_once_and_only_when_its_last_holder_is_gone(how: str) -> None:
    released = Released()
    tensor = _lease(_arena(), released)
    holder = HOLDERS[how](tensor)
    del tensor
    gc.collect()
    assert released == []
    del holder
    gc.collect()
    assert len(released) == 1


def test_several_holders_give_back_once_after_the_last() -> None:
    released = Released()
    tensor = _lease(_arena(), released)
    holders = [make(tensor) for make in HOLDERS.values()]
    del tensor
    while holders:
        assert released == []
        holders.pop(0)
        gc.collect()
    assert len(released) == 1


def test_all_fields_of_a_batch_hold_its_extent_together() -> None:
    released = Released()
    schema = (
        m.FieldSpec("x", "uint8", "stack", 1),
        m.FieldSpec("list", "int64", "ragged", 1),
    )
    extent = _arena().lease(0, PAGE, released)
    records = [Record(0, True, ((4,), (2,)), ((4,), (2,))), Record(1, True, ((4,), (3,)), ((4,), (3,)))]
    ready = _ready(0, PAGE, m.FieldRange(0, (2, 4)), m.FieldRange(128, (2,)))
    fields, _ = tensors(extent, ready, schema, lambda: records)
    del extent
    last = fields["list"][1]
    del fields
    gc.collect()
    assert released == []
    del last
    gc.collect()
    assert len(released) == 1


def test_gradients_are_right_while_the_lease_lives_in_the_graph() -> None:
    released = Released()
    arena = _arena()
    tensor = _lease(arena, released)
    tensor.copy_(torch.arange(32, dtype=torch.float32).view(4, 8))
    weight = torch.ones(4, 8, requires_grad=True)
    loss = (weight * tensor).sum()
    del tensor
    gc.collect()
    assert released == []
    loss.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.arange(32, dtype=torch.float32).view(4, 8))
    del loss
    gc.collect()
    assert len(released) == 1


def test_a_tensor_writes_to_the_ring_and_a_copy_does_not() -> None:
    arena = _arena()
    tensor = _lease(arena, Released())
    tensor.fill_(1.5)
    assert bytes(arena.copy(PAGE, 4)) == b"\0\0\xc0\x3f"
    private = arena.copy(PAGE, PAGE)
    private[:4] = b"\0\0\0\0"
    assert tensor[0, 0] == 1.5


def test_the_mapping_outlives_its_arena_while_a_tensor_lives() -> None:
    released = Released()
    arena = _arena()
    tensor = _lease(arena, released)
    del arena
    gc.collect()
    tensor.fill_(2.0)
    assert tensor.sum() == 64.0
    assert released == []


def test_neither_a_forked_child_nor_the_end_of_the_process_gives_anything_back(tmp_path: Path) -> None:
    code = """
        import gc, os, sys
        sys.path.insert(0, os.getcwd())
        from tests.libhelix.test_lease import _arena, _lease

        def release():
            with open(sys.argv[1], "a") as log:
                log.write(f"{os.getpid() == parent} ")

        parent = os.getpid()
        arena = _arena()
        held, gone = _lease(arena, release), _lease(arena, release)
        if os.fork() == 0:
            del held, gone
            gc.collect()
            os._exit(0)
        os.wait()
        del gone                            # the parent lets go of one, and ends with the other
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "log")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "log").read_text() == "True "


# ---- fields ----------------------------------------------------------------------------------------------


def _fields(
    schema: m.Schema, ranges: tuple[m.FieldRange, ...], records: list[Record], content: bytes
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    extent = memoryview(bytearray(content.ljust(1024, b"\xee")))
    return tensors(extent, _ready(4096, 1024, *ranges), schema, lambda: records)


def test_packed_fields_come_with_their_bounds() -> None:
    schema = (m.FieldSpec("p", "uint8", "pack", 2, axis=1),)
    records = [Record(i, True, ((2, n),), ((2, n),)) for i, n in enumerate([3, 0, 1])]
    fields, bounds = _fields(schema, (m.FieldRange(4096, (2, 4)),), records, bytes(range(8)))
    assert fields["p"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert bounds["p_cu_seqlens"].tolist() == [0, 3, 3, 4]
    assert bounds["p_cu_seqlens"].dtype == torch.int32


def test_ragged_fields_have_their_true_shapes() -> None:
    schema = (m.FieldSpec("r", "uint8", "ragged", 2, bounded=True),)
    planned: list[m.Shape] = [(2, 100), (0, 5), (2, 3)]
    true: list[m.Shape] = [(1, 3), (0, 0), (2, 2)]
    records = [Record(i, True, (p,), (t,)) for i, (p, t) in enumerate(zip(planned, true))]
    content = bytes(range(3)).ljust(256, b"\0") + bytes(range(10, 16))
    fields, _ = _fields(schema, (m.FieldRange(4096, (3,)),), records, content)
    assert [t.shape for t in fields["r"]] == [(1, 3), (0, 0), (2, 2)]
    assert fields["r"][0].tolist() == [[0, 1, 2]]
    assert fields["r"][2].tolist() == [[10, 11], [13, 14]]


def test_scalars_empty_fields_and_bfloat16_are_tensors_too() -> None:
    schema = (
        m.FieldSpec("s", "int64", "stack", 0),
        m.FieldSpec("e", "float32", "pad", 2),
        m.FieldSpec("b", "bfloat16", "ragged", 0),
    )
    ranges = (m.FieldRange(4096, (2,)), m.FieldRange(4224, (2, 0, 3)), m.FieldRange(4224, (2,)))
    records = [Record(i, True, ((), (0, 3), ()), ((), (0, 3), ())) for i in range(2)]
    content = b"\5\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff".ljust(128, b"\0") + b"\x80\x3f"
    fields, _ = _fields(schema, ranges, records, content)
    assert fields["s"].tolist() == [5, -1]
    assert fields["e"].shape == (2, 0, 3)
    assert fields["b"][0].dtype == torch.bfloat16
    assert fields["b"][0].item() == 1.0
