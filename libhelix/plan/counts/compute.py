"""Relative accelerator cost of a sequence, as exact integers: to compare and balance, in no unit of time.

Attention stays within a sequence, so the cost of packed sequences is the sum of their costs.
"""

from __future__ import annotations

from fractions import Fraction

from libhelix.plan.counts._numbers import check_setting


def decoder(tokens: int, linear: int = 24_576) -> int:
    """The cost of a dense language model on one sequence: linear * s + s^2.

    A layer of width d does 24 * s * d^2 + 4 * s^2 * d operations, which is 6 * d * s + s^2 in units of
    4 * d; 24,576 is 6 * d of a 7B model, d = 4096. UsageError for negative numbers.
    """
    check_setting("tokens", tokens, 0)
    check_setting("linear", linear, 0)
    return linear * tokens + tokens * tokens


def dit(tokens: int, width: int, gamma: float | Fraction = 1) -> int:
    """The cost of a layer of a video diffusion transformer: 24 * l * d^2 + gamma * 4 * l^2 * d.

    `width` is d; `gamma` is how much slower attention runs than the matrix products, fitted to
    measurements. The second term is rounded down. UsageError for negative numbers.
    """
    check_setting("tokens", tokens, 0)
    check_setting("width", width)
    check_setting("gamma", float(gamma), 0)
    return 24 * tokens * width * width + int(Fraction(gamma) * 4 * tokens * tokens * width)
