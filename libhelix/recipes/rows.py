"""Rows of a whole index, stored beside it: what a recipe declares of every sample, for planning ahead.

train.arrow  ->  train.<8 hex digits of recipe and index>.rows.arrow

    cost.<name>   int64, null where not declared       bytes       int64, of all fields, each aligned
    group         text                                 decode_us   int64, predicted, all segments
    error         text, where describe failed
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from libhelix.errors import IndexProblem, RecipeError
from libhelix.index import writing
from libhelix.index.read import Index
from libhelix.index.schema import META_ROWS
from libhelix.plan.caps import multiples, shrink_caps
from libhelix.recipe import Recipe
from libhelix.wire.layout import record_bytes
from libhelix.wire.messages import FieldSpec, Row
from libhelix.wire.settings import Batching, RecipeSpec

FORMAT = 1
"""Raised whenever a reader of the previous number would misread the file."""
UNDECLARED = -1
"""Stands in a column for a cost that a sample does not declare."""
_COST = "cost."
_MISPLACED = "put the index where you can write: its rows lie beside it"

Ints = NDArray[np.int64]


class Origin(msgspec.Struct, frozen=True):
    """What rows were made of.

    `drawn`: costs, groups or shapes depend on random draws, and the rows are those of `seed` and `epoch`.
    `numbered`: they depend on the number of the sample, `Sample.id`, which is another in a mixture.
    `record_bytes`: what a sample has in a batch beside its fields.
    `padded`: what fields take in a batch depends on their neighbours too; `counted`: if packs are padded.
    """

    format: int
    index: str
    recipe: RecipeSpec
    seed: int
    epoch: int
    drawn: bool
    numbered: bool
    record_bytes: int
    padded: bool
    counted: bool


@dataclass(frozen=True)
class Rows:
    """Columns over all samples; `rows[i]` is the row of sample i, as planning takes it."""

    origin: Origin
    costs: Mapping[str, Ints]
    groups: Sequence[str]
    group_of: NDArray[np.int32]
    nbytes: Ints
    decode_us: Ints
    errors: Mapping[int, str]

    def __post_init__(self) -> None:
        # A memoryview gives Python's own integers, ten times as fast as an array does.
        views = [(name, column.data) for name, column in self.costs.items()]
        columns = views, self.nbytes.data, self.group_of.data, self.decode_us.data
        object.__setattr__(self, "_columns", columns)

    def __len__(self) -> int:
        return len(self.nbytes)

    def __getitem__(self, sample: int) -> Row:
        costs, nbytes, group_of, decode_us = self._columns  # type: ignore[attr-defined]
        error = self.errors.get(sample, "")
        if error:
            return Row(sample, (), {}, 1, (), (0,), error=error)
        declared = {name: cost for name, column in costs if (cost := column[sample]) != UNDECLARED}
        shapes = ((nbytes[sample],),)
        return Row(sample, shapes, declared, 1, (), (decode_us[sample],), self.groups[group_of[sample]])

    @property
    def schema(self) -> tuple[FieldSpec, ...]:
        """One field that takes the bytes of all, with as large a record: planning asks for no more."""
        plain = FieldSpec("bytes", "uint8", "ragged", ndim=0)
        return (
            FieldSpec(
                "bytes", "uint8", "ragged", ndim=(self.origin.record_bytes - record_bytes([plain])) // 8
            ),
        )

    def write(self, path: str) -> None:
        """Store them, atomically. Raises IndexProblem."""
        columns: dict[str, Any] = {}
        for name, column in self.costs.items():
            columns[_COST + name] = pa.array(column, mask=column == UNDECLARED)
        codes = pa.array(self.group_of)
        columns["group"] = pa.DictionaryArray.from_arrays(codes, pa.array(self.groups, pa.string()))
        columns["bytes"] = pa.array(self.nbytes)
        columns["decode_us"] = pa.array(self.decode_us)
        columns["error"] = pa.array([self.errors.get(i) for i in range(len(self))], pa.large_string())
        batch = pa.record_batch(columns)
        metadata = {META_ROWS: msgspec.json.encode(self.origin)}
        writing.write(batch.replace_schema_metadata(metadata), path, _MISPLACED)

    @classmethod
    def open(cls, path: str) -> Rows:
        """Stored rows. Raises IndexProblem for what is missing or none."""
        try:
            reader = pa.ipc.open_file(pa.memory_map(path, "r"))
            origin = msgspec.json.decode((reader.schema.metadata or {})[META_ROWS], type=Origin)
            if origin.format != FORMAT:
                raise IndexProblem(f"{path}: rows of format {origin.format}, this version reads {FORMAT}")
            batch = reader.get_batch(0)
            batch.validate()
            names = [name[len(_COST) :] for name in batch.schema.names if name.startswith(_COST)]
            group, error = batch.column("group"), batch.column("error")
            failed = np.flatnonzero(error.is_valid().to_numpy(zero_copy_only=False)).tolist()
            return cls(
                origin,
                {name: _numbers(batch.column(_COST + name)) for name in names},
                group.dictionary.to_pylist(),
                group.indices.to_numpy(),
                _numbers(batch.column("bytes")),
                _numbers(batch.column("decode_us")),
                {i: error[i].as_py() for i in failed},
            )
        except OSError as e:
            raise IndexProblem(f"{path}: {os.strerror(e.errno) if e.errno else e}") from e
        except (pa.ArrowInvalid, KeyError, msgspec.MsgspecError) as e:
            raise IndexProblem(f"{path}: no rows, or truncated ones ({e})") from e


def _numbers(column: Any) -> Ints:
    found: Ints = column.fill_null(UNDECLARED).to_numpy()
    return found


def spec_of(recipe: Recipe) -> RecipeSpec:
    """A recipe by name and parameters, these in one way: Clip(rate=2) is Clip(rate=2.0)."""
    cls = type(recipe)
    try:
        again = msgspec.json.decode(msgspec.json.encode(recipe), type=cls)
    except msgspec.DecodeError as e:
        name = f"{cls.__module__}:{cls.__qualname__}"
        raise RecipeError(f"recipe {name} does not take its own parameters back: {e}") from e
    return RecipeSpec(cls.__module__, cls.__qualname__, msgspec.json.encode(again).decode())


def path_of(index: Index, recipe: Recipe) -> str:
    """Where the rows of an index and a recipe lie."""
    mark = hashlib.blake2b(msgspec.json.encode((index.fingerprint, spec_of(recipe))), digest_size=4)
    folder, name = os.path.split(os.path.abspath(index.path))
    return str(Path(folder, f"{name.removesuffix('.arrow')}.{mark.hexdigest()}.rows.arrow"))


def check_writable(path: str) -> None:
    """Raise IndexProblem unless rows can be written there."""
    writing.check_writable(path, _MISPLACED)


def stored_rows(
    indexes: Sequence[Index],
    recipe: Recipe,
    *,
    seed: int,
    epoch: int,
    mixed: bool,
    batching: Batching,
) -> Rows:
    """The rows beside indexes, of one after the other, as they are in an epoch.

    `mixed`: samples may come more than once in it. `batching`: what they are planned for; rows are those of
    samples before any is shrunk. Raises IndexProblem, with the command to type.
    """
    missing = [index for index in indexes if not os.path.exists(path_of(index, recipe))]
    if missing:
        make = " && ".join(dict.fromkeys(command(index, recipe, seed) for index in missing))
        raise IndexProblem(
            "how many steps an epoch has depends on its samples, whose rows are needed; make them with: "
            f"{make}"
        )
    rows = _joined([_stored(index, recipe, seed, epoch, mixed) for index in indexes])
    check_bytes(rows, batching)
    for name, cap in shrink_caps(batching).items():
        larger = int((rows.costs[name] > cap).sum()) if name in rows.costs else 0
        if larger:
            raise IndexProblem(
                f'how many steps an epoch has is not known with oversize="shrink": {larger} of {len(rows)} '
                f"samples exceed {cap} {name}, and their rows do not say what recipe {rows.origin.recipe} "
                "shrinks them to"
            )
    return rows


def check_bytes(rows: Rows, batching: Batching) -> None:
    """Raise IndexProblem where the batching caps bytes and rows do not say how many a sample takes."""
    padded = rows.origin.padded or (multiples(batching) and rows.origin.counted)
    if batching.max_bytes is not None and padded:
        raise IndexProblem(
            "how many steps an epoch has is not known with max_bytes= and padded fields: what a sample takes "
            "depends on its neighbours"
        )


def _stored(index: Index, recipe: Recipe, seed: int, epoch: int, mixed: bool) -> Rows:
    path = path_of(index, recipe)
    make = f"make them with: {command(index, recipe, seed)}"
    try:
        rows = Rows.open(path)
    except IndexProblem as e:
        raise IndexProblem(f"{e}; {make}") from e
    made = rows.origin
    if (made.index, made.recipe, len(rows)) != (index.fingerprint, spec_of(recipe), len(index)):
        raise IndexProblem(f"{path}: rows of another index or recipe; {make}")
    if mixed and (made.drawn or made.numbered):
        cause = "random draws" if made.drawn else "Sample.id"
        raise IndexProblem(f"{path}: costs depend on {cause}, so that mixtures have no known length")
    if made.drawn and (made.seed, made.epoch) != (seed, epoch):
        cure = make if epoch == made.epoch else "other epochs have no known length"
        raise IndexProblem(
            f"{path}: costs depend on random draws, and these are of seed {made.seed}, epoch {made.epoch}, "
            f"not of seed {seed}, epoch {epoch}; {cure}"
        )
    return rows


def _joined(parts: Sequence[Rows]) -> Rows:
    """The rows of some indexes as those of one."""
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys(name for rows in parts for name in rows.costs)
    groups = list(dict.fromkeys(group for rows in parts for group in rows.groups))
    codes = [np.asarray([groups.index(group) for group in rows.groups], dtype=np.int32) for rows in parts]
    starts = np.cumsum([0, *map(len, parts)]).tolist()
    nothing = [np.full(len(rows), UNDECLARED, dtype=np.int64) for rows in parts]
    return Rows(
        parts[0].origin,
        {name: np.concatenate([r.costs.get(name, no) for r, no in zip(parts, nothing)]) for name in names},
        groups,
        np.concatenate([code[rows.group_of] for code, rows in zip(codes, parts)]),
        np.concatenate([rows.nbytes for rows in parts]),
        np.concatenate([rows.decode_us for rows in parts]),
        {start + i: text for start, rows in zip(starts, parts) for i, text in rows.errors.items()},
    )


def command(index: Index, recipe: Recipe, seed: int) -> str:
    """What makes these rows, for a shell."""
    spec = spec_of(recipe)
    words = ["helixctl", "describe", *index.sources, "--recipe", str(spec)]
    defaults = {field.encode_name: field.default for field in msgspec.structs.fields(recipe)}
    for name, value in msgspec.json.decode(spec.params).items():
        text = msgspec.json.encode(value)
        if defaults[name] is msgspec.NODEFAULT or text != msgspec.json.encode(defaults[name]):
            words += ["--param", f"{name}={text.decode()}"]
    return shlex.join([*words, *(["--seed", str(seed)] if seed else [])])
