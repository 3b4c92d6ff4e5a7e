"""The publisher's part: a tuple goes to the rewriters and evaluators of its attributes (section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from experiments.cqdht.events import TuplePublished
from experiments.cqdht.interests import Interest, Interests
from experiments.cqdht.limits import JoinLimits
from experiments.cqdht.messages import AlIndex, VlIndex
from protocols.effects import Effect, Route
from protocols.events import Event, Unroutable
from protocols.ids import Millis
from protocols.join_index.keys import NULL, at_path, attribute_key, value_key, value_text
from protocols.join_index.messages import Attribute
from queries.schema import Field, Schema


@dataclass(slots=True)
class TupleIndexer:
    """Indexes tuples, each twice under each attribute: 2h messages for h attributes, as in the paper.

    In:        TuplePublished
    Out:       AL_INDEX to one rewriter of each attribute, VL_INDEX to the evaluator of each value that is not null
    Keeps:     what queries are interested in; None: every attribute of every tuple, the paper's way
    Invariant: a tuple goes to the same replica of a rewriter however often it is sent: duplicates meet
    Paper:     section 3.1; section 7 chooses the replica at random, here the sequence does: as even, and repeatable
    """

    limits: JoinLimits
    interests: Interests | None = None

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case TuplePublished():
                return self._index(event)
            case Unroutable(key=key, message=AlIndex() | VlIndex() as message):
                return [Route(key, message)]
        raise AssertionError(f"no rule for {event} at {now}")

    def _index(self, event: TuplePublished) -> list[Effect]:
        each = event.tuple
        (row,) = event.schema.decode(each.row)
        replica = each.id.sequence % self.limits.replicas
        effects: list[Effect] = []
        for path in leaves(event.schema):
            at = Attribute(each.id.stream, path)
            interest = Interest(True, event.keep_ms) if self.interests is None else self.interests.of(at)
            if interest is None:
                continue
            value = value_text(at_path(event.schema, row, path))
            effects.append(Route(attribute_key(at, replica), AlIndex(tuple=each, at=at, value=value)))
            if interest.by_value and value != NULL:  # Null equals nothing.
                keep_ms = min(event.keep_ms, interest.keep_ms)
                message = VlIndex(tuple=each, at=at, value=value, keep_ms=keep_ms)
                effects.append(Route(value_key(at, value), message))
        return effects


def leaves(schema: Schema) -> Iterator[tuple[str, ...]]:
    """The paths of a relation's attributes: fields, and fields of records."""

    def below(fields: tuple[Field, ...], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for each in fields:
            if each.fields:
                yield from below(each.fields, (*path, each.name))
            else:
                yield (*path, each.name)

    return below(schema.fields, ())
