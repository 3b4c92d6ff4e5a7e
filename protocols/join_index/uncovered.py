"""The results of an attempt that its progress does not cover yet, each by the two tuples it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocols.delivery.messages import Origin
from protocols.join_index.messages import ResultRows

_Pair = tuple[int, int, int, int]  # Origin, by its number, and sequence of the left tuple and of the right one.


@dataclass(slots=True)
class Uncovered:
    """What an attempt has handed on beyond its progress.

    Keeps:     a digest of each such result
    Invariant: no two of them are made of the same two tuples
    """

    _digests: dict[_Pair, bytes] = field(default_factory=dict)
    _numbers: dict[Origin, int] = field(default_factory=dict)  # Short keys, fast to look up.

    def __len__(self) -> int:
        return len(self._digests)

    @property
    def origins(self) -> list[Origin]:
        """Of all tuples that results were made of."""
        return list(self._numbers)

    @property
    def digests(self) -> tuple[bytes, ...]:
        return tuple(self._digests.values())

    def add(
        self, results: ResultRows, digests: Sequence[bytes], left: Sequence[int], right: Sequence[int]
    ) -> list[bool]:
        """Add results, and say which are new. A pair of tuples below `left` and `right`, by origin, is covered."""
        known, made_of = self._digests, iter(results.made_of)
        numbers = [self._numbers.setdefault(origin, len(self._numbers)) for origin in results.origins]
        is_new: list[bool] = []
        for digest, one, first, other, second in zip(digests, made_of, made_of, made_of, made_of, strict=True):
            pair = (numbers[one], first, numbers[other], second)
            if (first < left[one] and second < right[other]) or pair in known:
                is_new.append(False)
            else:
                known[pair] = digest
                is_new.append(True)
        return is_new

    def cover(self, left: Sequence[int], right: Sequence[int]) -> None:
        """Forget the results of two tuples below `left` and `right`, which are in the order of `origins`."""
        self._digests = {
            pair: digest
            for pair, digest in self._digests.items()
            if pair[1] >= left[pair[0]] or pair[3] >= right[pair[2]]
        }
