"""`python -m libhelix.device_probe`: what torch sees here, and how bytes of a ring would reach it.

For helixctl doctor, in a process of its own: torch, a backend or a driver may be broken, hang, or crash.
Every line of output is a JSON object of what is known by then, so that it is known how far it came.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

_RING_BYTES = 1 << 20
_COPY_LIMIT_S = 30.0


def main() -> int:
    """Look, and print. Returns 1 where torch cannot be imported or fails."""
    known: dict[str, Any] = {}
    try:
        for more in _steps():
            known |= more
            print(json.dumps(known), flush=True)
    except Exception as e:  # noqa: BLE001  # whatever torch, a backend or a driver raises is the finding
        known["error"] = _root(e)
        print(json.dumps(known), flush=True)
        return 1
    return 0


def _root(error: BaseException) -> str:
    """The first line of what went wrong first: torch tells of a backend's error in words of its own."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


def _steps() -> Iterator[dict[str, Any]]:
    yield {"step": "import torch"}
    import torch

    yield {
        "step": "torch.accelerator",
        "torch": torch.__version__,
        "cuda_build": torch.version.cuda,
        "hip_build": torch.version.hip,
        "npu_loaded": "torch_npu" in sys.modules,
    }
    if not hasattr(torch, "accelerator"):
        yield {"step": "done", "accelerator": None, "old": True}
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        there = torch.accelerator.is_available()
    # Why there is none, torch says in a warning.
    yield {"warnings": [str(w.message).splitlines()[0] for w in said]}
    current = torch.accelerator.current_accelerator() if there else None
    if current is None:
        yield {"step": "done", "accelerator": None}
        return
    yield {"step": "a copy", "accelerator": current.type, "devices": torch.accelerator.device_count()}
    from libhelix.accelerator import TorchAccelerator, resolved

    device = resolved("auto")
    assert device is not None
    yield {"step": "done", "device": str(device), "tier": _tier(TorchAccelerator(device))}


def _tier(accelerator: Any) -> str:
    """As libhelix.device finds out with the first batch, on a small segment of the same kind."""
    import torch

    from libhelix.wire import segment

    descriptor = segment.create(_RING_BYTES)
    os.posix_fallocate(descriptor, 0, _RING_BYTES)
    memory = segment.attach(descriptor, _RING_BYTES)
    undo = accelerator.register(memory)
    host = torch.arange(1024, dtype=torch.float32)
    staged = None if undo is not None else accelerator.stage(host)
    source = staged if staged is not None else host
    if undo is not None:
        source = torch.frombuffer(memory, dtype=torch.float32, count=len(host)).copy_(host)
    with accelerator.side():
        on_device = accelerator.upload(source)
    if not accelerator.finish(accelerator.event(), _COPY_LIMIT_S):
        raise RuntimeError(f"a copy of {host.nbytes} bytes has not ended within {_COPY_LIMIT_S:.0f} s")
    if not torch.equal(on_device.cpu(), host):
        raise RuntimeError("what was copied to the device is not what came back")
    if undo is None:
        return "plain" if staged is None else "staged"
    undo()
    return "registered"


if __name__ == "__main__":
    os._exit(main())  # at once: a device that is lost may hang in the destructors, too
