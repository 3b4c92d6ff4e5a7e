"""However much others have written, ask for or say: what this peer says to it fits into messages."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import count, islice

import pytest

from overlay.router import MESSAGE_BYTES_MAX
from protocols.effects import AfterSync, Effect, Send, Tell
from protocols.errors import RemoteProtocolError
from protocols.events import Received
from protocols.ids import Key, PeerId
from protocols.messages import Message
from protocols.store.entries import Entry
from protocols.store.limits import ITEM_CHARS_MAX, PEERS_MAX, VALUE_BYTES_MAX
from protocols.store.machine import StoreMachine
from protocols.store.messages import (
    ItemName,
    Sighting,
    StoreAck,
    StoreDigest,
    StoreEntries,
    StoreFetch,
    StoreFound,
    StoreGet,
    StoreOffer,
    StorePull,
    StorePut,
    StorePutDone,
    StoreReplicate,
    Version,
)
from protocols.store.table import BUCKETS, version_of
from protocols.wire import MESSAGES
from tests.protocols.store.stores import KEY, ME, NOW, A, B, C, entry, give, store

WIDE = "\N{UNICORN FACE}"  # Four bytes, one character.
STAMP = NOW << 16  # As clocks give it; it takes nine bytes.


def key(number: int) -> Key:
    """A key that is ours."""
    return Key(number.to_bytes(20, "big"))


def sent(effects: Sequence[Effect]) -> Iterator[Message]:
    """All messages among some effects."""
    for effect in effects:
        match effect:
            case AfterSync(effects=held):
                yield from sent(held)
            case Send(message=message) | Tell(event=Received(message=message)):
                yield message


def fits(message: Message) -> bool:
    return len(MESSAGES.encode(message)) <= MESSAGE_BYTES_MAX


def answers(machine: StoreMachine, sender: PeerId, message: Message) -> list[Message]:
    """What a peer answers, each no larger than a message may be."""
    message.check()
    assert fits(message), "the other side is bound by the same"
    found = list(sent(machine.handle(Received(sender, message), NOW)))
    assert all(map(fits, found)), [(type(each).__name__, len(MESSAGES.encode(each))) for each in found]
    return found


def named(count_: int, name: str, stamp: int = STAMP) -> list[Entry]:
    return [entry(key(number), f"{name}{number:04}", stamp) for number in range(count_)]


def test_who_asks_often_for_one_entry_gets_it_once():
    machine = store(A, B)
    large = entry(value=bytes(VALUE_BYTES_MAX))
    give(machine, large)
    pull = StorePull(names=(ItemName(KEY, "x"),) * 5_000, round=7)
    assert answers(machine, A, pull) == [StoreReplicate(entries=(large,), round=7)]


def test_who_asks_for_more_than_fits_gets_a_part_that_completes_nothing():
    machine = store(A, B)
    entries = [entry(key(number), value=bytes(VALUE_BYTES_MAX)) for number in range(30)]
    for each in entries:
        give(machine, each)
    pull = StorePull(names=tuple(ItemName(each.key, each.item) for each in entries), round=7)
    (part,) = answers(machine, A, pull)
    assert isinstance(part, StoreReplicate)
    assert part.round == 0
    assert 0 < len(part.entries) < len(entries)
    assert part.entries == tuple(entries[: len(part.entries)])


def test_who_brings_an_entry_many_times_hears_of_it_in_several_messages():
    machine = store(A, B)
    give(machine, entry(item="x" * 30, stamp=STAMP))
    again = StoreReplicate(entries=(entry(item="x" * 30, stamp=0, value=None),) * 12_000)
    acks = answers(machine, A, again)
    assert len(acks) > 1
    kept = [each for ack in acks if isinstance(ack, StoreAck) for each in ack.kept]
    assert kept == [version_of(entry(item="x" * 30, stamp=STAMP))] * 12_000


@pytest.mark.parametrize("name", ["x" * (ITEM_CHARS_MAX - 4), WIDE * (ITEM_CHARS_MAX - 4)])
def test_long_names_are_offered_in_several_messages(name: str):
    machine = store(A, B, C)
    held = named(2_500, name)
    for start in range(0, len(held), 400):
        give(machine, *held[start : start + 400])
    digest = StoreDigest(round=7, neighbours=(A, B, C), start=0, digests=())
    listed: dict[str, None] = {}
    while digest.start < BUCKETS:  # As the other side goes on from where an offer ends.
        (offer,) = answers(machine, A, digest)
        assert isinstance(offer, StoreOffer)
        listed |= {each.item: None for each in offer.versions}
        digest = StoreDigest(round=7, neighbours=(A, B, C), start=offer.end, digests=())
    assert listed.keys() == {each.item for each in held}
    begun = list(sent(machine._comparisons.begin(A, now=NOW)))
    assert all(map(fits, begun))
    round_ = next(each.round for each in begun if isinstance(each, StoreDigest))
    nothing = StoreOffer(versions=(), round=round_, buckets=tuple(range(BUCKETS)), end=BUCKETS)
    offered = [each for each in answers(machine, A, nothing) if isinstance(each, StoreOffer)]
    assert {each.item for offer in offered for each in offer.versions} == {each.item for each in held}


def test_a_bucket_takes_no_more_than_one_offer_can_list():
    """Who chooses names can choose their bucket, and a bucket is listed as a whole."""
    machine = store(A, B, C)
    names = (f"{'x' * 480}{number}" for number in count())
    crowd = islice((each for each in names if zlib.crc32(KEY[:19] + b"\1" + each.encode()) % BUCKETS == 7), 1_200)
    refused = 0
    for each in crowd:
        taken = StoreReplicate(entries=(entry(key(1), each, STAMP, None),))
        refused += sum(len(ack.refused) for ack in answers(machine, A, taken) if isinstance(ack, StoreAck))
    assert refused > 100
    (offer,) = answers(machine, A, StoreDigest(round=7, neighbours=(A, B, C), start=0, digests=()))
    assert isinstance(offer, StoreOffer)
    assert len(offer.versions) > 900
    assert offer.buckets == (7,)


def test_buckets_that_are_not_there_are_not_listed():
    machine = store(A, B, C)
    strange = tuple((BUCKETS + number, 1) for number in range(100_000))
    (offer,) = answers(machine, A, StoreDigest(round=7, neighbours=(A, B, C), start=0, digests=strange))
    assert isinstance(offer, StoreOffer)
    assert offer.buckets == ()


@pytest.mark.parametrize("name", ["x" * 500, WIDE * 500, ""])
def test_all_that_a_key_can_hold_travels_in_one_message(name: str):
    machine = store(A, B)
    refused = False
    for first in count(0, 200):
        entries = tuple(entry(item=f"{name}{first + number}", stamp=STAMP, value=None) for number in range(200))
        acks = answers(machine, A, StoreReplicate(entries=entries))
        refused = any(isinstance(ack, StoreAck) and ack.refused for ack in acks)
        if refused:
            break
    (answer,) = answers(machine, A, StoreFetch(key=KEY, reader=B, request=7))
    assert isinstance(answer, StoreEntries)
    assert len(answer.entries) > 300


def test_only_owners_that_were_asked_answer_a_read_and_each_once():
    machine = store(A, B, C)
    answers(machine, C, StoreGet(key=KEY, reader=C, request=7))

    def answer(name: str, is_owner: bool = False) -> StoreEntries:
        return StoreEntries(key=KEY, reader=C, request=7, entries=(entry(item=name),), is_owner=is_owner)

    assert answers(machine, C, answer("of a stranger", is_owner=True)) == []
    assert answers(machine, A, answer("first")) == []
    assert answers(machine, A, answer("second")) == []
    assert answers(machine, ME, answer("ours", is_owner=True)) == []
    found = StoreFound(request=7, entries=(entry(item="first"), entry(item="ours"), entry(item="theirs")))
    assert answers(machine, B, answer("theirs", is_owner=True)) == [found]


@pytest.mark.parametrize(
    "message",
    [
        StoreAck(kept=(), closer=(A,) * (PEERS_MAX + 1)),
        StoreEntries(key=KEY, reader=A, request=7, entries=(), is_owner=False, closer=(A,) * (PEERS_MAX + 1)),
        StoreDigest(round=7, neighbours=(A,) * (PEERS_MAX + 1), start=0, digests=()),
        StoreOffer(versions=(), sightings=(Sighting(A, 0, False),) * (PEERS_MAX + 1)),
        StoreOffer(versions=(Version(KEY, "x", 5, A, 9),) * 20_000),
    ],
)
def test_nobody_names_more_than_there_can_be(message: Message):
    with pytest.raises(RemoteProtocolError):
        message.check()


def test_what_a_stranger_acknowledges_does_not_count():
    machine = store(A, B, C)
    answers(machine, A, StorePut(entry=entry(stamp=STAMP)))
    told = StoreAck(kept=(version_of(entry(stamp=STAMP)),))
    assert answers(machine, C, told) == []
    assert answers(machine, A, told) == []
    assert [type(each) for each in answers(machine, B, told)] == [StorePutDone]
