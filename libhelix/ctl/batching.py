"""A batching on a command line, as users write it in Python: 'Buckets(80, same_kind="step")'."""

from __future__ import annotations

import ast
from typing import Any

import msgspec

from libhelix.errors import UsageError
from libhelix.wire.checking import problem
from libhelix.wire.settings import Batching, Buckets, FixedBatch, Packed, TokenBudget

_NAMES: dict[str, type[Batching]] = {cls.__name__: cls for cls in (FixedBatch, TokenBudget, Packed, Buckets)}
_WRITE = "write one of FixedBatch(8), TokenBudget(16384), Packed(8192) and Buckets(65536), as in Python"


def parsed(text: str) -> Batching:
    """The batching that an expression makes; nothing is evaluated, arguments are literals.

    Raises UsageError that names the argument, and what it may be.
    """
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise UsageError(f"--batching {text}: no expression ({e}); {_WRITE}") from e
    cls = _NAMES.get(_name(call.func)) if isinstance(call, ast.Call) else None
    if cls is None or not isinstance(call, ast.Call):
        raise UsageError(f"--batching {text}: {_WRITE}")
    values = _arguments(call, cls, text)
    try:
        return msgspec.convert({**values, "type": cls.__struct_config__.tag}, cls)
    except msgspec.ValidationError as e:
        field = str(e).rpartition("$.")[2].rstrip("`")
        wrong = problem(e, cls, field)
        raise UsageError(f"--batching {text}: {field}={values[field]!r} {wrong}") from e


def _name(function: ast.expr) -> str:
    """Of FixedBatch, and of hx.FixedBatch."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _arguments(call: ast.Call, cls: type[Batching], text: str) -> dict[str, Any]:
    fields = msgspec.structs.fields(cls)
    names = [field.encode_name for field in fields]
    has = f"{cls.__name__} has: {', '.join(names)}"
    if len(call.args) > len(names):
        raise UsageError(f"--batching {text}: {len(call.args)} arguments; {has}")
    given = [*zip(names, call.args), *((word.arg, word.value) for word in call.keywords)]
    values: dict[str, Any] = {}
    for name, value in given:
        if name not in names:
            raise UsageError(f"--batching {text}: no argument {name or '**'}; {has}")
        if name in values:
            raise UsageError(f"--batching {text}: {name} is given twice")
        try:
            values[name] = ast.literal_eval(value)
        except ValueError as e:
            raise UsageError(
                f"--batching {text}: {name}={ast.unparse(value)} is no literal; write a number or a text in "
                "quotes"
            ) from e
    missing = [f.encode_name for f in fields if f.required and f.encode_name not in values]
    if missing:
        raise UsageError(f"--batching {text}: {missing[0]} is missing; {has}")
    return values
