"""Errors of the daemon's own."""

from __future__ import annotations

from libhelix.errors import UsageError


class ConfigError(UsageError):
    """A setting cannot be; the text names where it was set and what to write."""

    code = "config"
