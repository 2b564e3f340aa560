"""Strategies for messages, read off their types: a new message is tested from the day it is written."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from libhelix.wire import codec
from libhelix.wire import messages as m

LINKS: dict[str, tuple[Any, codec.Decoder[Any]]] = {
    "hello": (m.Hello, codec.hello),
    "trainer to helixd": (m.FromTrainer, codec.from_trainer),
    "helixd to trainer": (m.ToTrainer, codec.to_trainer),
    "host to helixd": (m.FromHost, codec.from_host),
    "helixd to host": (m.ToHost, codec.to_host),
    "worker to helixd": (m.FromWorker, codec.from_worker),
    "helixd to worker": (m.ToWorker, codec.to_worker),
    "helixctl to helixd": (m.FromCtl, codec.from_ctl),
    "helixd to helixctl": (m.ToCtl, codec.to_ctl),
}
"""The closed union of each direction, and its decoder."""

_LONGEST = 3  # elements of a generated collection


def kinds(union: Any) -> tuple[type[msgspec.Struct], ...]:
    """The message types of a union; it may be a single type."""
    return get_args(union) or (union,)


def instances(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type that the wire allows, its limits included."""
    return _of(inspect.type_info(kind))


def _of(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.Metadata():
            return _of(kind.type)
        case inspect.UnionType():
            return st.one_of(*(_of(t) for t in kind.types))
        case inspect.StructType():
            return st.builds(kind.cls, **{f.name: _of(f.type) for f in kind.fields})
        case inspect.IntType():
            low = kind.ge if kind.ge is not None else -(1 << 63)
            high = kind.le if kind.le is not None else kind.lt - 1 if kind.lt is not None else (1 << 63) - 1
            return st.integers(int(low), int(high))
        case inspect.FloatType():
            return st.floats(kind.ge, kind.le, allow_nan=False)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.StrType():
            longest = max(min(kind.max_length or 16, 16), kind.min_length or 0)
            return st.text(min_size=kind.min_length or 0, max_size=longest)
        case inspect.BytesType():
            return st.binary(max_size=min(kind.max_length or 16, 16))
        case inspect.VarTupleType():
            longest = min(kind.max_length or _LONGEST, _LONGEST)
            least = min(kind.min_length or 0, longest)
            return st.lists(_of(kind.item_type), min_size=least, max_size=longest).map(tuple)
        case inspect.TupleType():
            return st.tuples(*(_of(t) for t in kind.item_types))
        case inspect.DictType():
            return st.dictionaries(_of(kind.key_type), _of(kind.value_type), max_size=_LONGEST)
    raise NotImplementedError(f"no strategy for {kind}")
