"""A trainer process for tests: `python -m tests.system.trainer JSON`. Prints a JSON line per event."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
import warnings
import zlib
from typing import Any

import libhelix as hx
from tests.system import recipes


def _say(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


def _checksum(batch: Any) -> int:
    total = 0
    for name in sorted(batch):
        values = batch[name] if isinstance(batch[name], list) else [batch[name]]
        for value in values:
            total = zlib.crc32(value.contiguous().numpy().tobytes(), total)
    return total


def main(index: str, **options: Any) -> None:
    """Iterate; `options` are the loader's, and what the test wants besides."""
    step_by_step = options.pop("step_by_step", False)
    fork = options.pop("fork", False)
    sleep_s = options.pop("sleep_s", 0.0)
    recipe = getattr(recipes, options.pop("recipe", "Plain"))(**options.pop("parameters", {}))
    if "socket" in options:
        os.environ["HELIX_SOCKET"] = options.pop("socket")
    batching = hx.FixedBatch(options.pop("samples", 2), regroup=options.pop("regroup", 1))
    mixture, changes = options.pop("mixture", None), options.pop("set_weights", {})
    source = index if mixture is None else hx.Mixture(mixture)
    loader = hx.Loader(source, recipe=recipe, batching=batching, **options)
    _say("start", pid=os.getpid(), length=len(loader) if options.get("epochs", 1) else None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in loader:
            _say(
                "batch",
                at=[batch.epoch, batch.step, batch.micro],
                ids=batch.ids,
                keys=batch.sample_keys,
                valid=batch.valid.tolist(),
                checksum=_checksum(batch),
            )
            if fork:
                # A helper process that outlives its parent, as data loading forks do; one that C code forks
                # keeps our socket open, as nobody tells libhelix of it.
                forked = ctypes.PyDLL(None).fork() if fork == "in C" else os.fork()
                fork = False
                if forked == 0:
                    time.sleep(60)
                    os._exit(0)
                _say("forked")
            if step_by_step:
                sys.stdin.readline()
            if (weights := changes.get(f"{batch.step}")) is not None:
                loader.set_weights(weights)
            time.sleep(sleep_s)
        loader.close()
    _say("end", warnings=[str(w.message) for w in caught])


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
