"""Mutated SQL: whatever the text, the answer is a query or a QueryError, and it comes soon."""

from __future__ import annotations

import random
import re
import time

import pytest

from queries import sql, sql_streams
from queries.errors import QueryError
from queries.plan import output_schema
from tests.queries.sql_corpus import CORPUS, streams
from tests.seeds import draw_seed
from tests.soaking import many

_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_SPICE = [
    *"()[],.;'\"?-+*/%<>=!|:\\{}@#$\n\t\x00é∀",
    *"SELECT FROM WHERE GROUP BY HAVING UNION ALL DISTINCT AND OR NOT IN IS NULL LIKE BETWEEN CASE WHEN END".split(),
    *"CAST AS INTERVAL TIMESTAMP RANGE ROWS SLIDE WITH JOIN ON LEFT CROSS TUMBLE HOP count sum now ORDER LIMIT".split(),
    *"0 1 9223372036854775808 1e999 .5 1. 0x1 12:00:00 99:99:99 '5' 5 MINUTES x'0' -- /* */ (SELECT".split(),
]
KNOWN = streams()
SLOWEST_S = 20.0  # Of the processor, for one text; a hang is minutes.


def mutated(rng: random.Random) -> str:
    text = rng.choice(CORPUS)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        kind = rng.randrange(7)
        if kind < 3:
            text = _by_words(rng, text, kind)
            continue
        at, end = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        match kind:
            case 3:
                text = text[:at] + text[min(end, at + 20) :]
            case 4:
                text = text[:at] + rng.choice(_SPICE) + text[at:]
            case 5:
                text = text[:at] + text[at:end] * rng.choice((2, 2, 3, 40)) + text[end:]
            case _:
                other = rng.choice(CORPUS)
                text = text[:at] + other[rng.randrange(len(other)) :]
    return text


def _by_words(rng: random.Random, text: str, kind: int) -> str:
    words = _WORD.findall(text) or [""]
    at = rng.randrange(len(words))
    match kind:
        case 0:
            words[at] = rng.choice(_SPICE)
        case 1:
            other = rng.randrange(len(words))
            words[at], words[other] = words[other], words[at]
        case _:
            words.insert(at, words[at] + " " + rng.choice(words))
    return "".join(words)


def check(text: str) -> bool:
    """Whether the text is a query; anything but a plan or a QueryError that tells its place is raised."""
    try:
        if re.match(r"\s*(create|drop)\b", text, re.IGNORECASE):
            sql_streams.read(text)
            return True
        plan = sql.plan(text, KNOWN).plan
    except QueryError as error:
        said = str(error)
    else:
        output_schema(plan)
        return True
    assert re.match(r"line \d+, column \d+: .+\n  .*\n  *\^", said), said
    return False


def fuzz(seed: int, count: int) -> None:
    print(f"seed={seed} count={count}")
    rng = random.Random(seed)
    good, slowest = 0, (0.0, "")
    for _ in range(count):
        text = mutated(rng)
        start = time.process_time()
        try:
            good += check(text)
        except Exception:
            print(f"text={text!r}")
            raise
        slowest = max(slowest, (time.process_time() - start, text))
    print(f"{good} of {count} texts were queries; the slowest took {slowest[0] * 1000:.0f} ms")
    assert slowest[0] < SLOWEST_S, slowest[1]


def test_every_text_of_the_corpus_is_a_query():
    assert [text for text in CORPUS if not check(text)] == []


def test_a_mutated_text_is_a_query_or_a_query_error():
    fuzz(seed=draw_seed(), count=1_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 8))
def test_many_mutated_texts_are_queries_or_query_errors(seed: int):
    fuzz(seed, count=many(8_000, 50_000))
