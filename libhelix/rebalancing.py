"""Finished samples of a step change ranks, where what they really cost is known only once they are decoded.

All ranks of a group tell each other what their samples cost; each works out the same moves by itself
(`plan/leveling.py`); one `all_to_all_single` carries them, every sample as bytes:

    to rank 0              | to rank 1 ...
    sample | sample | ...      sample := field | field | ...      fields begin at multiples of 128
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
import torch.distributed as dist

from libhelix.batch import Batch
from libhelix.errors import UsageError
from libhelix.plan.leveling import Move, Toll, level
from libhelix.samples import (
    Cost,
    Delivered,
    Parts,
    Told,
    disagreement,
    finished,
    put_together,
    taken_apart,
    tell,
)
from libhelix.wire.layout import aligned

_decoder = msgspec.msgpack.Decoder(Told)


def rebalance(
    batch: Batch,
    *,
    cost: Cost,
    group: dist.ProcessGroup | None = None,
    least_gain: float = 0.02,
    per_byte: float = 0.0,
) -> Batch:
    """The batch after finished samples changed ranks, so that the heaviest rank of the step is lighter.

    cost        what a sample costs: the name of a field, whose true elements count; or a whole number, not
                negative, for every sample of the batch
    group       ranks with different batches of one step: the data-parallel ranks, or those of a node. All of
                them call this, with each batch. By default all processes
    least_gain  samples move only where the heaviest rank gets lighter by this share of what it costs, and
                no more of them for less than that
    per_byte    what moving a byte costs, in the same unit, on the rank that moves most: less is left undone

    Masked samples cost nothing and stay. No packed field gets longer than the longest of the step was. Where
    a rank neither gives nor takes, its batch is returned as it is; else it is a copy that owns its memory.
    What concerns the step (`global_tokens` and so on) stays the same: weigh losses by it. Collective.
    Raises UsageError, on all ranks, for batches that do not belong together and for fields that cannot move.
    """
    if not (dist.is_available() and dist.is_initialized()):
        told = [tell(batch, cost, (least_gain, per_byte))]
    else:
        if dist.get_rank(group) < 0:
            raise UsageError("rebalance: this process is not in group=; give the one that it is in")
        told = _all_told(tell(batch, cost, (least_gain, per_byte)), group)
    wrong = disagreement(told)
    if wrong:
        raise UsageError(f"rebalance: {wrong}")
    ranks, room = finished(told)
    moves = level(ranks, room, Toll(least_gain, per_byte))
    return _exchanged(batch, told, moves, group) if moves else batch


def _all_told(mine: Told, group: dist.ProcessGroup | None) -> list[Told]:
    said: list[bytes] = [b""] * dist.get_world_size(group)
    dist.all_gather_object(said, msgspec.msgpack.encode(mine), group=group)
    return [_decoder.decode(one) for one in said]


def _exchanged(
    batch: Batch, told: Sequence[Told], moves: Sequence[Move], group: dist.ProcessGroup | None
) -> Batch:
    """The batch of this rank after the moves of all ranks."""
    me, mine = dist.get_rank(group), taken_apart(batch, told[dist.get_rank(group)])
    going = sorted((m for m in moves if m.source == me), key=lambda m: (m.target, m.sample))
    coming = sorted((m for m in moves if m.target == me), key=lambda m: (m.source, m.sample))
    leave, arrive = [0] * len(told), [0] * len(told)
    for move in going:
        leave[move.target] += told[me].nbytes(move.sample)
    for move in coming:
        arrive[move.source] += told[move.source].nbytes(move.sample)
    device = mine[0][1][0].device
    through = _through(device, group)
    outbox = torch.empty(sum(leave), dtype=torch.uint8, device=through)
    inbox = torch.empty(sum(arrive), dtype=torch.uint8, device=through)
    at = 0
    for move in going:
        at = _write(outbox, at, mine[move.sample][1])
    # Also where nothing of this rank moves: the others wait for it.
    dist.all_to_all_single(inbox, outbox, arrive, leave, group=group)
    if not going and not coming:
        return batch
    inbox, at = inbox.to(device), 0
    came: list[Parts] = []
    for move in coming:
        sample = told[move.source].samples[move.sample]
        tensors, at = _read(inbox, at, told[me], sample)
        came.append((sample, tensors))
    gone = {move.sample for move in going}
    return put_together(batch, told[me], [None if i in gone else s for i, s in enumerate(mine)], came)


def _through(device: torch.device, group: dist.ProcessGroup | None) -> torch.device:
    """Where a group moves bytes of a device: there, if it has a backend that can."""
    backends = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    if device.type in backends and (backends[device.type] != "gloo" or device.type == "cpu"):
        return device
    return torch.device("cpu" if "cpu" in backends else next(iter(backends)))


def _write(outbox: torch.Tensor, at: int, tensors: Sequence[torch.Tensor]) -> int:
    """Put the bytes of a sample at an offset; where the next begins."""
    for tensor in tensors:
        raw = tensor.contiguous().reshape(-1).view(torch.uint8)
        outbox[at : at + len(raw)].copy_(raw)
        at += aligned(len(raw))
    return at


def _read(inbox: torch.Tensor, at: int, told: Told, sample: Delivered) -> tuple[list[torch.Tensor], int]:
    """The tensors of a sample, as views; and where the next begins."""
    tensors = []
    for field, shape in zip(told.fields, sample.shapes):
        nbytes = field.nbytes(shape)
        tensors.append(inbox[at : at + nbytes].view(field.torch_dtype).reshape(shape))
        at += aligned(nbytes)
    return tensors, at
