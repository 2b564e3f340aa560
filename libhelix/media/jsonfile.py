"""JSON files of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from libhelix.errors import UsageError


def read_object(path: str) -> Mapping[str, Any]:
    """The object of a file; an empty one where there is no file. Raises UsageError."""
    try:
        with open(path, "rb") as file:
            found = msgspec.json.decode(file.read())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as e:
        raise UsageError(f"{path}: cannot be read: {e}; fetch it again") from e
    if not isinstance(found, dict):
        raise UsageError(f"{path}: is no JSON object; fetch it again")
    return found
