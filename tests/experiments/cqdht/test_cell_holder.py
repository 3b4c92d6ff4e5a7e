"""Cells at their holders: how they are handed on and halved, and what becomes of what comes for where they were."""

from __future__ import annotations

import msgspec

from experiments.cqdht.cell_holder import ASKED, CellHolder
from experiments.cqdht.cells import Parts, cell_key, cut_off, part_of
from experiments.cqdht.evaluator import Evaluator
from experiments.cqdht.limits import JoinLimits
from experiments.cqdht.messages import (
    AskLoad,
    Bundle,
    CellName,
    ForgetQuery,
    Halved,
    HandedOn,
    JoinQuery,
    Moved,
    Notify,
    PeerLoad,
    Rewritten,
    Share,
    StreamTuple,
)
from experiments.cqdht.rewriter import Rewriter
from experiments.cqdht.shared_plans import Sources, together
from protocols.effects import Effect, Route, Send
from protocols.ids import PeerId
from protocols.join_index.keys import value_text
from protocols.join_index.messages import Attribute
from tests.experiments.cqdht.things import query, r, s
from tests.protocols.join_index.things import EVALUATOR, HOUR_MS, R_B, REWRITER, S_E, received

SEVEN = value_text(7)
OTHER = PeerId.of_public_key(b"other")
QUERIES = tuple(query(algorithm="cells", name=f"q{number}") for number in range(4))
CELL = CellName(S_E, 0)


def holder(busy_above: int = 3, cells_max: int = 100) -> CellHolder:
    limits = JoinLimits(busy_above=busy_above, cells_max=cells_max)
    return CellHolder(limits, Evaluator(limits), Rewriter(limits))


def opens(trigger: StreamTuple, *queries: JoinQuery, at: Attribute = S_E, **more: int) -> Bundle:
    """Queries that a tuple has triggered."""
    share = Share(CellName(at, more.get("part", 0)), more.get("bits", 0), more.get("holder", 0))
    sources = Sources()
    plans = together((Rewritten(each, 0) for each in queries), sources)
    return _bundle(trigger, msgspec.structs.replace(share, plans=plans), sources)


def indexes(each: StreamTuple, **more: int) -> Bundle:
    """A tuple itself."""
    name = CellName(S_E, more.get("part", 0))
    return _bundle(each, Share(name, more.get("bits", 0), more.get("holder", 0), keep_ms=HOUR_MS))


def _bundle(trigger: StreamTuple, share: Share, sources: Sources | None = None) -> Bundle:
    told = () if sources is None else sources.told()
    return Bundle(value=SEVEN, trigger=trigger, shares=(share,), asks_finger=False, sources=told)


def answers(each: CellHolder, effects: list[Effect], load: int, mine: int | None = None) -> list[Effect]:
    """What it does when all that it has asked have so much to do, one of them perhaps other than the rest."""
    asked = [effect.message for effect in effects if isinstance(effect, Route | Send)]
    numbers = [message.number for message in asked if isinstance(message, AskLoad)]
    assert len(numbers) == ASKED
    found: list[Effect] = []
    for place, number in enumerate(numbers):
        told = load if mine is None or place else mine
        found = each.handle(received(PeerLoad(number=number, load=told), EVALUATOR if place else OTHER), now=5)
        assert not found or place == ASKED - 1
    return found


def moved(effects: list[Effect]) -> list[Moved]:
    return [
        effect.message for effect in effects if isinstance(effect, Route | Send) and isinstance(effect.message, Moved)
    ]


def told(effects: list[Effect]) -> list[str]:
    """The queries of the results."""
    messages = [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Notify)]
    return sorted(each.query for message in messages for each in message.notifications)


def with_two_cells(cells_max: int = 100) -> tuple[CellHolder, list[Effect]]:
    """A busy holder of two cells, and what it asks others."""
    busy = holder(busy_above=0, cells_max=cells_max)
    busy.handle(received(opens(r(1, 7, at=1), QUERIES[0]), REWRITER), now=1)
    asking = busy.handle(received(opens(r(1, 7, at=1), QUERIES[0], at=R_B), REWRITER), now=2)
    return busy, asking


def test_a_busy_holder_hands_a_cell_on_to_who_has_less_and_tells_who_comes_for_it():
    busy, asking = with_two_cells()
    (handed,) = answers(busy, asking, load=1, mine=0)
    assert isinstance(handed, Send)
    assert handed.peer == OTHER
    (found,) = moved([handed])
    (contents,) = found.cells
    assert (contents.cell, contents.holder, contents.queries_load, contents.tuples_load) == (CELL, 1, 1, 0)
    assert busy.handle(received(indexes(s(1, 7, at=2)), REWRITER), now=6) == [
        Send(OTHER, indexes(s(1, 7, at=2), holder=1)),
        Send(REWRITER, HandedOn(value=SEVEN, cells=((CELL, 1),), peer=OTHER)),
    ]
    forgotten = ForgetQuery(query="q0", at=S_E, value=SEVEN, part=0)
    passed = msgspec.structs.replace(forgotten, holder=1)
    assert busy.handle(received(forgotten, REWRITER), now=7) == [Send(OTHER, passed)]
    busy.validate()


def test_who_is_like_others_keeps_its_cells():
    busy, asking = with_two_cells()
    assert answers(busy, asking, load=2) == []


def test_who_would_have_to_remember_too_much_hands_nothing_on():
    busy, asking = with_two_cells(cells_max=1)
    assert answers(busy, asking, load=0) == []


def test_who_has_no_more_than_the_last_mean_asks_nobody():
    calm, asking = with_two_cells()
    assert answers(calm, asking, load=10) == []
    effects: list[Effect] = []
    for number in range(8):
        effects += calm.handle(received(opens(r(1, 7, at=number + 3, sequence=number + 1), QUERIES[0])), now=number + 6)
    assert effects == []
    effects = calm.handle(received(opens(r(1, 7, at=20, sequence=20), QUERIES[0])), now=20)
    assert len(effects) == ASKED


def test_an_empty_cell_is_forgotten_unless_it_was_handed_on():
    busy, asking = with_two_cells()
    assert answers(busy, asking, load=1, mine=0)
    busy.sweep(now=HOUR_MS)
    assert len(busy.cells) == 2
    busy.evaluator.sweep(now=10 * HOUR_MS)
    busy.sweep(now=10 * HOUR_MS)
    (left,) = busy.cells
    assert (left.name, left.next) == (CELL, OTHER)
    busy.validate()


def test_what_comes_to_a_new_holder_before_its_cell_meets_it_then_and_only_once():
    first, asking = with_two_cells()
    second = holder(10_000)
    early = s(1, 7, at=2)
    assert told(first.handle(received(indexes(early), REWRITER), now=2)) == ["q0"]
    (handed,) = moved(answers(first, asking, load=0))
    late = indexes(s(2, 7, at=3, sequence=1), holder=1)
    assert second.handle(received(late, REWRITER), now=3) == []
    assert told(second.handle(received(handed, EVALUATOR), now=4)) == ["q0"]
    for again in (handed, late, indexes(early, holder=1)):
        assert second.handle(received(again, EVALUATOR), now=5) == []
    first.validate()
    second.validate()


def test_a_cell_may_come_back_and_what_is_on_old_ways_finds_it():
    first, asking = with_two_cells()
    (handed,) = moved(answers(first, asking, load=0))
    cells = tuple(msgspec.structs.replace(each, holder=2) for each in handed.cells)
    back = msgspec.structs.replace(handed, cells=cells)
    assert moved(first.handle(received(back, EVALUATOR), now=6)) == []
    assert told(first.handle(received(indexes(s(1, 7, at=2)), REWRITER), now=7)) == ["q0"]
    assert told(first.handle(received(handed, EVALUATOR), now=8)) == []
    first.validate()


def test_a_heavy_cell_is_halved_by_its_queries_and_each_half_has_all_tuples():
    heavy = holder()
    assert heavy.handle(received(indexes(s(1, 7, at=1)), REWRITER), now=1) == []
    effects = heavy.handle(received(opens(r(1, 7, at=2), *QUERIES), REWRITER), now=2)
    assert told(effects) == ["q0", "q1", "q2", "q3"]
    (cut,) = moved(answers(heavy, effects, load=0))
    (contents,) = cut.cells
    here = [each.id for each in QUERIES if part_of(each.id, 0, 0, 1) == 0]
    there = [query.id for each in contents.queries for plans in each.plans for query in plans.queries]
    assert sorted(here + there) == ["q0", "q1", "q2", "q3"]
    assert here
    assert there
    assert (contents.cell, contents.bits, contents.holder, len(contents.tuples)) == (CellName(S_E, 1), 1, 0, 1)
    later = indexes(s(2, 7, at=3, sequence=1))
    effects = heavy.handle(received(later, REWRITER), now=6)
    assert effects[:2] == [
        Send(REWRITER, Halved(value=SEVEN, cell=CELL, bits=1)),
        Route(cell_key(SEVEN, CellName(S_E, 1)), indexes(s(2, 7, at=3, sequence=1), part=1, bits=1)),
    ]
    assert told(effects) == here
    forgotten = ForgetQuery(query=there[0], at=S_E, value=SEVEN, part=0)
    passed = msgspec.structs.replace(forgotten, part=1)
    assert heavy.handle(received(forgotten, REWRITER), now=7) == [Route(cell_key(SEVEN, CellName(S_E, 1)), passed)]
    heavy.validate()


def test_parts_are_found_however_often_they_were_halved():
    names = [f"q{number}" for number in range(200)]
    parts = Parts()
    parts.learn(0, 2)
    parts.learn(1, 3)
    assert parts.bits == {0: 2, 1: 3, 2: 2, 3: 2, 5: 3}
    assert {parts.of(name) for name in names} == set(parts.bits)
    assert all(part_of(name, part, bits, bits) == part for name in names for part, bits in parts.bits.items())
    assert cut_off(1, 1, 3) == [3, 5]
