"""The selections of all taps on a stream, tested together: each distinct one once for each row that it may concern."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Generic, TypeVar

import msgspec

from protocols.delivery.needs import EVERYBODY
from protocols.filing import Comparison, Filing, comparison_in
from queries.compile import predicate_on_batch
from queries.expressions import Column, Expression, conjunction, conjuncts, rewritten
from queries.plan import Operator, Select, Source, walk
from queries.schema import Row
from queries.simplify import simplified_conjuncts

Reader = TypeVar("Reader")


def for_everybody(expression: Expression) -> Expression:
    """An expression over one stream, in terms of the stream."""

    def named(part: Expression) -> Expression:
        return msgspec.structs.replace(part, input=EVERYBODY) if isinstance(part, Column) else part

    return rewritten(expression, named)


def selected(plan: Operator, alias: str) -> tuple[Expression, ...]:
    """What a plan selects directly on a source, in terms of the stream."""
    found: list[Expression] = []
    for each in walk(plan):
        if isinstance(each, Select):
            below: Operator = each
            while isinstance(below, Select):
                below = below.input
            if isinstance(below, Source) and below.alias == alias:
                found += conjuncts(for_everybody(each.predicate))
    return tuple(found)


@dataclass(slots=True, eq=False)
class _Selection(Generic[Reader]):
    """One selection, and who wants the rows that it keeps."""

    keep: Callable[[Sequence[Row]], Sequence[Row]]
    wish: Comparison | None
    readers: dict[Reader, None] = field(default_factory=dict)


@dataclass(slots=True)
class Sieve(Generic[Reader]):
    """Selections on one stream, filed by their constants.

    Invariant: a reader gets exactly the rows of a batch that its own selection keeps, in their order
    """

    source: Source
    _filed: Filing[_Selection[Reader]] = field(init=False)
    _selections: dict[str, _Selection[Reader]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._filed = Filing(self.source.schema)

    def add(self, reader: Reader, parts: tuple[Expression, ...]) -> None:
        name = name_of(parts)
        known = self._selections.get(name)
        if known is None:
            whole = conjunction(parts)
            wish = comparison_in(parts, lambda column: column.input == EVERYBODY)
            keep = predicate_on_batch(whole, self.source.columns)
            known = self._selections[name] = _Selection(keep, wish)
            self._filed.add(name, wish, known)
        known.readers[reader] = None

    def remove(self, reader: Reader, parts: tuple[Expression, ...]) -> None:
        name = name_of(parts)
        known = self._selections[name]
        del known.readers[reader]
        if not known.readers:
            del self._selections[name]
            self._filed.remove(name, known.wish)

    def sifted(
        self, rows: Sequence[Row], may_test: Callable[[Reader], bool] | None = None
    ) -> Iterator[tuple[Sequence[Row], dict[Reader, None]]]:
        """Rows of a batch, and who gets them. Who gets none is not named.

        Rows may lack columns that some selections test: `may_test` says whose are not among them.
        """
        for selection, some in self._filed.found_in(rows):
            if may_test is not None and not any(map(may_test, selection.readers)):
                continue
            kept = selection.keep(some)
            if kept:
                yield kept, selection.readers

    def __len__(self) -> int:
        return len(self._selections)


def name_of(parts: tuple[Expression, ...]) -> str:
    """The same for the same selection, however its text orders it."""
    texts = sorted(msgspec.msgpack.encode(each) for each in simplified_conjuncts(conjunction(parts)))
    return sha256(b"".join(texts)).hexdigest()[:24]
