"""Queries as they travel to cells: what repeats is told once, and all of it is there again."""

from __future__ import annotations

import msgspec
import pytest

from experiments.cqdht.codec import CODEC
from experiments.cqdht.messages import Bundle, CellName, Contents, Moved, Rewritten, Share, Triggered
from experiments.cqdht.shared_plans import Sources, apart, some_cells, some_shares, together
from protocols.errors import RemoteProtocolError
from queries.plan import sources
from tests.experiments.cqdht.things import query, r
from tests.protocols.join_index.things import EQUI_JOIN, R_B, S_E

TEXTS = (
    EQUI_JOIN,
    "SELECT R.A, S.E FROM R, S WHERE R.B = S.E",
    "SELECT x.A FROM R [RANGE 5 MINUTES] AS x, S WHERE x.B + 1 = S.E AND x.A > 3 AND x.A < 9 AND S.D <> x.A",
    "SELECT one.A, other.A FROM R one, R other WHERE one.B = other.B AND other.A = 7",
)
EVERY = tuple(
    Rewritten(query(text, "cells", f"q{number}", **more), 0 if number % 2 else 1)
    for number, (text, more) in enumerate([(text, {}) for text in (*TEXTS, *TEXTS)] + [(EQUI_JOIN, {"is_set": True})])
)
CELLS = (CellName(S_E, 0), CellName(R_B, 0))


def bundle(*every: tuple[Rewritten, ...]) -> Bundle:
    told = Sources()
    shares = tuple(Share(cell, 0, 0, together(some, told)) for cell, some in zip(CELLS, every, strict=True))
    return Bundle(value="n7", trigger=r(1, 7, at=1), shares=shares, asks_finger=False, sources=told.told())


def test_all_that_a_query_says_is_there_again() -> None:
    told = Sources()
    plans = together(EVERY, told)
    assert sorted(apart(plans, told.told()), key=lambda each: each.query.id) == list(EVERY)
    plans = {(each.query.plan, each.side) for each in EVERY}
    assert len(plans) == len(plans)
    assert len(told.told()) == len({source for each in EVERY for source in sources(each.query.plan)})


def test_a_schema_is_told_once_for_a_message() -> None:
    raw = CODEC.encode(bundle(EVERY[:2], EVERY[4:5]))
    for source in sources(EVERY[0].query.plan):
        assert raw.count(msgspec.msgpack.encode(source.schema)) == 1


def test_a_part_of_a_message_has_no_sources_but_its_own() -> None:
    whole = bundle(EVERY[:2], EVERY[3:4])
    (_, last) = whole.shares
    part = some_shares(whole, [last])
    assert part.sources == sources(EVERY[3].query.plan)
    (share,) = part.shares
    assert apart(share.plans, part.sources) == EVERY[3:4]

    cells = tuple(
        Contents("n7", each.cell, 0, 1, 1, 0, (Triggered(each.plans, (whole.trigger,)),), ()) for each in whole.shares
    )
    moved = some_cells(Moved(cells=cells, removed=("q9",), sources=whole.sources), cells[1:])
    assert (moved.sources, moved.removed) == (part.sources, ("q9",))
    ((triggered,),) = (each.queries for each in moved.cells)
    assert apart(triggered.plans, moved.sources) == EVERY[3:4]


@pytest.mark.parametrize("place", [-1, 2])
def test_a_source_that_was_not_told_is_their_mistake(place: int) -> None:
    (plans,) = together(EVERY[:1], Sources())
    with pytest.raises(RemoteProtocolError, match=f"source {place} of a message that has 2"):
        apart([msgspec.structs.replace(plans, left=place)], sources(EVERY[0].query.plan))
