"""JSON files of checkpoints."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from libhelix.errors import HelixWarning, UsageError


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


def processor(folder: str, part: str, file: str = "preprocessor_config.json") -> Mapping[str, Any]:
    """What a checkpoint says of a part of its processor, as transformers 5 writes it or else before; an empty
    object where it says nothing. Raises UsageError."""
    found = read_object(os.path.join(folder, "processor_config.json")).get(part)
    return found if isinstance(found, dict) else read_object(os.path.join(folder, file))


@lru_cache(maxsize=64)
def warn_of_defaults(folder: str, part: str, assumed: str) -> None:
    """Say once what is assumed, where a checkpoint's folder has nothing of a part of its processor."""
    name = "preprocessor_config.json"
    if not processor(folder, part) and not os.path.exists(os.path.join(folder, name)):
        warnings.warn(
            f"{folder}: has no {name}, so that {assumed}; fetch the file, if the checkpoint has one",
            HelixWarning,
            stacklevel=2,
        )
