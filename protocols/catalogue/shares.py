"""Several readers divide a stream among themselves; each reads a share of its publishers."""

from __future__ import annotations

from typing import Final

import msgspec

from protocols.ids import PeerId


class PublisherShare(msgspec.Struct, frozen=True, array_like=True):
    """Which publishers of a stream a reader reads: one share of so many.

    The share depends on the publisher's id alone. So one reader gets all tuples of a publisher: those of its earlier
    epochs, and those that only its backup still holds.

    >>> fifth = PeerId(bytes(19) + bytes([5]))
    >>> [str(share) for share in (PublisherShare(0, 2), PublisherShare(1, 2), PublisherShare(1, 3)) if share.has(fifth)]
    ['2 of 2']
    """

    number: int
    of: int

    @property
    def is_sound(self) -> bool:
        """Whether the numbers make sense; they come from another peer."""
        return 0 <= self.number < self.of

    def has(self, publisher: PeerId) -> bool:
        return self.is_sound and publisher.number % self.of == self.number

    def __str__(self) -> str:
        return f"{self.number + 1} of {self.of}"


WHOLE: Final = PublisherShare(0, 1)
