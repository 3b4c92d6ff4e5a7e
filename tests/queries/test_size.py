"""A text is as long as a peer can read in one event, in whichever language, and no longer."""

from __future__ import annotations

import pytest

from queries.catalogue import Stream
from queries.errors import QueryError
from queries.query import parse
from queries.schema import Schema
from queries.size import TEXT_MAX, WORDS_MAX

STREAMS = {"s": Stream("s", Schema.parse("a int, name string"))}


def conditions(count: int) -> str:
    """Nine words, and four for each condition but the first."""
    return "SELECT a FROM s WHERE " + " AND ".join(f"a <> {number}" for number in range(count))


def paths(count: int) -> str:
    """Of WXQuery: 31 words, and six for each condition but the first."""
    where = " and ".join(f"$s/a > {number}" for number in range(count))
    return f'<r>{{ for $s in stream("s")/r/t where {where} return <t/> }}</r>'


@pytest.mark.parametrize(
    ("fits", "beyond"),
    [
        (conditions(WORDS_MAX // 4 - 1), conditions(WORDS_MAX // 4)),
        (paths(WORDS_MAX // 6 - 5), paths(WORDS_MAX // 6)),
    ],
)
def test_a_text_has_so_many_words_and_no_more(fits: str, beyond: str):
    assert parse(fits, STREAMS).text == fits
    with pytest.raises(QueryError, match="more than 2,400 words and signs") as raised:
        parse(beyond, STREAMS)
    assert "a stream of its own" in raised.value.hint


def test_the_longest_list_of_values_and_the_longest_constant_fit():
    values = ", ".join(map(str, range(1000)))
    parse(f"SELECT a FROM s WHERE a IN ({values}) AND name = 'x'", STREAMS)
    text = "SELECT a FROM s WHERE name = '%s'"
    parse(text % ("it''s two " * 6_000), STREAMS)
    with pytest.raises(QueryError, match="characters"):
        parse(text % ("x" * TEXT_MAX), STREAMS)
