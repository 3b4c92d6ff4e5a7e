"""A subscription that serves several readers: where it begins, and that the catalogue knows what they all read."""

from __future__ import annotations

from protocols.catalogue.messages import AlterStream, CreateStream
from protocols.catalogue.streams import Reads, StreamDefinition
from protocols.delivery.messages import (
    OpenSubscription,
    Placed,
    Publish,
    Publishers,
    ReadsChanged,
    Rows,
)
from protocols.ids import RequestId
from protocols.messages import Answer, Done, Refused
from queries.schema import Schema
from tests.protocols.lone import Lone

SCHEMA = Schema.parse("id int, gate string, delay float null")
ALL = ("id", "gate", "delay")


class Reading(Lone):
    """A peer alone, with a stream of four tuples and a reader from the third on."""

    def __init__(self) -> None:
        super().__init__()
        definition = StreamDefinition(name="flights", schema=SCHEMA)
        assert isinstance(self.answer(CreateStream(definition=definition)), Done)
        self.send(2)
        reads = Reads(columns=ALL, version=1, reader='query "q"')
        command = OpenSubscription(stream="flights", subscription="q", reads=reads, places=True)
        self.reader: RequestId = self.ask(command, within_ms=3000)
        self.send(2)
        self.wait(1000)

    def send(self, count: int) -> None:
        rows = SCHEMA.encode([(number, "A1", None) for number in range(count)])
        self.answer(Publish(stream="flights", rows=rows, count=count))

    def heard(self, kind: type[Answer]) -> list[Answer]:
        return [each for each in self.answers[self.reader] if isinstance(each, kind)]

    def change(self, columns: tuple[str, ...], *, heartbeats: bool) -> None:
        changed = ReadsChanged("q", Reads(columns=columns, version=1, reader='query "other"'), heartbeats)
        self.happen(changed)
        self.wait(1000)

    def drop(self, column: str) -> Answer:
        return self.answer(AlterStream(name="flights", drops=column))


def test_a_reader_is_told_once_from_where_an_origin_is_served_before_its_tuples_come() -> None:
    lone = Reading()
    (placed,) = lone.heard(Placed)
    assert isinstance(placed, Placed)
    assert [each.next for each in placed.positions] == [2]
    kinds = [type(each) for each in lone.answers[lone.reader] if isinstance(each, Placed | Rows)]
    assert kinds == [Placed, Rows]
    lone.wait(10_000)
    assert len(lone.heard(Placed)) == 1


def test_a_column_that_no_reader_needs_any_more_can_be_dropped() -> None:
    lone = Reading()
    assert isinstance(lone.drop("gate"), Refused)
    lone.change(("id",), heartbeats=False)
    assert isinstance(lone.drop("gate"), Done)


def test_a_subscription_goes_by_the_time_of_publishers_once_one_of_its_readers_does() -> None:
    lone = Reading()
    assert lone.heard(Publishers) == []
    lone.change(ALL, heartbeats=True)
    (met,) = lone.heard(Publishers)
    assert isinstance(met, Publishers)
    assert [each.publisher for each in met.origins] == [lone.peer.peer_id]
