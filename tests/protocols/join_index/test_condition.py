"""What can be indexed and by what, and the keys it is found under."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocols.ids import ID_BITS
from protocols.join_index.condition import CompiledJoin, NotIndexed, condition_of
from protocols.join_index.keys import NULL, attribute_key, value_text
from queries import sql
from tests.protocols.join_index.things import R_B, STREAMS, query

NUMBERS = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=3),
)


@given(NUMBERS, NUMBERS)
@example(7, 7.0)
@example(Decimal("0.5"), 0.5)
@example(Decimal("0.1"), 0.1)
@example(-0.0, 0)
@example(1 << 53, float((1 << 53) + 1))
def test_numbers_have_one_text_exactly_where_they_are_equal(one: Any, other: Any):
    assert (value_text(one) == value_text(other)) == (one == other)


def test_values_of_other_types_have_texts_of_their_own():
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert value_text(noon) == value_text(noon.astimezone(timezone(timedelta(hours=2))))
    texts = [value_text(each) for each in (7, "7", b"7", True, timedelta(microseconds=7), float("inf"), "s" * 100)]
    assert len(set(texts)) == len(texts)
    assert [value_text(None), value_text(float("nan"))] == [NULL, NULL]


@pytest.mark.parametrize(
    ("text", "kind", "attributes"),
    [
        ("SELECT 1 AS one FROM R, S WHERE R.B = S.E", "T1", ["R.B", "S.E"]),
        ("SELECT 1 AS one FROM R, S WHERE R.B + 1 = S.E AND S.D = R.A", "T1", ["R.(A, B)", "S.(D, E)"]),
        ("SELECT 1 AS one FROM R, S WHERE R.B + 1 = S.D - 2", "T1", ["R.B", "S.D"]),
        ("SELECT 1 AS one FROM R, S WHERE R.B + R.A = 2 * S.E", "T2", ["R.B", "S.E"]),
        ("SELECT 1 AS one FROM R a, R b WHERE b.A = a.B", "T1", ["R.B", "R.A"]),
        ("SELECT 1 AS one FROM R [RANGE 5 MINUTES], P WHERE R.B = P.x", "T1", ["R.B", "P.x"]),
    ],
)
def test_a_join_has_a_type_and_an_index_attribute_on_each_side(text: str, kind: str, attributes: list[str]):
    condition = condition_of(sql.plan(text, STREAMS).plan)
    assert condition.type == kind
    assert [str(side.attribute) for side in condition.sides] == attributes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT R.A FROM R, S WHERE R.B < S.E", "there is none"),
        ("SELECT R.A FROM R", "only a join of two streams"),
        ("SELECT R.A FROM R, S, R t WHERE R.B = S.E AND t.B = S.E", "only a join of two streams"),
        ("SELECT count(*) AS n FROM R [RANGE 1 MINUTE]", "only a join of two streams"),
        ("SELECT A FROM R UNION ALL SELECT D FROM S", "no union"),
        ("SELECT R.A FROM R [ROWS 5], S WHERE R.B = S.E", r"\[ROWS 5\] of R needs the stream in one place"),
        ("SELECT R.A FROM R [RANGE 5 MINUTES SLIDE 1 MINUTE], S WHERE R.B = S.E", "without SLIDE"),
        ("SELECT R.A FROM R, P [RANGE 5 MINUTES] WHERE R.B = P.x", "P goes by event time"),
        ("SELECT R.A FROM R, P WHERE R.B = P.x AND P.at > CURRENT_TIME", "it asks for the time of P"),
    ],
)
def test_what_cannot_be_indexed_is_refused_with_the_reason(text: str, reason: str):
    with pytest.raises(NotIndexed, match=reason):
        CompiledJoin.of(query(text))


def test_only_dai_v_takes_expressions():
    text = "SELECT R.A FROM R, S WHERE R.B * 2 = S.E"
    assert CompiledJoin.of(query(text, "dai-v")).condition.type == "T2"
    with pytest.raises(NotIndexed, match="sai needs an equality that one attribute of each side decides"):
        CompiledJoin.of(query(text, "sai"))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_replicas_of_a_rewriter_lie_in_parts_of_the_key_space_of_their_own(bits: int):
    """Section 7 with z = 1: no peer has two of them where each part has a peer."""
    keys = [attribute_key(R_B, replica) for replica in range(1 << bits)]
    assert len({key.number >> (ID_BITS - bits) for key in keys}) == 1 << bits
