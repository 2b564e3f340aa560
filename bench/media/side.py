"""A process with one library: `python -m bench.media.side`, told what to do by bench/side.py."""

from __future__ import annotations

import time

import numpy as np

from bench.child import serve
from bench.media.requests import Decode, Decoded, Use, Used
from bench.media.systems import SYSTEMS, Array, System


class Decoding:
    """The library in use."""

    def __init__(self) -> None:
        self._system = System()

    def handle(self, request: Use | Decode) -> Used | Decoded:
        """Answer a request. A library may raise anything; that is its answer."""
        if isinstance(request, Use):
            try:
                self._system = SYSTEMS[request.system]()
            except Exception as e:  # noqa: BLE001 - broken installations differ in how they fail
                return Used(missing=(str(e).strip() or type(e).__name__).splitlines()[0])
            return Used(version=self._system.version)
        try:
            return self._decode(request)
        except NotImplementedError:
            return Decoded(error="no decoder")
        except Exception as e:  # noqa: BLE001 - libraries do not document what they raise
            return Decoded(error=(str(e).strip() or type(e).__name__).splitlines()[0][:200])

    def _decode(self, request: Decode) -> Decoded:
        work, least_s = request.work, float("inf")
        found: Array = np.empty(0)
        for _ in range(request.times):
            began_s = time.process_time()
            if work.medium == "video":
                found = self._system.video(work.path, work.frames)
            elif work.medium == "image":
                found = self._system.image(work.path)
            else:
                found = self._system.sound(work.path)
            least_s = min(least_s, time.process_time() - began_s)
        if request.save:
            np.save(request.save, found)
        return Decoded(cpu_s=least_s)


def main() -> None:
    """Until the parent closes stdin."""
    serve(Use | Decode, Decoding().handle)  # type: ignore[arg-type]  # a union is a type to msgspec


if __name__ == "__main__":
    main()
