"""Objects of a trainer that its workers need, such as a dataset: by name, or pickled in the user's cache.

What is pickled lies in $HELIX_CACHE/objects, named by its content and readable by the user alone. Reading one
runs what it holds, so one that others could have written is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import re
import stat
import sys
import tempfile
import time
import types
from functools import lru_cache
from typing import Any

from libhelix.errors import RecipeNotImportable, UsageError
from libhelix.index.cache import user_cache
from libhelix.recipes.run import imported

KEPT_S = 90 * 86_400
"""How long one is kept that no trainer made, and no worker read."""
_PICKLED = "pickle:"
_NO_DEVICES = {
    "CUDA_VISIBLE_DEVICES": "",
    "ASCEND_RT_VISIBLE_DEVICES": "",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
}
_OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
"""Whoever started the worker host has these. A worker is of no rank, and datasets that share out shards by
them would leave most of these out."""
_process = {"worker": False}
_live: dict[str, Any] = {}
"""Those of this process, which needs no copy of them."""
_copied: dict[str, bytes] = {}
"""Of those, pickles of which copies are made: their owner may go on to use them."""


class _Pickler(pickle.Pickler):
    """Refuses classes and functions that no other process can import."""

    def reducer_override(self, obj: Any) -> Any:
        """Whether it is one of `__main__`."""
        named = isinstance(obj, type | types.FunctionType)
        if named and obj.__module__ == "__main__":
            raise RecipeNotImportable(
                f"__main__:{obj.__qualname__}: workers import what they run by name; move it to a module"
            )
        return NotImplemented


def stored(value: Any, what: str, *, importable: bool = True, copied: bool = False) -> str:
    """The name under which workers find an object: a "module:name" as it is, else that of its pickle.

    Raises UsageError for what cannot be pickled, and, if it must be `importable`, RecipeNotImportable for
    what is defined in the script itself. `copied`: `another` is to be asked for it.
    """
    if isinstance(value, str):
        if ":" not in value:
            raise UsageError(f'{what}={value!r} names no function; write "my_module:make"')
        return value
    file = io.BytesIO()
    try:
        (_Pickler if importable else pickle.Pickler)(file, protocol=5).dump(value)
    except RecipeNotImportable:
        raise
    except Exception as e:  # pickling runs the code of what it pickles
        raise UsageError(
            f"{what} cannot be pickled for the workers ({type(e).__name__}: {e}); define it in a module, or "
            'give the name of a function that makes it: "my_module:make"'
        ) from e
    content = file.getbuffer()
    name = _PICKLED + hashlib.blake2b(content, digest_size=16).hexdigest()
    _live[name] = value
    if copied:
        _copied[name] = bytes(content)
    if importable:
        _write(_path(name), content)
    return name


def in_worker() -> bool:
    """Whether what was found here was found by a worker, not by a trainer."""
    return _process["worker"]


@lru_cache(maxsize=16)
def found(name: str, call: bool) -> Any:
    """The object of a name; `call`: names of functions are of those that make it.

    Raises RecipeNotImportable with the cause.
    """
    return _live[name] if name in _live else _made(name, call)


def another(name: str) -> Any:
    """As `found`, and to be called, but one that nobody else has."""
    return pickle.loads(_copied[name]) if name in _copied else _made(name, True)


def _made(name: str, call: bool) -> Any:
    worker = "torch" not in sys.modules  # a trainer has it
    if worker:
        _process["worker"] = True
        # What comes now may import torch: it opens no accelerator here, and has one core.
        os.environ.update(_NO_DEVICES)
        for variable in _OF_RANKS:
            os.environ.pop(variable, None)
    if name.startswith(_PICKLED):
        value = _read(_path(name))
    else:
        value = imported(*name.split(":", 1))
        value = value() if call else value
    if worker and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    return value


def _read(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            held = os.fstat(file.fileno())
            if held.st_uid == os.geteuid() and not stat.S_IMODE(held.st_mode) & 0o077:
                os.utime(file.fileno())
                return pickle.load(file)
        cause = "it belongs to another user, or others may read or write it; remove it"
    except Exception as e:  # noqa: BLE001  # unpickling runs the code of what it holds
        cause = f"{type(e).__name__}: {e}; workers import what it needs by name, with the trainer's sys.path"
    raise RecipeNotImportable(f"{path} is not unpickled in a worker: {cause}")


def _path(name: str) -> str:
    digest = name.removeprefix(_PICKLED)
    if not re.fullmatch("[0-9a-f]{32}", digest):  # names also come with states, from wherever these come
        raise RecipeNotImportable(f"{name!r} names no object that a trainer has stored")
    return os.path.join(user_cache(), "objects", f"{digest}.pickle")


def _write(path: str, content: memoryview) -> None:
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _forget_old(folder)
        if os.path.exists(path):
            os.utime(path)
            return
        fd, temporary = tempfile.mkstemp(dir=folder)  # for the user alone; nodes may share the folder
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}; set HELIX_CACHE to a writable folder") from e


def _forget_old(folder: str) -> None:
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # another trainer was faster
            if entry.stat().st_mtime < time.time() - KEPT_S:
                os.unlink(entry.path)
