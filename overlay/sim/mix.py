"""A number drawn from numbers: it looks random, is the same on every run, and costs no memory."""

from __future__ import annotations


def mix(a: int, b: int, c: int) -> int:
    """32 bits that follow from three numbers alone.

    >>> mix(1, 2, 3), mix(2, 1, 3)
    (4206275386, 2612991995)
    """
    x = (a * 0x9E3779B1 ^ b * 0x85EBCA77 ^ c * 0xC2B2AE3D) & 0xFFFFFFFF
    x = ((x ^ x >> 15) * 0x2C1B3C6D) & 0xFFFFFFFF
    x = ((x ^ x >> 12) * 0x297A2D39) & 0xFFFFFFFF
    return x ^ x >> 15
