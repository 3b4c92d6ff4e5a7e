"""Where the parts of a query go on a network: what stays, what moves, and what cannot be had."""

from __future__ import annotations

import math

import msgspec

from protocols.catalogue.statistics import NumberStatistics, StreamStatistics
from protocols.execution.decision import (
    AGAIN_MS,
    SETTLED_MS,
    Basis,
    Choice,
    Decision,
    Placing,
    basis_of,
    decide,
    known_of,
    parts_of,
)
from protocols.execution.refusals import NoEngine
from protocols.ids import PeerId
from protocols.placement.delay import Infeasible
from protocols.sight import NetworkSeen
from queries.cost import StreamRates
from queries.query import parse
from queries.selectivity import ColumnStatistics
from queries.statistics import to_json
from tests.protocols.execution.parts import (
    JOIN,
    LINE,
    NARROW,
    NORTH,
    PROXY,
    SELECT,
    SOUTH,
    STREAMS,
    WINDOWS,
    WORKER,
    on_a_line,
    stream,
)

# Two sources at one peer, the third at another.
THREE = (
    "SELECT a.number FROM left a [RANGE 1 SECOND], left b [RANGE 1 SECOND], right c [RANGE 1 SECOND] "
    "WHERE a.part = b.part AND b.part = c.part"
)


def with_engines(*peers: PeerId) -> NetworkSeen:
    return msgspec.structs.replace(LINE, engines=peers)


def placing(placement: str = "auto", rate: float = 1000.0, **more: object) -> Placing:
    found = Placing(placement, **more)  # type: ignore[arg-type]
    found.streams = {"left": stream("left", (NORTH, rate)), "right": stream("right", (SOUTH, rate))}
    return found


def decided(
    how: Placing, text: str = JOIN, seen: NetworkSeen = LINE, engine: str = "auto", lost: tuple[PeerId, ...] = ()
) -> Choice:
    found = decide(parse(text, STREAMS).plan, how, seen, PROXY, engine, lost)
    assert isinstance(found, Decision)
    return found.choice


def test_a_join_of_two_busy_streams_far_away_goes_to_them():
    for placement in ("auto", "exact", "in-network", "edge+", "edge"):
        assert decided(placing(placement)).worker in (NORTH, SOUTH), placement
    assert decided(placing("baseline")).worker == PROXY


def test_auto_leaves_it_at_the_subscriber_where_little_flows_or_nothing_is_known():
    assert decided(placing("auto", rate=5.0)).worker == PROXY
    assert decided(placing("auto", rate=0.0)).worker == PROXY
    assert decided(placing("exact", rate=5.0)).worker != PROXY


def test_what_is_known_of_the_past_of_a_stream_counts_while_it_says_nothing_itself():
    busy = StreamRates(rate_per_s=1000.0, row_bytes=100.0, columns={("part",): ColumnStatistics(distinct=100_000.0)})
    past = to_json({"left": busy, "right": busy}).decode()
    assert decided(placing("auto", rate=0.0, statistics=past)).worker in (NORTH, SOUTH)
    assert decided(placing("auto", rate=5.0, statistics=past)).worker == PROXY


def test_quantiles_of_all_publishers_are_put_together_and_senseless_ones_left_out():
    def told(*quantiles: float, nulls: float = 0.0) -> StreamStatistics:
        numbers = (NumberStatistics(path=("part",), quantiles=quantiles, nulls=nulls),)
        return StreamStatistics(rate_per_s=10.0, row_bytes=9.0, fields=(), numbers=numbers)

    shown = stream("left", (NORTH, 10.0), (SOUTH, 10.0), (WORKER, 10.0))
    told_by = (told(0.0, 1.0, 2.0), told(10.0, 11.0, 12.0, nulls=0.5), told(7.0, 3.0))
    publishers = (
        msgspec.structs.replace(each, statistics=statistics)
        for each, statistics in zip(shown.publishers, told_by, strict=True)
    )
    known = known_of(msgspec.structs.replace(shown, publishers=tuple(publishers)))
    assert known is not None
    part = known.columns[("part",)]
    assert (part.quantiles, part.nulls) == ((0.0, 2.0, 12.0), 0.25)


def test_selections_run_where_their_stream_is_published_and_the_baseline_ships_everything():
    assert decided(placing("auto"), NARROW).chains == {"l": NORTH, "r": SOUTH}
    assert decided(placing("baseline"), NARROW).chains == {"l": PROXY, "r": PROXY}
    assert decided(placing("auto"), SELECT).chains == {"left": NORTH}


def test_publishers_that_sieve_leave_nothing_to_be_placed_but_what_has_state():
    """Unless the reader does not share, or takes its rows to Spark."""
    sieving = msgspec.structs.replace(LINE, sieving=(NORTH, SOUTH))
    assert decided(placing("auto"), SELECT, sieving).chains == {}
    assert decided(placing("auto", rate=0.0), WINDOWS, sieving).chains == {}
    assert decided(placing("auto"), NARROW, sieving).chains == {"l": NORTH, "r": SOUTH}, "a join runs on Spark"
    assert decided(placing("auto"), SELECT, sieving, "spark").chains == {"left": NORTH}
    assert decided(placing("auto"), SELECT, msgspec.structs.replace(LINE, sieving=(SOUTH,))).chains == {"left": NORTH}
    apart = placing("auto")
    apart.sharing = "off"
    assert decided(apart, SELECT, sieving).chains == {"left": NORTH}


def test_an_edge_from_a_publisher_that_sieves_carries_what_is_selected():
    plan = parse(SELECT, STREAMS).plan
    plain, sieved = (
        basis_of(plan, placing(), msgspec.structs.replace(LINE, sieving=each), PROXY, "auto", ())
        for each in ((), (NORTH, SOUTH))
    )
    assert isinstance(plain, Basis)
    assert isinstance(sieved, Basis)
    (narrow,) = [each.beta for each in plain.parts.tree.vertices if each.name.startswith("narrow")]
    (leaf,) = [each.beta for each in sieved.parts.tree.vertices if each.peer == NORTH]
    assert leaf == narrow < max(each.beta for each in plain.parts.tree.vertices)


def test_what_has_state_goes_only_where_there_is_an_engine():
    assert decided(placing("exact"), seen=with_engines(PROXY, WORKER)).worker == WORKER
    assert decided(placing("auto", rate=0.0), seen=with_engines(WORKER, NORTH, SOUTH)).worker == WORKER  # The nearest.
    nobody = decide(parse(JOIN, STREAMS).plan, placing(), with_engines(), PROXY, "auto", ())
    assert nobody == NoEngine(peers=4, here=False)


def test_windows_run_in_the_daemon_of_any_peer_that_can():
    """Not of a release whose daemons do not, nor where Spark is asked for."""
    sparkless = with_engines()
    assert decided(placing("auto", rate=0.0), WINDOWS, sparkless).worker == PROXY
    older = msgspec.structs.replace(sparkless, older=(PROXY, NORTH))
    assert decided(placing("auto", rate=0.0), WINDOWS, older).worker == WORKER
    plan = parse(WINDOWS, STREAMS).plan
    assert decide(plan, placing(), sparkless, PROXY, "spark", ()) == NoEngine(peers=4, here=False)


def test_what_is_forced_to_spark_runs_only_where_it_is():
    forced = decided(placing(), SELECT, with_engines(PROXY, WORKER), "spark")
    assert (forced.worker, forced.chains) == (PROXY, {})  # Else it would be narrowed where it is published.
    assert decided(placing(), SELECT, engine="spark").chains == {"left": NORTH}
    plan = parse(SELECT, STREAMS).plan
    assert decide(plan, placing(), with_engines(NORTH), PROXY, "spark", ()) == NoEngine(peers=4, here=True)
    assert isinstance(decide(plan, placing(), with_engines(), PROXY, "inline", ()), Decision)


def test_what_runs_stays_unless_much_is_saved():
    how = placing("exact")
    how.settle(Choice(SOUTH, {"l": NORTH, "r": SOUTH}), "", now=0)
    assert decided(how).worker == SOUTH
    how.streams["left"] = stream("left", (NORTH, 1200.0))  # A little more flows at the other end now.
    assert decided(how).worker == SOUTH
    how.streams["left"] = stream("left", (NORTH, 9000.0))
    assert decided(how).worker == NORTH
    how.settle(decided(how), "it is better placed elsewhere", now=5)
    assert [(each.at, each.before, each.after, each.why) for each in how.moves] == [
        (5, SOUTH, NORTH, "it is better placed elsewhere")
    ]


def test_a_host_that_was_lost_is_left():
    how = placing("auto")
    how.settle(Choice(WORKER, {"l": NORTH, "r": SOUTH}), "", now=0)
    assert decided(how, lost=(WORKER,)).worker == NORTH
    assert decided(how, lost=(NORTH,)).chains.keys() == {"r"}  # Nobody is left who publishes the other.


def test_a_bound_that_cannot_be_kept_is_said_and_one_that_can_is_kept():
    found = decide(parse(JOIN, STREAMS).plan, placing("exact", within_ms=149.0), LINE, PROXY, "auto", ())
    assert found == Infeasible(149.0, SOUTH, 150.0)
    seen = on_a_line(PROXY, NORTH, SOUTH)
    rows = [list(row) for row in seen.rows]
    rows[0][1] = rows[1][0] = rows[0][2] = rows[2][0] = 100.0  # Both as far away; 50 ms from one to the other.
    seen = msgspec.structs.replace(seen, rows=tuple(map(tuple, rows)))
    assert decided(placing("exact"), seen=seen).worker != PROXY
    assert decided(placing("exact", within_ms=120.0), seen=seen).worker == PROXY


def test_a_stream_of_several_publishers_flows_from_each_of_them():
    how = placing()
    how.streams["left"] = stream("left", (NORTH, 300.0), (WORKER, 100.0))
    parts = parts_of(parse(JOIN, STREAMS).plan, how.streams, PROXY, (PROXY,))
    leaves = [(each.name, each.peer, each.beta) for each in parts.tree.vertices if not each.children]
    assert leaves == [("l", NORTH, 30_000.0), ("l", WORKER, 10_000.0), ("r", SOUTH, 100_000.0)]


def test_the_text_of_a_query_may_say_how_it_is_placed():
    how = Placing()
    how.take_options(parse(f"{JOIN} WITH (placement = edge+, within = '120 ms')", STREAMS).options)
    assert (how.placement, how.within_ms) == ("edge+", 120.0)
    asked = Placing("exact", 50.0)
    asked.take_options((("placement", "edge"), ("within", "1 s")))
    assert (asked.placement, asked.within_ms) == ("exact", 50.0)


def test_a_query_is_weighed_again_now_and_then_once_it_has_settled():
    plan = parse(JOIN, STREAMS).plan
    how = Placing("exact")
    assert not how.is_due(plan, attempted_at=0, now=SETTLED_MS - 1)
    assert how.is_due(plan, attempted_at=0, now=SETTLED_MS)
    how.weighed_at = SETTLED_MS
    assert not how.is_due(plan, attempted_at=0, now=SETTLED_MS + AGAIN_MS - 1)
    assert not Placing("baseline").is_due(plan, attempted_at=0, now=math.inf)  # type: ignore[arg-type]
    assert not Placing("exact").is_due(parse(SELECT, STREAMS).plan, attempted_at=0, now=SETTLED_MS)


def test_what_the_worker_narrows_itself_is_no_other_place():
    assert Choice(WORKER, {}).is_as(Choice(WORKER, {"l": WORKER}))
    assert not Choice(WORKER, {}).is_as(Choice(WORKER, {"l": NORTH}))


def test_each_join_of_three_streams_goes_where_its_rows_are():
    for placement in ("auto", "exact", "in-network", "edge+", "edge"):
        found = decided(placing(placement), THREE)
        assert (found.worker, found.joins) == (SOUTH, {("a", "b"): NORTH}), placement
    assert decided(placing("baseline"), THREE).joins == {}


def test_auto_takes_joins_apart_only_where_that_saves_more_than_a_move_must():
    how = placing("auto")
    how.streams["right"] = stream("right", (SOUTH, 300.0))
    together = decided(how, THREE)
    assert (together.worker, together.joins) == (NORTH, {}), "what it would save is not worth an engine"
    how.placement = "exact"
    assert decided(how, THREE).joins == {("a", "b"): NORTH}
    how = placing("auto", rate=5.0)
    assert (decided(how, THREE).worker, decided(how, THREE).joins) == (PROXY, {})


def test_a_join_elsewhere_is_another_placement_and_a_move_tells_of_it():
    apart = Choice(SOUTH, {"a": NORTH, "c": SOUTH}, joins={("a", "b"): NORTH})
    assert not apart.is_as(Choice(SOUTH, {"a": NORTH, "c": SOUTH}))
    assert apart.is_as(Choice(SOUTH, {}, joins={("a", "b"): NORTH}))
    how = placing("exact")
    how.settle(Choice(SOUTH, {}, joins={("a", "b"): WORKER}), "", now=0)
    how.settle(apart, "it is better placed elsewhere", now=5)
    assert [(each.before, each.after) for each in how.moves] == [(WORKER, NORTH)]
    assert decided(how, THREE, lost=(NORTH,)).joins.get(("a", "b")) != NORTH


def test_a_choice_is_found_again_in_the_tree_it_was_made_for():
    how = placing("exact")
    parts = parts_of(parse(THREE, STREAMS).plan, how.streams, PROXY, (PROXY, NORTH, SOUTH))
    choice = decided(how, THREE)
    hosts = parts.hosts(choice)
    assert hosts is not None
    assert parts.choice(hosts, choice.why) == choice
    assert parts.hosts(Choice(WORKER, {})) is None, "it has no engine"
    names = [(each.name, host) for each, host in zip(parts.tree.vertices, hosts, strict=True) if each.children]
    assert [each for each in names if "narrow" not in each[0]] == [
        ("join a+b", NORTH),
        ("work", SOUTH),
        ("delivery", PROXY),
    ]
