"""The one place the version is written; pyproject.toml and the wire read it here."""

__version__ = "0.1.0"
