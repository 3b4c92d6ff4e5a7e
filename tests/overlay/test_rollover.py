"""The roll-over machine: whatever is lost, late or crashes, members end with one key, and the expelled stay out."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
import pytest

from overlay.identity import Identity, Network
from overlay.keyring import OVERLAP_MS, REMEMBERED_MS, Keyring, KeyringError, Outcast, Statement
from overlay.rollover import (
    Adopt,
    Begin,
    BlamePeer,
    CastOut,
    Dial,
    Down,
    Have,
    Heard,
    Linked,
    Met,
    Offer,
    Refusal,
    Refused,
    RingEffect,
    RingEvent,
    RollOvers,
    Save,
    Saved,
    Shut,
    Stated,
    TellPeer,
    Tick,
    Unlinked,
    WantKey,
    decode,
    encode,
)
from protocols.ids import PeerId
from tests.seeds import draw_seed
from tests.soaking import many

NETWORK = Network("plant", b"k" * 32)
IDENTITIES = sorted((Identity.from_seed(bytes([number]) * 32) for number in range(7)), key=lambda each: each.peer_id)
ALICE, BOB, CAROL, DAVE = IDENTITIES[:4]
START = 1_800_000_000_000


def key(number: int) -> bytes:
    return bytes([number % 256, number // 256]) + b"n" * 30


def outcast(identity: Identity) -> Outcast:
    return Outcast(bytes(identity.peer_id), "127.0.0.1", 7400)


def ring_of(*members: Identity, network: Network = NETWORK) -> Keyring:
    ring = Keyring.of(network)
    for member in members:
        ring = ring.met(member.peer_id, network.tag, START)
    return ring


@dataclass
class Place:
    """One member with its disk."""

    identity: Identity
    machine: RollOvers
    disk: Keyring
    adopted: list[Keyring] = field(default_factory=list)


class Weather:
    """A few members; events between them are lost, delayed and reordered, and members crash, until it calms down."""

    def __init__(self, seed: int, count: int) -> None:
        self.luck = random.Random(seed)
        self.now = START + 1
        self.keys = 0
        self.calm = False
        identities = IDENTITIES[:count]
        self.places = {each.peer_id: self._place(each, ring_of(*identities)) for each in identities}
        self.queue: list[tuple[PeerId, RingEvent]] = []
        self.local: list[tuple[PeerId, RingEvent]] = []  # What a member sees at once, and in order.
        self.links: dict[tuple[PeerId, PeerId], None] = {}
        self.cut: set[frozenset[PeerId]] = set()

    def _place(self, identity: Identity, disk: Keyring) -> Place:
        return Place(identity, RollOvers(identity, disk, random.Random(self.luck.random())), disk)

    def new_key(self) -> bytes:
        self.keys += 1
        return key(self.keys)

    def expel(self, by: Identity, *who: Identity) -> None:
        place = self.places[by.peer_id]
        if place.machine.cast_out is None:
            members = tuple(self.places)
            self.handle(by.peer_id, Begin(self.new_key(), tuple(map(outcast, who)), members, members))

    def handle(self, peer: PeerId, event: RingEvent) -> None:
        place = self.places[peer]
        for effect in place.machine.handle(event, self.now):
            self._perform(place, effect)
        place.machine.validate()

    def _perform(self, place: Place, effect: RingEffect) -> None:
        own = place.identity.peer_id
        match effect:
            case Save(ring):
                self.queue.append((own, Saved()))
                place.disk = ring if self.calm or self.luck.random() < 0.7 else place.disk
            case TellPeer(peer, message):
                if (own, peer) in self.links and (self.calm or self.luck.random() < 0.8):
                    self.queue.append((peer, Heard(own, decode(encode(message)))))
            case Dial(peer):
                self.link(own, peer)
            case Shut(peer, refusal):
                self.unlink(own, peer)
                self.queue.append((peer, Heard(own, refusal)))
            case Adopt(ring, expelled):
                place.adopted.append(ring)
                for peer in expelled:
                    self.unlink(own, peer)
            case WantKey():
                self.local.append((own, Begin(self.new_key(), ())))
            case CastOut():
                for peer in self.places:
                    self.unlink(own, peer)
            case Refused() | BlamePeer():
                pass

    def link(self, one: PeerId, other: PeerId) -> None:
        """As TLS and HELLO do it: under a key that both have, unless one refuses the other."""
        if one == other or (one, other) in self.links or frozenset((one, other)) in self.cut:
            return
        here, there = self.places[one].machine, self.places[other].machine
        shared = [tag for tag in here.ring.keys if tag in there.ring.keys]
        if here.cast_out or not shared:
            return
        tags = {one: min(here.ring.keys, key=lambda each: each != here.ring.current_id)[:4], other: shared[0][:4]}
        tags[one] = tags[one] if there.ring.network_of(tags[one]) else shared[0][:4]
        if there.cast_out or there.ring.refusal(one, tags[one]):
            self.queue.append((one, Heard(other, there.refusal_of(one, tags[one]))))
            return
        if here.ring.refusal(other, tags[other]):
            return
        self.links[one, other] = self.links[other, one] = None
        self.local += [
            (one, Linked(other, tags[other], there.ring.stated)),
            (other, Linked(one, tags[one], here.ring.stated)),
        ]

    def unlink(self, one: PeerId, other: PeerId) -> None:
        if self.links.pop((one, other), 0) is None:
            self.links.pop((other, one))
            self.local += [(one, Unlinked(other)), (other, Unlinked(one))]

    def crash(self, peer: PeerId) -> None:
        for other in self.places:
            self.unlink(peer, other)
        self.queue = [entry for entry in self.queue if entry[0] != peer]
        self.local = [entry for entry in self.local if entry[0] != peer]
        self.places[peer] = self._place(self.places[peer].identity, self.places[peer].disk)

    def step(self) -> None:
        self.now += self.luck.randrange(300)
        if self.local:
            self.handle(*self.local.pop(0))
        elif self.queue:
            peer, event = self.queue.pop(0 if self.calm else self.luck.randrange(min(3, len(self.queue))))
            if isinstance(event, Saved):
                place = self.places[peer]
                if place.machine._being_saved is None:
                    return  # It crashed meanwhile.
                place.disk = place.machine._being_saved
            match event:
                case Heard(sender, Offer() | Have()) if (peer, sender) not in self.links:
                    return
            self.handle(peer, event)

    def storm(self, steps: int) -> None:
        peers = list(self.places)
        for _ in range(steps):
            one, other = self.luck.sample(peers, 2)
            match self.luck.randrange(12):
                case 0 | 1 | 2:
                    self.link(one, other)
                case 3:
                    self.unlink(one, other)
                case 4:
                    self.handle(one, Tick())
                case 5 if self.luck.random() < 0.2:
                    self.crash(one)
                case 6 if self.luck.random() < 0.2:
                    self.cut ^= {frozenset((one, other))}
                case _:
                    self.step()

    def settle(self) -> None:
        self.calm = True
        self.cut.clear()
        peers = list(self.places)
        for _ in range(12):
            for one in peers:
                for other in peers:
                    self.link(one, other)
                self.now += 1_000
                self.handle(one, Tick())
                for _ in range(2_000):
                    if not self.queue and not self.local:
                        break
                    self.step()
            self.now += 6_000

    def check(self, expelled: set[PeerId]) -> None:
        inside = [place for peer, place in self.places.items() if peer not in expelled]
        outside = [self.places[peer] for peer in self.places if peer in expelled]
        assert len({place.machine.ring.current.key for place in inside}) <= 1
        for place in inside:
            ring = place.machine.ring
            assert set(ring.expelled) == expelled
            assert place.disk.encode() == ring.encode(), "what it goes by is on its disk"
            assert not ring.wants_a_key
            assert place.machine.cast_out is None
            for other in inside:
                assert other is place or (place.identity.peer_id, other.identity.peer_id) in self.links
        for place in outside:
            assert place.machine.cast_out is not None
            if inside:
                assert inside[0].machine.ring.current.key not in {held.key for held in place.machine.ring.keys.values()}


@pytest.mark.parametrize("number", range(many(40, 2_000)))
def test_members_end_with_one_key_whatever_is_lost_late_or_crashes(number: int) -> None:
    seed = draw_seed() + number
    weather = Weather(seed, count=weather_count(seed))
    luck = weather.luck
    identities = [place.identity for place in weather.places.values()]
    for _ in range(luck.randrange(1, 4)):
        by, who = luck.sample(identities, 2)
        weather.expel(by, who)
        weather.storm(luck.choice((0, 5, 60)))
    weather.settle()
    inside = [place.machine for place in weather.places.values() if place.machine.cast_out is None]
    weather.check({peer for machine in inside for peer in machine.ring.expelled})


def weather_count(seed: int) -> int:
    return 4 + seed % 4


def test_two_that_expel_each_other_are_both_out_and_a_third_makes_a_key_that_neither_knows() -> None:
    weather = Weather(seed=1, count=4)
    weather.expel(ALICE, BOB)
    weather.expel(BOB, ALICE)
    weather.settle()
    weather.check({ALICE.peer_id, BOB.peer_id})
    ring = weather.places[CAROL.peer_id].machine.ring
    assert ring.current.generation == 3
    assert ring.current.key not in (key(1), key(2))


# What the machine answers.


def machine_of(identity: Identity, *members: Identity) -> RollOvers:
    return RollOvers(identity, ring_of(*members), random.Random(1))


def test_a_new_key_is_on_the_disk_before_anybody_hears_of_it() -> None:
    machine = machine_of(ALICE, ALICE, BOB, CAROL)
    before = machine.ring
    assert machine.handle(Linked(BOB.peer_id, NETWORK.tag, before.stated), START) == []
    live = (BOB.peer_id, DAVE.peer_id)
    (save,) = machine.handle(Begin(key(1), (outcast(CAROL),), (), live), START + 5)
    assert isinstance(save, Save)
    assert machine.ring is before
    adopt, have, offer, dial = machine.handle(Saved(), START + 6)
    assert isinstance(adopt, Adopt)
    assert list(adopt.expelled) == [CAROL.peer_id]
    assert have == TellPeer(BOB.peer_id, Have(save.ring.stated))
    assert isinstance(offer, TellPeer)
    assert isinstance(offer.message, Offer)
    assert offer.message.keys == [key(1)]
    assert dial == Dial(DAVE.peer_id)
    assert machine.handle(Heard(BOB.peer_id, Have(save.ring.stated)), START + 7) == []
    assert [machine.has_ours(peer) for peer in live] == [True, False]


def test_the_link_to_an_expelled_peer_ends_and_it_gets_the_statement_without_the_key() -> None:
    machine, victim = machine_of(ALICE, ALICE, BOB), machine_of(BOB, ALICE, BOB)
    machine.handle(Linked(BOB.peer_id, NETWORK.tag, machine.ring.stated), START)
    machine.handle(Begin(key(1), (outcast(BOB),), (), ()), START + 5)
    _, shut = machine.handle(Saved(), START + 6)
    assert isinstance(shut, Shut)
    assert key(1) not in encode(shut.refusal)
    assert f"expelled by peer {ALICE.peer_id.short}" in shut.refusal.reason
    assert isinstance(victim.handle(Heard(ALICE.peer_id, shut.refusal), START + 7)[0], Save)
    (out,) = victim.handle(Saved(), START + 8)
    assert isinstance(out, CastOut)
    assert out.statement.maker == ALICE.peer_id
    assert victim.handle(Begin(key(2), (outcast(ALICE),), (), ()), START + 9) == []
    assert RollOvers(BOB, victim.ring, random.Random(1)).cast_out is not None, "after a restart, too"


def test_who_may_expel_is_asked_at_each_member() -> None:
    ring = ring_of(ALICE, BOB, CAROL).rolled_over(BOB, key(1), (outcast(CAROL),), START)
    machine = RollOvers(ALICE, ring_of(ALICE, BOB), random.Random(1), may_expel=lambda maker: maker != BOB.peer_id)
    machine.handle(Linked(BOB.peer_id, NETWORK.tag, ring.stated), START)
    offer = Offer([each.raw for each in ring.statements.values()], ring.shared_keys(), [])
    assert machine.handle(Heard(BOB.peer_id, offer), START) == [
        BlamePeer(BOB.peer_id, f"peer {BOB.peer_id.short} may not expel others")
    ]


# The ring.


def test_an_old_key_is_spoken_for_a_minute_and_lets_listed_members_come_back_for_a_week() -> None:
    ring = ring_of(ALICE, BOB).rolled_over(ALICE, key(1), (outcast(CAROL),), START)
    old = NETWORK.tag
    assert [each.generation for each in ring.networks(OVERLAP_MS, START + OVERLAP_MS - 1)] == [2, 1]
    assert [each.generation for each in ring.networks(OVERLAP_MS, START + OVERLAP_MS)] == [2]
    assert ring.refusal(BOB.peer_id, old) == ""
    assert "not known as a member" in ring.refusal(DAVE.peer_id, old)
    assert ring.refusal(DAVE.peer_id, ring.current.tag) == ""
    for tag in (old, ring.current.tag):
        assert ring.refusal(CAROL.peer_id, tag) == f"expelled by peer {ALICE.peer_id.short}"
    assert len(ring.forgotten(START + REMEMBERED_MS).keys) == 1


def test_whoever_was_let_in_with_the_old_key_after_it_was_replaced_is_not_believed() -> None:
    unaware = ring_of(ALICE, BOB).met(DAVE.peer_id, NETWORK.tag, START + 10)
    ring = ring_of(ALICE, BOB).rolled_over(ALICE, key(1), (outcast(CAROL),), START + 5)
    merged = unaware.merged(ring.statements.values(), ring.shared_keys(), ring.roster.values(), START + 20)
    assert DAVE.peer_id not in merged.roster
    assert BOB.peer_id in merged.roster
    again = ring.merged((), (), unaware.roster.values(), START + 20)
    assert DAVE.peer_id not in again.roster, "nor on the word of one that did not know better"


def test_a_ring_survives_the_disk_and_says_nothing_of_its_keys() -> None:
    ring = ring_of(ALICE, BOB).rolled_over(ALICE, key(1), (outcast(CAROL),), START)
    back = Keyring.decode(ring.encode())
    assert (back.current, back.stated, back.roster) == (ring.current, ring.stated, ring.roster)
    assert list(back.expelled) == [CAROL.peer_id]
    for held in ring.keys.values():
        assert repr(held.key) not in repr(ring) + repr(held) + repr(ring.current)
    for damaged in (ring.encode()[:-1], b"", b"\x90"):
        with pytest.raises(KeyringError):
            Keyring.decode(damaged)


def test_a_statement_is_its_makers_alone() -> None:
    network = Network("plant", key(1), 2, NETWORK.id)
    raw = Statement.sign(ALICE, network, START, (outcast(BOB),)).raw
    assert Statement.verify(raw).maker == ALICE.peer_id
    for place in range(len(raw)):
        with pytest.raises(KeyringError):
            Statement.verify(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])


@pytest.mark.parametrize("seed", range(3))
def test_messages_without_sense_change_nothing(seed: int) -> None:
    luck = random.Random(seed)
    machine = machine_of(ALICE, ALICE, BOB, CAROL)
    machine.handle(Linked(BOB.peer_id, NETWORK.tag, machine.ring.stated), START)
    other = Keyring.of(Network("else", b"e" * 32)).rolled_over(BOB, key(9), (outcast(ALICE),), START)
    gap = Keyring.of(Network("plant", key(4), 5, NETWORK.id))
    ring = ring_of(BOB).rolled_over(BOB, key(1), (outcast(CAROL),), START)
    (good,) = (each.raw for each in ring.statements.values())
    late = Statement.sign(BOB, Network("plant", key(7), 7, gap.network_id), START, ()).raw
    senseless = [
        Offer([each.raw for each in other.statements.values()], [key(9)], []),
        Offer([late], [key(7)], []),
        Offer([], [key(3)], []),
        Refusal("no", [late]),
        Have(b"short"),
    ]
    before = machine.ring.encode()
    for message in senseless:
        (blame,) = machine.handle(Heard(BOB.peer_id, message), START)
        assert isinstance(blame, BlamePeer)
    assert isinstance(machine.handle(Heard(DAVE.peer_id, Offer([good], [key(1)], [])), START)[0], BlamePeer)
    whole = encode(Offer([good], [key(1)], list(ring.roster.values())))
    for _ in range(many(1_000, 100_000)):
        raw = bytearray(whole)
        for _ in range(luck.randrange(1, 4)):
            raw[luck.randrange(len(raw))] ^= luck.randrange(1, 256)
        try:
            message = decode(bytes(raw))
        except (msgspec.DecodeError, RecursionError, ValueError):
            continue
        effects = machine.handle(Heard(BOB.peer_id, message), START)
        if effects and isinstance(effects[0], Save):  # Only the roster was changed, or nothing.
            machine = machine_of(ALICE, ALICE, BOB, CAROL)
            machine.handle(Linked(BOB.peer_id, NETWORK.tag, machine.ring.stated), START)
    for event in (Stated(BOB.peer_id, b"x" * 8), Down(BOB.peer_id), Met(DAVE.peer_id, b"none"), Unlinked(DAVE.peer_id)):
        machine.handle(event, START)
    assert machine.ring.encode() == before


def test_a_member_of_an_older_release_lacks_nothing_until_the_key_is_replaced() -> None:
    machine = machine_of(ALICE, ALICE, BOB, CAROL)
    machine.handle(Stated(BOB.peer_id, b""), START)
    assert machine.behind() == []
    machine.handle(Begin(key(1), (outcast(CAROL),), (), ()), START)
    machine.handle(Saved(), START)
    assert machine.behind() == [BOB.peer_id]
    assert machine.handle(Tick(), START + 1) == [], "it is not asked to take what it cannot read"
    machine.handle(Tick(), START + 200_000)
    assert machine.behind() == [], "nobody has heard of it for long"
