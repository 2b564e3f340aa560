"""Checks and roundings that the families share."""

from __future__ import annotations

import math
import struct

from libhelix.errors import MediaError, UsageError


def check_picture(height: int, width: int) -> None:
    """Raise MediaError unless a picture has pixels."""
    if height < 1 or width < 1:
        raise MediaError(f"a picture of {width}x{height} pixels has no size; leave it out of the index")


def check_frames(frames: int) -> None:
    """Raise MediaError unless a video has frames."""
    if frames < 1:
        raise MediaError(f"a video of {frames} frames has none; leave it out of the index")


def check_rate(fps: float) -> None:
    """Raise MediaError unless a video has a rate, in frames per second."""
    if not (math.isfinite(fps) and fps > 0):
        raise MediaError(f"a video of {fps} frames per second has no rate; index it again or leave it out")


def check_setting(name: str, value: float, least: float = 1) -> None:
    """Raise UsageError unless a setting is finite and at least so much."""
    if not (math.isfinite(value) and value >= least):
        raise UsageError(f"{name}={value} must be {least} or more")


def check_target_rate(rate: float) -> None:
    """Raise UsageError unless a target rate, in frames per second, is above 0."""
    if not (math.isfinite(rate) and rate > 0):
        raise UsageError(f"rate={rate} must be above 0 frames per second")


def float32(x: float) -> float:
    """The nearest single-precision number."""
    nearest: float = struct.unpack("f", struct.pack("f", x))[0]
    return nearest


def linspace(last: float, n: int) -> list[float]:
    """n numbers from 0 to `last`, equal to numpy.linspace(0, last, n) bit for bit."""
    if n == 1:
        return [0.0]
    step = last / (n - 1)
    return [*(i * step for i in range(n - 1)), float(last)]
