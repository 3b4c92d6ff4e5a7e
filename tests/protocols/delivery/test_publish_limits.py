"""How large one publish may be, in bytes and in rows, and how long the names that go with messages."""

from __future__ import annotations

import pytest

from peerd.client.publisher import Publisher
from peerd.rows import PUBLISH_ROWS_MAX, Row
from protocols.catalogue.messages import CreateStream
from protocols.catalogue.streams import StreamDefinition
from protocols.delivery.messages import (
    SESSION_BYTES_MAX,
    SUBSCRIPTION_NAME_MAX,
    Opened,
    OpenSubscription,
    Publish,
    Published,
    Subscribe,
    subscription_name,
)
from protocols.errors import RemoteProtocolError
from protocols.messages import Refused
from protocols.wire import COMMANDS
from queries.schema import Schema
from tests.protocols.lone import Lone

SCHEMA = Schema.parse("x bool")


@pytest.mark.parametrize("too_many", [0, 1])
def test_a_publish_of_too_many_rows_is_refused(too_many: int):
    lone = Lone()
    lone.answer(CreateStream(definition=StreamDefinition(name="s", schema=SCHEMA)))
    count = lone.limits.publish_rows_max + too_many
    answer = lone.answer(Publish(stream="s", rows=SCHEMA.encode([(True,)] * count), count=count))
    if too_many:
        assert isinstance(answer, Refused)
        assert (answer.code, answer.error) == ("invalid", 'stream "s": a publish of 50001 rows is too large')
        assert answer.detail == "At most 50000 rows at once."
    else:
        assert answer == Published(first=0, count=count, stamp=getattr(answer, "stamp", None))


def test_who_publishes_is_named_by_few_bytes():
    for size in (SESSION_BYTES_MAX, SESSION_BYTES_MAX + 1):
        raw = COMMANDS.encode(Publish(stream="s", rows=b"", count=0, session=bytes(size)))
        if size <= SESSION_BYTES_MAX:
            assert isinstance(COMMANDS.decode(raw), Publish)
        else:
            with pytest.raises(RemoteProtocolError):
                COMMANDS.decode(raw)


def test_the_name_of_a_subscription_is_bounded():
    """It goes with every batch, which may have the size of a message already."""
    lone, name = Lone(), "x" * SUBSCRIPTION_NAME_MAX
    lone.answer(CreateStream(definition=StreamDefinition(name="s", schema=SCHEMA)))
    assert isinstance(lone.answer(OpenSubscription(stream="s", subscription=name)), Opened)
    answer = lone.answer(OpenSubscription(stream="s", subscription=f"{name}x"))
    assert isinstance(answer, Refused)
    assert (answer.code, answer.error) == ("invalid", "a subscription cannot have a name of 501 characters")
    Subscribe(subscription=name, stream="s", positions=(), since=0, credit=1).check()
    with pytest.raises(RemoteProtocolError):
        Subscribe(subscription=f"{name}x", stream="s", positions=(), since=0, credit=1).check()
    assert subscription_name(name) == name
    longer, other = subscription_name(f"{name}x"), subscription_name(f"{name}y")
    assert (len(longer), len(other), longer != other) == (SUBSCRIPTION_NAME_MAX, SUBSCRIPTION_NAME_MAX, True)


class Sent:
    """What stands for a client: it notes what is published."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    async def encoded(self, _: str, rows: list[Row]) -> bytes:
        return SCHEMA.encode([tuple(row) for row in rows])

    async def publish_encoded(self, _: str, rows: bytes, count: int) -> None:
        assert len(SCHEMA.decode(rows)) == count
        self.counts.append(count)


async def test_a_publisher_splits_what_has_too_many_rows():
    sent = Sent()
    publisher = Publisher(sent, "s", batch_rows=2 * PUBLISH_ROWS_MAX + 3, linger_s=60)  # type: ignore[arg-type]
    for _ in range(2 * PUBLISH_ROWS_MAX + 3):
        await publisher.send((True,))
    await publisher.flush()
    assert publisher.accepted == sum(sent.counts) == 2 * PUBLISH_ROWS_MAX + 3
    assert max(sent.counts) <= PUBLISH_ROWS_MAX
