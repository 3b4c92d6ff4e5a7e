"""Where the batches of a log lie: a few bytes for each in memory, the rows on the disk.

A log holds every sequence from `released` up to `next`: its batches follow each other without a hole. A place is one
number, made of the segment (high bits) and the offset in it, so places sort in the order of writing. A batch that is
moved has a later place than those behind it in its log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
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

    __slots__ = ("_firsts", "_head", "_places", "_sizes", "_stamps", "next", "released")

    def __init__(self) -> None:
        self.released = 0
        self.next = 0
        self._firsts = array("Q")
        self._places = array("Q")
        self._sizes = array("I")
        self._stamps = array("Q")
        self._head = 0  # Everything before this index in the arrays is released.

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
        for at in range(self._at(first), len(self._firsts)):
            size = self._sizes[at]
            bytes_max -= size
            if bytes_max < 0 and found:
                break
            found.append((self._places[at], size))
        return found

    def entries(self) -> list[tuple[int, int]]:
        """Place and size of every batch."""
        return list(zip(self._places[self._head :], self._sizes[self._head :], strict=True))

    def has(self, first: int, place: int) -> bool:
        """Whether the batch that begins at a sequence is at this place, and not released."""
        at = self._at(first)
        return at >= self._head and self._places[at] == place

    def move(self, first: int, to: int) -> None:
        """A batch has another place from now on."""
        self._places[self._at(first)] = to

    def validate(self) -> None:
        firsts = self._firsts[self._head :]
        assert list(firsts) == sorted(set(firsts))
        assert bool(firsts) == (self.released < self.next)
        assert not firsts or (firsts[0] <= self.released and firsts[-1] < self.next)
        assert len(self) < 2 or self.released < firsts[1], "the first batch holds nothing any more"
        assert len(self._places) == len(self._sizes) == len(self._stamps) == len(self._firsts)

    def _at(self, sequence: int) -> int:
        """The index in the arrays of the batch that holds a sequence; before the head if it is released."""
        return bisect_right(self._firsts, sequence, self._head) - 1

    def _forget(self, count: int) -> None:
        del self._firsts[:count]
        del self._places[:count]
        del self._sizes[:count]
        del self._stamps[:count]
        self._head = 0


class FoundBatches:
    """The batches of one log that recovery finds, in the order of writing: some twice, some released."""

    __slots__ = ("_counts", "_firsts", "_places", "_sizes", "_stamps")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._counts = array("Q")
        self._places = array("Q")
        self._sizes = array("I")
        self._stamps = array("Q")

    def add(self, first: int, count: int, place: int, size: int, stamp: Stamp) -> None:
        self._firsts.append(first)
        self._counts.append(count)
        self._places.append(place)
        self._sizes.append(size)
        self._stamps.append(stamp)

    def settle(self, released: int) -> tuple[LogIndex, int | None]:
        """The log, now that all of it is found; and the place of the batch behind a hole, or None if there is none.
        A hole is allowed where everything in it is released.
        """
        index = LogIndex()
        index.released = index.next = released
        for at in self._order():
            first, count, place = self._firsts[at], self._counts[at], self._places[at]
            if first + count <= released:
                continue
            if first > index.next or (len(index) and first != index.next):
                return index, place
            index.add(first, count, place, self._sizes[at], self._stamps[at])
        return index, None

    def _order(self) -> Iterable[int]:
        """The last copy of each batch, in the order of the log."""
        if all(before < after for before, after in pairwise(self._firsts)):  # Nothing was moved.
            return range(len(self._firsts))
        places = {self._firsts[at]: at for at in range(len(self._firsts))}  # Later copies replace earlier ones.
        return [places[first] for first in sorted(places)]
