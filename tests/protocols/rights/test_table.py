"""What follows from grants and tokens, in whatever order a peer learns of them."""

from __future__ import annotations

import hashlib
import itertools
import random
import time

import msgspec
import pytest

from protocols.ids import PeerId
from protocols.rights.messages import RightKept
from protocols.rights.table import KEY, POLICY, RightsTable, grant_item, object_of, token_item
from protocols.store.entries import Entry

ADMIN = PeerId(bytes(20))
ONE = f"peer:{'1' * 40}"


def entry(item: str, value: object, stamp: int = 1) -> Entry:
    return Entry(KEY, item, stamp, ADMIN, None if value is None else msgspec.msgpack.encode(value), 0)


def token(client: str, secret: str, expires_at: int = 0) -> Entry:
    return entry(token_item(client), (hashlib.sha256(secret.encode()).digest(), 1, expires_at))


def table(*entries: Entry, policy: object = "closed", now: int = 5) -> RightsTable:
    made = RightsTable()
    made.learn((entry(POLICY, policy), *entries), now)
    return made


@pytest.mark.parametrize(
    ("pattern", "matches", "misses"),
    [
        ("flights", ["flights"], ["flights2", "flight", "query:flights", "Flights"]),
        ("plant.*", ["plant.", "plant.a", "plant.a.b"], ["plant", "plants.a", "query:plant.a"]),
        ("*", ["flights", "query:q"], []),
        ("query:*", ["query:q", "query:"], ["flights"]),
        ("query:d*s", ["query:delays"], ["query:delay"]),
        ("a.b", ["a.b"], ["a-b", "aXb"]),
        ("*a*b*", ["ab", "xaxbx", "query:aab"], ["ba", "b", "a"]),
        ("*ab", ["ab", "aab", "abab"], ["aba"]),
        ("a**b", ["ab", "aXb"], ["a", "b"]),
    ],
)
def test_a_pattern_matches_names(pattern: str, matches: list[str], misses: list[str]):
    rights = table(entry(grant_item(ONE, pattern), ["read"]))
    assert all(rights.may(ONE, "read", each) for each in matches)
    assert not any(rights.may(ONE, "read", each) for each in misses)
    assert not any(rights.may(ONE, "publish", each) for each in matches)
    assert not any(rights.may(f"peer:{'2' * 40}", "read", each) for each in matches)


def test_no_pattern_takes_long_whoever_wrote_it():
    rights = table(entry(grant_item(ONE, "*a" * 60 + "*b"), ["read"]))
    began_at = time.thread_time()
    assert not rights.may(ONE, "read", "a" * 1000)
    assert time.thread_time() - began_at < 0.05


def test_a_grant_is_for_one_for_all_of_a_kind_or_for_everybody():
    everybody = (ONE, "client:a", "peer:*")
    good = token("a", "x")
    for principal, who in (
        ("*", everybody),
        ("peer:*", (ONE, "peer:*")),
        ("client:*", ("client:a",)),
        ("client:a", ("client:a",)),
    ):
        rights = table(good, entry(grant_item(principal, "s"), ["read"]))
        assert tuple(each for each in everybody if rights.may(each, "read", "s")) == who
        assert not rights.may("client:b", "read", "s"), "it has no token"


def test_an_open_network_allows_all_but_that_clients_change_rights():
    rights = table(policy="open")
    assert rights.may(ONE, "admin", "*")
    assert rights.may("client:a", "publish", "s")
    assert not rights.may("client:a", "admin", "*")
    assert table(token("a", "x"), entry(grant_item("client:a", "*"), ["admin"]), policy="open").may(
        "client:a", "admin", "*"
    )


def test_what_cannot_be_read_grants_nothing():
    assert not table(policy="half-open").is_open, "a policy of a later release"
    rights = table(entry(grant_item(ONE, "*"), ["read", "fly"]), entry(token_item("a"), ["x"]), entry("what", 1))
    assert not rights.may(ONE, "read", "s")
    assert not rights.is_good("a")


def test_a_token_is_good_with_its_secret_until_it_expires():
    rights = table(token("a", "x", expires_at=1000), entry(grant_item("client:a", "*"), ["read"]))
    assert (rights.admits("a", "x"), rights.admits("a", "y"), rights.admits("b", "x")) == (True, False, False)
    assert rights.may("client:a", "read", "s")
    assert rights.expire(999) == []
    assert rights.expire(1000) == ["a"]
    assert rights.expire(1001) == [], "told once"
    assert not rights.admits("a", "x")
    assert not rights.may("client:a", "read", "s")


def test_entries_may_come_in_any_order_and_often():
    entries = [
        entry(POLICY, "closed", 1),
        entry(POLICY, "open", 2),
        entry(grant_item(ONE, "s"), ["read"], 1),
        entry(grant_item(ONE, "s"), None, 3),
        entry(grant_item(ONE, "s"), ["publish"], 2),
    ]
    digests = []
    for order in itertools.permutations(entries):
        rights = RightsTable()
        for each in (*order, *order):
            rights.learn((each,), 5)
        assert rights.is_open
        assert rights.grants() == ()
        digests.append(rights.digest)
    assert len(set(digests)) == 1


def test_nothing_is_forgotten_because_it_was_not_found():
    rights = table(entry(grant_item(ONE, "s"), ["read"]))
    assert rights.learn((), 6) == []
    assert not rights.is_open
    assert rights.may(ONE, "read", "s")


def test_a_restored_table_says_the_same():
    luck = random.Random(1)
    rights = table(*(entry(grant_item(ONE, f"s{luck.randrange(9)}"), ["read"], turn) for turn in range(30)))
    again = RightsTable()
    for kept in rights.entries.values():
        assert again.put(RightKept(item=kept.item, stamp=kept.stamp, writer=kept.writer, value=kept.value))
    again.read_anew(5)
    assert (again.digest, again.grants(), again.policy) == (rights.digest, rights.grants(), rights.policy)


def test_somebody_is_left_who_can_change_rights():
    assert not table().has_admin
    assert table(entry(grant_item(ONE, "*"), ["admin"])).has_admin
    boss = entry(grant_item("client:boss", "*"), ["admin"])
    assert not table(boss).has_admin
    assert table(boss, token("boss", "x")).has_admin
    assert not table(boss, token("boss", "x", expires_at=3)).has_admin


def test_the_results_of_a_query_are_an_object_of_their_own():
    assert object_of("q-1.18f2-3f9a77c0-a") == "query:q-1"
    assert object_of("plant.a") == "plant.a"
