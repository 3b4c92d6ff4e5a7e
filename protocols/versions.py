"""Which version of each protocol family a peer speaks, and which families two peers share.

A family is a set of messages that change together. For each family a peer states a span: the version it speaks, and the
oldest version it still understands. Two peers share a family if their spans meet. Without the required families two
peers do not link at all; any other family they can do without, as long as neither sends the other messages of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

import msgspec

Family = Literal["link", "store", "delivery", "execution", "join_index", "placement", "rights"]
FAMILIES: Final[tuple[Family, ...]] = get_args(Family)
# Who owns a key follows from who is a member, so every member must be able to keep any entry.
REQUIRED: Final[tuple[Family, ...]] = ("link", "store")


class Span(msgspec.Struct, frozen=True, array_like=True):
    """The versions of one family that a peer understands; it speaks the newest.

    >>> str(Span(2, 2)), str(Span(1, 3))
    ('2', '1 to 3')
    """

    oldest: int
    newest: int

    def meets(self, other: Span) -> bool:
        return self.oldest <= other.newest and other.oldest <= self.newest

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


Versions = Mapping[str, Span]
"""By family. A peer of release 0.1 or older states none, and shares nothing."""

WINDOWS_INLINE: Final = 3  # From this version of execution on, daemons run windows of time without Spark.
SIEVES: Final = 2  # From this version of delivery on, peers leave out what a reader does not need.

VERSIONS: Final[Versions] = {
    "link": Span(2, 2),  # Datagrams, links, the router's frames, signed records. 2: they state versions.
    "store": Span(1, 1),  # And the catalogue's entries in it.
    "delivery": Span(1, SIEVES),
    "execution": Span(2, WINDOWS_INLINE),
    "join_index": Span(3, 3),  # 3: a join with several equalities is indexed by all of them.
    "placement": Span(1, 1),
    "rights": Span(1, 1),
}
"""What this release speaks. tests/protocols/test_spoken.py tells when a version must be raised."""


class Difference(msgspec.Struct, frozen=True):
    """A family that two peers do not share.

    >>> str(Difference("execution", Span(1, 1), Span(2, 3))), str(Difference("link", Span(2, 2), None))
    ('execution (1 here, 2 to 3 there)', 'link (2 here, none there)')
    """

    family: str
    here: Span
    there: Span | None

    @property
    def is_older_here(self) -> bool:
        return self.there is not None and self.there.newest > self.here.newest

    def __str__(self) -> str:
        return f"{self.family} ({self.here} here, {self.there or 'none'} there)"


def differences(here: Versions, there: Versions) -> tuple[Difference, ...]:
    """The families of ours that another peer does not share."""
    found = []
    for family, ours in here.items():
        theirs = there.get(family)
        if theirs is None or not ours.meets(theirs):
            found.append(Difference(family, ours, theirs))
    return tuple(found)


def refusal(found: Iterable[Difference]) -> tuple[Difference, ...]:
    """Those of the differences that keep two peers from linking."""
    return tuple(each for each in found if each.family in REQUIRED)


def in_words(found: Iterable[Difference]) -> str:
    """The differences of two peers, for people.

    >>> in_words(differences({"link": Span(2, 2), "store": Span(1, 1)}, {}))
    'link (2 here, none there), store (1 here, none there)'
    """
    return ", ".join(map(str, found))
