"""Where the batches of a log lie: a few bytes for each in memory, the rows on the disk.

A log holds every sequence from `released` up to `next`: its batches follow each other without a hole. A place is one
number, made of the segment (high bits) and the offset in it, so places sort in the order of writing.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

from protocols.clock import Stamp
from protocols.events import LogBounds

_OFFSET_BITS: Final = 32
_FREED_MIN: Final = 64  # Compact the arrays only if they hold at least so many released batches.


def place_of(segment: int, offset: int) -> int:
    return segment << _OFFSET_BITS | offset


def segment_of(place: int) -> int:
    return place >> _OFFSET_BITS


def offset_of(place: int) -> int:
    return place & ((1 << _OFFSET_BITS) - 1)


class LogIndex:
    """The batches of one log that hold something not yet released.

    Invariant: the first batch holds `released`, each other one begins where the one before it ends, the last ends at
    `next`; there is no batch if and only if released == next.
    """

    __slots__ = ("_firsts", "_head", "_places", "_resumed", "_sizes", "_stamps", "next", "released")

    def __init__(self) -> None:
        self.released = 0
        self.next = 0
        self._firsts = array("Q")
        self._places = array("Q")
        self._sizes = array("I")
        self._stamps = array("Q")
        self._head = 0  # Everything before this index in the arrays is released.
        self._resumed = (0, 0)  # During recovery: first sequence and place of the batch behind the last hole.

    @property
    def bounds(self) -> LogBounds:
        stamps = tuple(zip(self._firsts[self._head :], self._stamps[self._head :], strict=True))
        return LogBounds(self.released, self.next, stamps)

    def __len__(self) -> int:
        return len(self._firsts) - self._head

    def add(self, first: int, count: int, place: int, size: int, stamp: Stamp) -> None:
        """Add the next batch."""
        self._firsts.append(first)
        self._places.append(place)
        self._sizes.append(size)
        self._stamps.append(stamp)
        self.next = first + count

    def release(self, below: int) -> list[tuple[int, int]]:
        """Release everything below; returns place and size of each batch that is now wholly released."""
        self.released = max(self.released, below)
        if self.next <= self.released:
            self.next = self.released
            head = len(self._firsts)
        else:
            head = max(self._head, bisect_right(self._firsts, self.released, self._head) - 1)
        freed = list(zip(self._places[self._head : head], self._sizes[self._head : head], strict=True))
        self._head = head
        if head >= _FREED_MIN and head * 2 >= len(self._firsts):  # So no more is moved than was freed.
            self._forget(head)
        return freed

    def locate(self, first: int, bytes_max: int) -> list[tuple[int, int]]:
        """Place and size of the batch that holds `first` and of those behind it, as many as fit, at least one."""
        if not self.released <= first < self.next:
            return []
        found: list[tuple[int, int]] = []
        for at in range(bisect_right(self._firsts, first, self._head) - 1, len(self._firsts)):
            size = self._sizes[at]
            bytes_max -= size
            if bytes_max < 0 and found:
                break
            found.append((self._places[at], size))
        return found

    def entries(self) -> list[tuple[int, int]]:
        """Place and size of every batch."""
        return list(zip(self._places[self._head :], self._sizes[self._head :], strict=True))

    def restore(self, first: int, count: int, place: int, size: int, stamp: Stamp) -> None:
        """Add a batch found by recovery. A hole before it is allowed if settle() shows that everything in it is
        released.
        """
        if first != self.next:
            self._forget(len(self._firsts))
            self._resumed = (first, place)
            self.next = first
        self.add(first, count, place, size, stamp)

    def settle(self, released: int) -> int | None:
        """End recovery; returns the place of the batch behind a hole, or None if there is no hole."""
        first, place = self._resumed
        if first > released:
            return place
        self.release(released)
        return None

    def validate(self) -> None:
        firsts = self._firsts[self._head :]
        assert list(firsts) == sorted(set(firsts))
        assert bool(firsts) == (self.released < self.next)
        assert not firsts or (firsts[0] <= self.released and firsts[-1] < self.next)
        assert len(self) < 2 or self.released < firsts[1], "the first batch holds nothing any more"
        assert len(self._places) == len(self._sizes) == len(self._stamps) == len(self._firsts)

    def _forget(self, count: int) -> None:
        del self._firsts[:count]
        del self._places[:count]
        del self._sizes[:count]
        del self._stamps[:count]
        self._head = 0
