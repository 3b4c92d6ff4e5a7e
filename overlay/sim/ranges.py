"""Numbers that a scenario fixes or leaves to the seed: one number, or the least and the most."""

from __future__ import annotations

import random

IntRange = int | tuple[int, int]
"""In a scenario: `peers = 20` or `peers = [12, 40]`."""


def draw(rng: random.Random, given: IntRange) -> int:
    """The number itself, or one between both ends, ends included.

    >>> draw(random.Random(1), 7)
    7
    >>> 12 <= draw(random.Random(1), (12, 40)) <= 40
    True
    """
    return given if isinstance(given, int) else rng.randint(*given)
