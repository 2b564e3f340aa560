"""What is wrong with a value, in words for the one who wrote it."""

from __future__ import annotations

import msgspec


def problem(error: msgspec.ValidationError, of: type[msgspec.Struct], field: str) -> str:
    """What a field of a struct must be, by the error that refused its value; of choices, all of them."""
    text = str(error).partition(" - at `$")[0].replace("`", "")
    choices = _choices(of, field)
    if choices and text.startswith("Invalid enum value"):
        *others, last = (f'"{choice}"' for choice in choices)
        return f"must be {', '.join(others)} or {last}" if others else f"must be {last}"
    return text.replace("Expected", "must be")


def _choices(of: type[msgspec.Struct], field: str) -> list[object]:
    info = msgspec.inspect.type_info(of)
    assert isinstance(info, msgspec.inspect.StructType)
    found = next((f.type for f in info.fields if f.encode_name == field), None)
    return list(found.values) if isinstance(found, msgspec.inspect.LiteralType) else []
