"""The space that a journal takes: how many bytes each segment has, and how many of them are batches still kept.

The rest of a segment is waste: batches that were released or moved, marks, and records. The newest snapshot covers the
segments before it: their records are not needed any more, so such a segment goes once no batch in it is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_VICTIM_SHARE_MAX: Final = 0.75  # A segment with a larger share of kept batches is not worth moving them.


@dataclass(slots=True)
class Segments:
    """The sizes of the segments that a journal has, oldest first.

    Invariant: a covered segment holds a batch that is kept
    """

    covered: int = 0  # The newest snapshot covers all segments below this one.
    bytes: int = 0
    kept_bytes: int = 0
    uncovered_waste: int = 0  # What a new snapshot would turn into waste that can be removed.
    unneeded: list[int] = field(default_factory=list)  # They can be removed once everything appended so far is safe.
    _sizes: dict[int, int] = field(default_factory=dict)
    _kept: dict[int, int] = field(default_factory=dict)

    @property
    def waste(self) -> int:
        return self.bytes - self.kept_bytes

    @property
    def oldest(self) -> int:
        """The oldest segment whose file may still be there."""
        return min((*self.unneeded, next(iter(self._sizes))))

    def size(self, segment: int) -> int:
        return self._sizes.get(segment, 0)

    def kept(self, segment: int) -> int:
        return self._kept.get(segment, 0)

    def begin(self, segment: int, size: int = 0) -> None:
        """A segment that nothing is kept in yet."""
        self._sizes[segment] = self._kept[segment] = 0
        self.grow(segment, size)

    def grow(self, segment: int, size: int) -> None:
        """So much is appended to a segment; keep() tells if it is a batch."""
        self._sizes[segment] += size
        self.bytes += size
        self._count_uncovered(segment, size)

    def keep(self, segment: int, size: int) -> None:
        self._kept[segment] += size
        self.kept_bytes += size
        self._count_uncovered(segment, -size)

    def free(self, segment: int, size: int) -> None:
        """A batch of a segment is not needed any more."""
        self.keep(segment, -size)
        self._drop_unneeded(segment)

    def cover(self, below: int) -> None:
        """A snapshot replaces the records before a segment, which is empty."""
        assert self._sizes.get(below) == 0
        self.covered = below
        self.uncovered_waste = 0
        self.drop_unneeded()

    def drop_unneeded(self) -> None:
        for segment in list(self._sizes):
            self._drop_unneeded(segment)

    def victim(self, below: int) -> int | None:
        """The covered segment with the smallest share of kept batches, among those below a number; None if moving
        them would gain little.
        """
        candidates = [segment for segment in self._sizes if segment < min(self.covered, below)]
        best = min(candidates, key=self._kept_share, default=None)
        return best if best is not None and self._kept_share(best) <= _VICTIM_SHARE_MAX else None

    def validate(self) -> None:
        assert self.bytes == sum(self._sizes.values())
        assert self.kept_bytes == sum(self._kept.values())
        assert all(0 <= self._kept[segment] <= size for segment, size in self._sizes.items())
        assert all(self._kept[segment] > 0 for segment in self._sizes if segment < self.covered)
        uncovered = [segment for segment in self._sizes if segment >= self.covered]
        assert self.uncovered_waste == sum(self._sizes[each] - self._kept[each] for each in uncovered)

    def _kept_share(self, segment: int) -> float:
        return self._kept[segment] / self._sizes[segment]

    def _count_uncovered(self, segment: int, size: int) -> None:
        if segment >= self.covered:
            self.uncovered_waste += size

    def _drop_unneeded(self, segment: int) -> None:
        if segment < self.covered and self._kept[segment] == 0:
            self.bytes -= self._sizes.pop(segment)
            del self._kept[segment]
            self.unneeded.append(segment)
