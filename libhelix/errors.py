"""One tree of errors. Each says what failed, where, and what to do about it.

`code` is what travels between processes, so that every rank raises the same class.
"""

from __future__ import annotations

from typing import ClassVar


class HelixError(Exception):
    """Base of everything DataHelix raises on purpose."""

    code: ClassVar[str] = "error"


class UsageError(HelixError, ValueError):
    """The caller asked for something that cannot be; the text says what to write instead."""

    code = "usage"


class RecipeNotImportable(UsageError):
    """Workers import recipes by `module:Class`; this one cannot be found that way."""

    code = "recipe-not-importable"


class RecipeError(HelixError):
    """The recipe broke its contract (see `libhelix.recipe`)."""

    code = "recipe"


class IndexProblem(HelixError):
    """The index cannot be read, or does not fit the files it describes."""

    code = "index"


class MediaError(HelixError):
    """A file is not what its place in a sample needs, or cannot be decoded. Concerns one sample."""

    code = "media"


class ResumeMismatch(HelixError):
    """A saved state belongs to another data set, recipe, batching or order."""

    code = "resume"


class TooManyBadSamples(HelixError):
    """More samples failed than the job allows."""

    code = "bad-samples"


class Conflict(HelixError):
    """Two ranks claim one place, or ranks disagree on a setting."""

    code = "conflict"


class Oversize(HelixError):
    """A sample does not fit a micro-batch, or a batch the bytes declared for it. `sample`: because of it."""

    code = "oversize"

    def __init__(self, text: str, sample: int | None = None) -> None:
        super().__init__(text)
        self.sample = sample


class OutOfSharedMemory(HelixError):
    """The ring does not fit into the shared memory or the memory limit that is there."""

    code = "memory"

    def __init__(self, text: str, *, limited: bool = False) -> None:
        super().__init__(text)
        self.limited = limited


class QuotaExceeded(HelixError):
    """The user has as much of the node as the operator allows."""

    code = "quota"


class RingFull(HelixError):
    """The replicas of a rank hold different batches and together fill the ring."""

    code = "ring-full"


class ProtocolError(HelixError):
    """The other side of a socket broke the contract of `libhelix.wire`."""

    code = "protocol"


class WorkerHostLost(HelixError):
    """The process that forks decode workers could not be started, or keeps dying."""

    code = "worker-host"


class DaemonUnreachable(HelixError):
    """No helixd answers, or the one that did is gone and cannot be replaced."""

    code = "unreachable"


class Stalled(HelixError):
    """No batch came within the time allowed; the text names what it waited for."""

    code = "stalled"


class HelixWarning(UserWarning):
    """Something that costs speed or samples, or was assumed, and does not stop the training."""


def _tree(cls: type[HelixError]) -> dict[str, type[HelixError]]:
    found = {cls.code: cls} if cls.__module__ == __name__ else {}  # others are kinds of these
    for sub in cls.__subclasses__():
        found.update(_tree(sub))
    return found


def from_code(code: str, text: str) -> HelixError:
    """The error a peer reported, as the class that has its code; unknown codes become HelixError."""
    return _tree(HelixError).get(code, HelixError)(text)
