"""What decoding has turned out to cost on this machine, kept for the user's next jobs.

$HELIX_CACHE or ~/.cache/helix holds decode-costs.json: by processor and kind, measured CPU time relative to
what recipes predict. It only makes the first seconds of a job better predicted; without it a job learns anew.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import lru_cache

import msgspec

from libhelix.index.cache import user_cache
from libhelix.wire.messages import Scales

_NAME = "decode-costs.json"
_MAX_PROCESSORS = 64
_MAX_KINDS = 64
"""Of a processor: as many as fit a message beside the rest of it."""


def kept_scales() -> dict[str, float]:
    """By kind, what earlier jobs on a machine like this learned; nothing where that cannot be read."""
    return dict(list(_read().get(_processor(), {}).items())[-_MAX_KINDS:])


def keep_scales(scales: dict[str, float]) -> None:
    """Keep what was learned. Where it cannot be written, the next job learns it again."""
    kept = _read()
    before = kept.get(_processor(), {})
    others = {kind: scale for kind, scale in before.items() if kind not in scales}
    kept[_processor()] = dict(list((others | scales).items())[-_MAX_KINDS:])
    for old in list(kept)[:-_MAX_PROCESSORS]:
        del kept[old]
    path = _path()
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Replaced in one go: ranks and jobs write at the same time.
        fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=_NAME)
        try:
            with open(fd, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(kept), indent=1))
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)


def _path() -> str:
    return os.path.join(user_cache(), _NAME)


def _read() -> dict[str, dict[str, float]]:
    try:
        with open(_path(), "rb") as file:
            return msgspec.json.decode(file.read(), type=dict[str, Scales])
    except (OSError, msgspec.DecodeError):
        return {}


@lru_cache(maxsize=1)
def _processor() -> str:
    """The processor's model: home directories are shared by machines that differ."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in ("model name", "CPU part"):
                    return value.strip()
    except OSError:
        pass
    return os.uname().machine
