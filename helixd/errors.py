"""Errors of the daemon's own."""

from __future__ import annotations

import traceback

from libhelix.errors import UsageError


class ConfigError(UsageError):
    """A setting cannot be; the text names where it was set and what to write."""

    code = "config"


def place_of(error: BaseException) -> tuple[str, int] | None:
    """File and line that raised it; None where it was not raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return (frames[-1].filename, frames[-1].lineno or 0) if frames else None
