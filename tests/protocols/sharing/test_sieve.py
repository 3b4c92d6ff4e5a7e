"""The sieve: each reader gets exactly the rows that its own selection keeps, in their order."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest

from protocols.delivery.needs import EVERYBODY
from protocols.sieve import Sieve, selected
from queries.catalogue import Stream
from queries.compile import predicate_on_batch
from queries.expressions import Expression, conjunction
from queries.plan import Source
from queries.query import parse
from queries.schema import Row, Schema

SCHEMA = Schema.parse("a int, b int, x float null, d decimal, s string null, p record(n int)")
STREAM = Stream("r", SCHEMA)
SOURCE = Source("r", EVERYBODY, SCHEMA)
CONDITIONS = (
    *(f"a {sign} {value}" for sign in ("=", "<", "<=", ">", ">=", "<>") for value in (0, 1, "1.5", 3)),
    *("2 > a", "1 = a", "x > 1", "x = 2", "x <= 0.5", "d = 2.50", "d >= 1", "s = 'b'", "s > 'a'", "p.n = 1", "p.n < 2"),
    *("a BETWEEN 1 AND 2", "x > 0.6 AND x < 1.5", "a + 0 = 1", "a = 1 OR b = 2", "s IS NULL", "x = a", "a IN (1, 2)"),
)


def parts(condition: str) -> tuple[Expression, ...]:
    return selected(parse(f"SELECT a FROM r AS t{' WHERE ' + condition if condition else ''}", {"r": STREAM}).plan, "t")


def a_row(luck: random.Random) -> Row:
    x = luck.choice((None, float("nan"), 0.5, 1.0, 2.0))
    d, s = luck.choice((Decimal(1), Decimal("2.5"), Decimal("2.500"))), luck.choice((None, "a", "b"))
    return (luck.randrange(4), luck.randrange(3), x, d, s, (luck.randrange(3),), None)


@pytest.mark.parametrize("seed", range(30))
def test_every_reader_gets_what_it_would_select_alone(seed: int):
    luck = random.Random(seed)
    texts = [" AND ".join(f"({each})" for each in luck.sample(CONDITIONS, luck.randrange(4))) for _ in range(40)]
    wanted = {f"q{number}": parts(text) for number, text in enumerate(texts)}
    sieve = Sieve[str](SOURCE)
    for name, each in wanted.items():
        sieve.add(name, each)
    for name in luck.sample(sorted(wanted), 10):
        sieve.remove(name, wanted.pop(name))
    for _ in range(5):
        rows = [a_row(luck) for _ in range(luck.randrange(1, 20))]
        got: dict[str, list[Row]] = {}
        for some, readers in sieve.sifted(rows):
            assert some, f"seed={seed}: nobody is named for nothing"
            for name in readers:
                got.setdefault(name, []).extend(some)
        for name, each in wanted.items():
            alone = list(predicate_on_batch(conjunction(each), SOURCE.columns)(rows))
            assert list(map(repr, got.get(name, []))) == list(map(repr, alone)), f"seed={seed} {texts[int(name[1:])]}"


def test_equal_selections_are_one():
    sieve = Sieve[str](SOURCE)
    for name, text in (("one", "a > 1 AND s = 'b'"), ("two", "s = 'b' AND a > 1"), ("three", "a > 2")):
        sieve.add(name, parts(text))
    assert len(sieve) == 2
    sieve.remove("one", parts("a > 1 AND s = 'b'"))
    sieve.remove("two", parts("a > 1 AND s = 'b'"))
    sieve.remove("three", parts("a > 2"))
    assert list(sieve.sifted([(2, 0, None, Decimal(1), "b", (0,), None)])) == []
