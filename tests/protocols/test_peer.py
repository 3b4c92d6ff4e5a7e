"""One peer alone, driven by hand: its roles together, its journal, and what it is after a crash."""

from __future__ import annotations

import random

import pytest

from protocols.catalogue.messages import CreateStream, DropStream, ListStreams, ShowStream, StreamShown, StreamsListed
from protocols.catalogue.streams import Durability, StreamDefinition
from protocols.delivery.messages import (
    CloseSubscription,
    DeadLettered,
    DeadLettersListed,
    ListDeadLetters,
    Opened,
    OpenSubscription,
    Position,
    Publish,
    Published,
    Refuse,
    Seen,
)
from protocols.events import (
    Abandoned,
    ClockCompared,
    DiskSpace,
)
from protocols.limits import Limits
from protocols.messages import Done, Refused
from protocols.peer import Peer
from protocols.wire import COMMANDS, MESSAGES, RECORDS
from queries.schema import Schema
from tests.protocols.lone import ALONE, SCHEMA, Lone


@pytest.mark.parametrize("durability", ["disk", "replicated", "memory"])
def test_a_network_of_one_peer_works_and_says_that_there_is_one_copy(durability: Durability) -> None:
    lone = Lone()
    created = lone.create(durability)
    assert isinstance(created, Done)
    assert created.replicas == 1
    reading = lone.ask(OpenSubscription(stream="flights", subscription="s"), within_ms=3000)
    opened = lone.answers[reading][0]
    assert isinstance(opened, Opened)
    published = lone.publish(1, 2, 3, witness=opened.stamp)
    assert isinstance(published, Published)
    assert published.stamp > opened.stamp
    lone.wait(3000)
    assert lone.read(reading) == [1, 2, 3]


def test_streams_are_listed_shown_and_dropped() -> None:
    lone = Lone()
    lone.create()
    again = lone.create()
    assert isinstance(again, Refused)
    assert (again.code, again.error) == ("exists", 'stream "flights" exists already')
    listed = lone.answer(ListStreams())
    assert isinstance(listed, StreamsListed)
    assert [stream.name for stream in listed.streams] == ["flights"]
    lone.publish(1)
    lone.wait(15_000)
    shown = lone.answer(ShowStream(name="flights"))
    assert isinstance(shown, StreamShown)
    (publisher,) = shown.publishers
    assert (publisher.peer, publisher.accepted, publisher.pending) == (ALONE, 1, 1)
    assert isinstance(lone.answer(DropStream(name="flights")), Done)
    missing = lone.answer(ShowStream(name="flihgts"))
    assert isinstance(missing, Refused)
    assert missing.code == "unknown"


def test_an_unknown_stream_is_refused_with_the_name_that_was_meant() -> None:
    lone = Lone()
    lone.create()
    refused = lone.answer(Publish(stream="flihgts", rows=SCHEMA.encode([(1, "VIE")]), count=1))
    assert isinstance(refused, Refused)
    assert 'Did you mean "flights"?' in refused.hint


def test_rows_that_do_not_fit_the_schema_are_refused_whole_with_row_and_field() -> None:
    lone = Lone()
    lone.create()
    other = Schema.parse("id string, dest string")
    rows = other.encode([("x", "VIE")])
    refused = lone.answer(Publish(stream="flights", rows=rows, count=1))
    assert isinstance(refused, Refused)
    assert refused.code == "invalid"
    assert '"id"' in refused.error
    assert isinstance(lone.publish(1), Published), "the stream goes on"


def test_a_publish_asked_again_is_answered_and_not_repeated_even_after_a_crash() -> None:
    lone = Lone()
    lone.create()
    first = lone.publish(1, session=b"client", number=7)
    assert lone.publish(1, session=b"client", number=7) == first
    for snapshot in (False, True):
        lone.restart(snapshot=snapshot)
        assert lone.publish(1, session=b"client", number=7) == first
    reading = lone.ask(OpenSubscription(stream="flights", subscription="s", since="start"), within_ms=5000)
    assert lone.read(reading) == [1]


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_kept_subscription_goes_on_after_a_crash_where_its_client_had_seen(snapshot: bool) -> None:
    lone = Lone()
    lone.create()
    lone.publish(1)
    command = OpenSubscription(stream="flights", subscription="s", since="start", keep=True)
    reading = lone.ask(command, within_ms=5000)
    assert lone.read(reading) == [1]
    lone.ask(Seen(subscription="s", positions=lone.positions(reading)))
    lone.publish(2)
    lone.wait(3000)
    assert lone.read(reading) == [1, 2], "seen by the client, which did not say so before the crash"
    lone.restart(snapshot=snapshot)
    lone.publish(3)
    again = lone.ask(command, within_ms=90_000)
    assert lone.read(again) == [2, 3]


def test_a_client_that_leaves_a_passing_subscription_leaves_nothing_behind() -> None:
    lone = Lone()
    lone.create()
    reading = lone.ask(OpenSubscription(stream="flights", subscription="s"), within_ms=3000)
    lone.publish(1)
    lone.happen(Abandoned(reading))
    lone.wait(15_000)
    assert not lone.peer.subscriber.subscriptions
    assert not lone.peer.publisher.outboxes["flights"].feed.consumers
    missing = lone.answer(CloseSubscription(subscription="s"))
    assert isinstance(missing, Refused)


def test_a_second_client_takes_a_subscription_over() -> None:
    lone = Lone()
    lone.create()
    command = OpenSubscription(stream="flights", subscription="s")
    first = lone.ask(command, within_ms=3000)
    second = lone.ask(command, within_ms=3000)
    last = lone.answers[first][-1]
    assert isinstance(last, Refused)
    assert "taken over" in last.error
    lone.publish(1)
    lone.wait(3000)
    assert (lone.read(first), lone.read(second)) == ([], [1])


def test_a_full_disk_refuses_tuples_and_goes_on_delivering() -> None:
    lone = Lone()
    lone.create()
    lone.publish(1)
    lone.happen(DiskSpace(is_low=True))
    refused = lone.publish(2)
    assert isinstance(refused, Refused)
    assert refused.code == "full"
    reading = lone.ask(OpenSubscription(stream="flights", subscription="s", since="start"), within_ms=5000)
    assert lone.read(reading) == [1]
    lone.happen(DiskSpace(is_low=False))
    assert isinstance(lone.publish(2), Published)


def test_a_reader_of_long_ago_gets_everything_from_the_log() -> None:
    lone = Lone(Limits(recent_bytes=100, message_bytes=400, credit_bytes=800))
    lone.create()
    for number in range(100):
        lone.publish(number)
    reading = lone.ask(OpenSubscription(stream="flights", subscription="s", since="start"), within_ms=5000)
    for _ in range(100):
        lone.ask(Seen(subscription="s", positions=lone.positions(reading)), within_ms=100)
    assert lone.read(reading) == list(range(100))


def test_what_a_peer_alone_has_of_a_replicated_stream_is_read_after_a_restart_without_a_publish() -> None:
    lone = Lone()
    lone.create("replicated")
    lone.publish(1, 2)
    lone.restart()
    request = lone.ask(OpenSubscription(stream="flights", subscription="s", since="start"), within_ms=20_000)
    assert lone.read(request) == [1, 2]


def test_after_its_retention_a_tuple_is_gone_and_counted_as_expired() -> None:
    lone = Lone()
    lone.create(retention_ms=60_000)
    lone.publish(1, 2)
    lone.wait(80_000)
    shown = lone.answer(ShowStream(name="flights"))
    assert isinstance(shown, StreamShown)
    (publisher,) = shown.publishers
    assert (publisher.accepted, publisher.processed, publisher.pending, publisher.expired) == (2, 0, 0, 2)
    assert lone.journal.logs()[lone.peer.publisher.outboxes["flights"].feed.log].first == 2


def test_a_peer_whose_clock_is_off_stamps_nothing_until_it_is_right_again() -> None:
    lone = Lone()
    lone.create()
    lone.publish(1, session=b"s", number=1)
    lone.happen(ClockCompared(-1400, 3))
    refused = lone.publish(2)
    assert isinstance(refused, Refused)
    assert refused.code == "unavailable"
    assert refused.detail == "It is 1400 ms behind 3 others; 500 ms are allowed."
    assert "Set the clock" in refused.hint
    assert refused.retry_after_ms > 0
    assert isinstance(lone.publish(1, session=b"s", number=1), Published)  # Asked again: it has its stamp.
    assert isinstance(lone.answer(OpenSubscription(stream="flights", subscription="new")), Refused)
    past = lone.ask(OpenSubscription(stream="flights", subscription="old", since="start"), within_ms=5000)
    assert lone.read(past) == [1]
    lone.happen(ClockCompared(-400, 3))
    assert isinstance(lone.publish(2), Published)


def test_one_other_peer_is_not_enough_to_find_a_clock_wrong() -> None:
    lone = Lone()
    lone.create()
    lone.happen(ClockCompared(2000, 1))
    assert isinstance(lone.publish(1), Published)


def test_a_tuple_refused_three_times_is_put_aside_and_the_rest_goes_on() -> None:
    lone = Lone()
    lone.create()
    reading = lone.ask(OpenSubscription(stream="flights", subscription="s", keep=True), within_ms=3000)
    lone.publish(1, 2, 3)
    origin = lone.positions(reading)[0].origin
    for _ in range(3):
        lone.ask(Refuse(subscription="s", origin=origin, first=1, next=2, reason="no such airport"), within_ms=100)
    told = [answer for answer in lone.answers[reading] if isinstance(answer, DeadLettered)]
    assert told == [DeadLettered(origin=origin, sequence=1, reason="no such airport")]
    assert lone.read(reading) == [1, 2, 3, 2, 2, 3]
    lone.ask(Seen(subscription="s", positions=(Position(origin, 3),)))
    lone.wait(15_000)
    shown = lone.answer(ShowStream(name="flights"))
    assert isinstance(shown, StreamShown)
    (publisher,) = shown.publishers
    assert (publisher.accepted, publisher.processed, publisher.dead_lettered, publisher.pending) == (3, 2, 1, 0)


@pytest.mark.parametrize("snapshot", [False, True])
def test_dead_letters_survive_a_restart(snapshot: bool) -> None:
    lone = Lone()
    lone.create()
    reading = lone.ask(OpenSubscription(stream="flights", subscription="s", keep=True), within_ms=3000)
    lone.publish(1, 2)
    origin = lone.positions(reading)[0].origin
    for _ in range(3):
        lone.ask(Refuse(subscription="s", origin=origin, first=0, next=1, reason="no"), within_ms=100)
    lone.restart(snapshot=snapshot)
    listed = lone.answer(ListDeadLetters(stream="flights"))
    assert isinstance(listed, DeadLettersListed)
    ((name, number, (letter,)),) = [(each.subscription, each.count, each.letters) for each in listed.subscriptions]
    assert (name, number, SCHEMA.decode(letter.batch.rows), letter.reason) == ("s", 1, [(1, "VIE")], "no")
    reading = lone.ask(OpenSubscription(stream="flights", subscription="s", keep=True), within_ms=3000)
    assert lone.read(reading) == [2]
    opened = next(answer for answer in lone.answers[reading] if isinstance(answer, Opened))
    assert opened.dead == 1


def test_a_client_that_dies_of_one_tuple_among_many_is_handed_them_in_portions_until_it_is_found() -> None:
    lone = Lone()
    lone.create()
    lone.publish(*range(100))
    handed: list[list[int]] = []
    for _ in range(3):  # A client that says what it has seen, and dies of 50.
        reading = lone.ask(
            OpenSubscription(stream="flights", subscription="s", since="start", keep=True), within_ms=3000
        )
        while 50 not in lone.read(reading):
            lone.ask(Seen(subscription="s", positions=lone.positions(reading)), within_ms=100)
        handed.append(lone.read(reading))
        lone.happen(Abandoned(reading, is_broken=True))
    assert handed[0] == list(range(100))
    assert handed[1][0] == 0
    assert handed[1][-1] < 60  # Not all of them again,
    assert handed[2][-1] == 50  # and then one by one.
    reading = lone.ask(OpenSubscription(stream="flights", subscription="s", keep=True), within_ms=3000)
    assert lone.read(reading) == list(range(51, 100))
    listed = lone.answer(ListDeadLetters(stream="flights", subscription="s"))
    assert isinstance(listed, DeadLettersListed)
    assert [SCHEMA.decode(each.batch.rows)[0][0] for each in listed.subscriptions[0].letters] == [50]


def test_a_client_that_leaves_in_peace_has_failed_on_nothing() -> None:
    lone = Lone()
    lone.create()
    lone.publish(1)
    for _ in range(5):
        reading = lone.ask(
            OpenSubscription(stream="flights", subscription="s", since="start", keep=True), within_ms=3000
        )
        assert lone.read(reading) == [1]
        lone.happen(Abandoned(reading))


def test_a_full_stream_in_memory_that_nobody_reads_lets_go_of_its_oldest_tuples() -> None:
    lone = Lone(Limits(memory_stream_bytes_max=15))
    lone.create("memory")
    lone.publish(1)
    lone.publish(2)
    lone.wait(30_000)  # Until the publisher knows that there is no subscription of before.
    assert isinstance(lone.publish(3), Published)
    lone.wait(30_000)
    assert isinstance(lone.publish(4), Published)
    reading = lone.ask(OpenSubscription(stream="flights", subscription="s", since="start"), within_ms=5000)
    assert lone.read(reading)[-1] == 4
    assert 1 not in lone.read(reading)
    lone.publish(5)
    lone.wait(15_000)
    refused = [lone.ask(Publish(stream="flights", rows=SCHEMA.encode([(n, "VIE")]), count=1)) for n in range(6, 12)]
    answers = [lone.answers[request][0] for request in refused]
    assert isinstance(answers[-1], Refused)  # Somebody reads it now, and has not seen them.
    assert answers[-1].code == "busy"


def test_whoever_publishes_to_two_streams_in_turn_soon_says_what_is_frequent_in_both() -> None:
    """And from then on no more often than it says anything."""
    lone, limits, names = Lone(), Limits(), ("left", "right")
    for name in names:
        lone.answer(CreateStream(definition=StreamDefinition(name=name, schema=SCHEMA)))
        lone.answer(Publish(stream=name, rows=SCHEMA.encode([(0, "start")]), count=1))
    lone.wait(limits.advertise_every_ms + limits.tick_ms)  # Opened and advertised, and then they begin.
    said: dict[str, dict[int, None]] = {name: {} for name in names}
    first: dict[str, int] = {}
    began, number = lone.now, 0
    while lone.now < began + 60_000:
        number += 1
        for name in names:
            row = (number, "hot" if number % 5 < 2 else f"cold {number}")
            lone.answer(Publish(stream=name, rows=SCHEMA.encode([row]), count=1))
            advertised = lone.peer.publisher.outboxes[name].advertised
            assert advertised is not None
            assert advertised.statistics is not None
            if '"hot"' in dict(advertised.statistics.fields[1].frequent):
                first.setdefault(name, lone.now - began)
            said[name][lone.peer.publisher.outboxes[name].advertised_at] = None
        lone.wait(40)
    for name in names:
        assert first[name] <= limits.advertise_soonest_ms + 2 * limits.tick_ms
        assert len(said[name]) <= 60_000 // limits.advertise_every_ms + 8, "distinct ids double eight times"


def test_every_message_command_and_record_is_declared_by_a_role() -> None:
    owned = [role.owned for role in Peer(ALONE, random.Random(1))._roles]
    for kinds, declared in (
        (MESSAGES.kinds, [kind for each in owned for kind in each.messages]),
        (COMMANDS.kinds, [kind for each in owned for kind in each.commands]),
        (RECORDS.kinds, [kind for each in owned for kind in each.records]),
    ):
        assert set(kinds) == set(declared)
    assert len({each.name for each in owned}) == len(owned)
