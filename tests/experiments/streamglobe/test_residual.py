"""A residual over a shared stream gives what the query gives over its base streams; a widened stream serves both."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest

from experiments.streamglobe.residual import Match, Residual, Widening, match
from experiments.streamglobe.shapes import Pairs, Pieces, Shape, Sieve, pairs_of, pieces_of, sieve_of
from experiments.streamglobe.windows import edges, extent
from queries import aggregates
from queries.canonical import canonical
from queries.catalogue import Stream
from queries.expressions import EPOCH, MICROSECOND
from queries.plan import Operator
from queries.query import parse
from queries.reference import Tuple, evaluate, same_rows, value
from queries.schema import Schema
from tests.queries.wx_streams import PHOTON, PHOTONS, START
from tests.seeds import draw_seed

LEFT = Stream("left", Schema.parse("k int, x int, note string null"))
RIGHT = Stream("right", Schema.parse("k int, y int"))
STREAMS = {each.name: each for each in (PHOTONS, LEFT, RIGHT)}
RA, DEC = "coord/cel/ra", "coord/cel/dec"

Tuples = Mapping[str, Sequence[Tuple]]


def plan_of(text: str) -> Operator:
    return canonical(parse(text, STREAMS).plan)


def tuples(luck: random.Random, count: int = 60) -> Tuples:
    """Rows of few values, so that boxes, groups and keys meet; photons in the order of det_time."""

    def number(low: int, high: int) -> Decimal:
        return Decimal(luck.randint(low * 2, high * 2)) / 2

    made: dict[str, list[Tuple]] = {"photons": [], "left": [], "right": []}
    seconds, det_time = 0.0, Decimal(-20)
    for place in range(count):
        seconds += luck.choice((0, 0.5, 1, 3))
        det_time += luck.choice((0, 1, 2, 7))
        cel, det = (number(100, 110), number(-50, -40)), (luck.randint(0, 3), luck.randint(0, 3))
        rows = {
            "photons": ((cel, det), luck.randint(0, 4), number(0, 3), det_time),
            "left": (luck.randint(0, 3), luck.randint(0, 9), luck.choice((None, "a"))),
            "right": (luck.randint(0, 3), luck.randint(0, 9)),
        }
        for name, row in rows.items():
            made[name].append(Tuple(START + timedelta(seconds=seconds), row, f"{name} {place}"))
    return made


def shared(shape: Shape, base: Tuples) -> list[Tuple]:
    """The rows of a shared stream."""
    if isinstance(shape, Pieces) and shape.are_slices:
        return slices(shape, base)
    found = evaluate(shape.plan, base)
    return [Tuple(each.time, each.row, f"s {number}") for number, each in enumerate(found)]


def slices(shape: Pieces, base: Tuples) -> list[Tuple]:
    """Straight from the definition: rows grouped by the slice that they lie in."""
    cut = edges(shape.windows)
    assert cut is not None
    period, offsets = cut
    columns, by = shape.source.columns, shape.windows[0].by
    groups: dict[object, list[tuple[object, ...]]] = {}
    for each in base[shape.source.stream]:
        row = (*each.row, each.time)
        if shape.predicate is not None and value(shape.predicate, row, columns) is not True:
            continue
        place = Fraction(
            row[[column.path for column in columns].index(by)] if by else (each.time - EPOCH) // MICROSECOND
        )
        first = (place // period - 1) * period
        ends = [first + number * period + offset for number in range(3) for offset in offsets]
        start, end = max(each for each in ends if each <= place), min(each for each in ends if each > place)
        keys = tuple(value(key, row, columns) for key in shape.keys)
        groups.setdefault((start, end, keys), []).append(row)
    made = []
    for (start, end, keys), rows in sorted(groups.items(), key=lambda each: (each[0][0], repr(each[0][2]))):  # type: ignore[index]
        parts = tuple(
            aggregates.value_of(
                part, [True if part.argument is None else value(part.argument, r, columns) for r in rows]
            )
            for part in shape.parts
        )
        bounds = tuple(Decimal(str(float(each))) if by else EPOCH + int(each) * MICROSECOND for each in (start, end))
        made.append(Tuple(rows[-1][-1], (*keys, *parts, *bounds), f"s {len(made)}"))
    return made


def check(shape: Shape, plan: Operator, base: Tuples, alias: str = "s0") -> Match:
    """Whatever is claimed holds: the residual gives the query's results, and so does one over the widened stream."""
    found = match(shape, "shared", plan, alias)
    if isinstance(found, Residual):
        wanted = [each.row for each in evaluate(plan, base)]
        got = [each.row for each in evaluate(found.plan, {**base, "shared": shared(shape, base)})]
        assert same_rows(got, wanted), f"{found.plan}"
    elif isinstance(found, Widening):
        again = match(found.shape, "shared", plan, alias)
        assert isinstance(again, Residual), "widened for this query"
        check(found.shape, plan, base, alias)
    return found


def selection(luck: random.Random) -> list[str]:
    low, high = luck.choice((100, 102, 104)), luck.choice((106, 108, 110))
    parts = [
        (RA, ">=", low),
        (RA, "<=", high),
        (DEC, "<=", luck.choice((-45, -42))),
        ("en", ">=", luck.choice((0.5, 1.5))),
    ]
    return [f"$p/{path} {sign} {number}" for path, sign, number in parts if luck.random() < 0.5]


def sql_of(conditions: list[str]) -> str:
    return " AND ".join(each.replace("$p/", "").replace("/", ".") for each in conditions)


def rows_query(luck: random.Random) -> str:
    conditions, elements = (
        selection(luck),
        luck.sample([RA, DEC, "phc", "en", "det_time", "coord/det"], luck.randint(1, 4)),
    )
    if luck.random() < 0.5:
        where = f" where {' and '.join(conditions)}" if conditions else ""
        returned = " ".join(f"{{ $p/{each} }}" for each in elements)
        return f"<r>{{ for $p in {PHOTON}{where} return <q> {returned} </q> }}</r>"
    columns = ", ".join(f"{each.replace('/', '.')} AS c{number}" for number, each in enumerate(elements))
    where = f" WHERE {sql_of(conditions)}" if conditions else ""
    return f"SELECT {columns} FROM photons{where}"


def window_query(luck: random.Random, form: random.Random) -> str:
    """Windows of both languages; those of one form differ in their windows alone."""
    size, slide = luck.choice(
        ((10, 10), (20, 10), (20, 20), (60, 40), (60, 20), (40, 20), (120, 20), (15, 5), (30, 12))
    )
    conditions = form.choice(([], ["$p/en >= 0.5"]))
    function, element = form.choice(("avg", "sum", "count", "min", "max")), form.choice(("en", "phc"))
    if form.random() < 0.5:
        inside = "[" + " and ".join(each.removeprefix("$p/") for each in conditions) + "]" if conditions else ""
        where = luck.choice(("", " where $a >= 1.3"))
        return (
            f"<r>{{ for $w in {PHOTON}{inside} |det_time diff {size} step {slide}|"
            f" let $a := {function}($w/{element}){where} return <q> {{ $a }} </q> }}</r>"
        )
    group = form.choice(("", " GROUP BY phc", " GROUP BY phc, coord.det.dx"))
    where = f" WHERE {sql_of(conditions)}" if conditions else ""
    window = f"[RANGE {size} SECONDS SLIDE {slide} SECONDS]"
    return f"SELECT {function}({element}) AS a, window_end() AS e, count(*) AS n FROM photons {window}{where}{group}"


def join_query(luck: random.Random) -> str:
    one, other = (
        luck.choice(("", " [RANGE 2 SECONDS]", " [RANGE 5 SECONDS]", " [RANGE 20 SECONDS]")) for _ in range(2)
    )
    conditions = ["l.k = r.k"]
    conditions += [f"l.x >= {luck.choice((2, 5))}"] if luck.random() < 0.5 else []
    conditions += [f"r.y <= {luck.choice((4, 8))}"] if luck.random() < 0.5 else []
    conditions += [luck.choice(("l.x <= r.y", "l.x < r.y + 3"))] if luck.random() < 0.3 else []
    columns = luck.choice(("l.x, r.y", "l.note, r.y AS y", "l.x + r.y AS s", "l.k"))
    return f"SELECT {columns} FROM left{one} AS l, right{other} AS r WHERE {' AND '.join(conditions)}"


def drawn(kind: str, luck: random.Random) -> tuple[Shape, Operator, Operator]:
    """What one query would share, its plan, and the plan of another."""
    if kind == "windows":
        forms = [luck.randrange(1000)] * 2 if luck.random() < 0.8 else [luck.randrange(1000) for _ in range(2)]
        own, other = (plan_of(window_query(luck, random.Random(form))) for form in forms)
    else:
        own, other = (plan_of((rows_query if kind == "rows" else join_query)(luck)) for _ in range(2))
    match kind:
        case "rows":
            shape: Shape | None = sieve_of(own, "s0")
            if isinstance(shape, Sieve) and luck.random() < 0.7:  # Most have all elements, so that selections decide.
                shape = Sieve(shape.source, shape.selections, tuple((each.name,) for each in PHOTONS.schema.fields))
        case "windows":
            shape = pieces_of(own)
        case _:
            shape = pairs_of(own)
            if shape is not None and luck.random() < 0.7:
                everything = (
                    Sieve(each.source, (), tuple((f.name,) for f in each.source.schema.fields)) for each in shape.inputs
                )
                shape = msgspec.structs.replace(shape, inputs=tuple(everything))
    assert shape is not None
    return shape, own, other


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "times"), [("rows", 60), ("windows", 60), ("joins", 40)])
def test_whatever_is_said_to_be_left_of_a_query_gives_its_results(kind: str, times: int):
    """MATCHPROPERTIES and what follows from it, on random pairs of queries of both languages."""
    luck = random.Random(draw_seed())
    found: dict[str, int] = {}
    for _ in range(times):
        base = tuples(luck)
        shape, own, other = drawn(kind, luck)
        assert isinstance(check(shape, own, base), Residual), "a query can read what it would share"
        name = type(check(shape, other, base)).__name__
        found[name] = found.get(name, 0) + 1
    print(found)
    assert found["Residual"] >= 2
    assert found["Widening"] >= 2


def test_a_source_of_a_join_and_a_window_read_a_sieve_as_well():
    luck = random.Random(draw_seed())
    base = tuples(luck)
    left = Sieve(LEFT.source("s0"), (), (("k",), ("x",)))
    for text, alias in (
        ("SELECT l.x, r.y FROM left [RANGE 5 SECONDS] AS l, right AS r WHERE l.k = r.k AND l.x > 3", "s0"),
        ("SELECT count(*) AS n, k FROM left [ROWS 5 SLIDE 3] WHERE x > 3 GROUP BY k", "s0"),
        ("SELECT sum(x) AS n FROM left [RANGE 20 SECONDS SLIDE 4 SECONDS]", "s0"),
    ):
        assert isinstance(check(left, plan_of(text), base, alias), Residual), text


def test_rows_are_counted_before_they_are_selected_so_a_filtered_stream_does_not_serve():
    plan = plan_of("SELECT count(*) AS n FROM left [ROWS 5] WHERE x > 3")
    narrow = sieve_of(plan_of("SELECT k, x FROM left WHERE x > 2"), "s0")
    assert isinstance(match(narrow, "shared", plan), Widening)


def test_the_windows_of_query_4_are_made_of_those_of_query_3():
    """ "sharing of result data streams of window-based aggregation operators ... using Queries 3 and 4" (figure 5)."""
    luck = random.Random(draw_seed())
    q3, q4 = (
        plan_of(
            f"<r>{{ for $w in {PHOTON} |det_time diff {size} step {slide}|"
            " let $a := avg($w/en) return <a> { $a } </a> }</r>"
        )
        for size, slide in ((20, 10), (60, 40))
    )
    shape = pieces_of(q3)
    assert shape is not None
    assert isinstance(check(shape, q4, tuples(luck)), Residual)
    backwards = pieces_of(q4)
    assert backwards is not None
    wide = match(backwards, "shared", q3)
    assert isinstance(wide, Widening), "slices serve any window"
    assert isinstance(wide.shape, Pieces)
    assert [extent(each)[0] for each in wide.shape.windows] == [60, 20]


def test_a_join_with_shorter_windows_is_part_of_one_with_longer_ones():
    luck = random.Random(draw_seed())
    text = "SELECT l.x, r.y FROM left [RANGE {} SECONDS] AS l, right [RANGE {} SECONDS] AS r WHERE l.k = r.k"
    wide = pairs_of(plan_of(text.format(20, 5)))
    assert wide is not None
    assert isinstance(check(wide, plan_of(text.format(2, 5)), tuples(luck)), Residual)
    hull = match(wide, "shared", plan_of(text.format(2, 60)))
    assert isinstance(hull, Widening)
    assert isinstance(hull.shape, Pairs)
    assert [each and each.size for each in hull.shape.windows] == [20_000_000, 60_000_000]
    assert match(wide, "shared", plan_of(text.format(2, 60).replace("l.k = r.k", "l.x = r.y"))) is None


def test_functions_are_shared_by_equal_parameters():
    shape = pieces_of(plan_of("SELECT stddev(en) AS d FROM photons [RANGE 20 SECONDS]"))
    assert shape is not None
    same, other = (
        "SELECT stddev({}) AS other FROM photons [RANGE {} SECONDS]".format(*each) for each in (("en", 20), ("en", 40))
    )
    assert isinstance(check(shape, plan_of(same), tuples(random.Random(draw_seed()))), Residual)
    assert match(shape, "shared", plan_of(other)) is None


def test_streams_that_go_by_an_event_time_are_shared_as_well_while_nothing_is_late():
    """Rows out of order, but within the lateness of their stream."""
    luck = random.Random(draw_seed())
    known = {
        name: Stream(name, Schema.parse("k int, x int, at timestamp"), event_time="at", lateness_ms=5000)
        for name in ("one", "two")
    }
    base = {
        name: [
            Tuple(
                START + timedelta(seconds=place),
                (luck.randint(0, 3), luck.randint(0, 9), START + timedelta(seconds=place - luck.choice((0, 0, 1, 4)))),
                f"{name} {place}",
            )
            for place in range(80)
        ]
        for name in known
    }

    def of(text: str) -> Operator:
        return canonical(parse(text, known).plan)

    def windows(size: int) -> Operator:
        return of(f"SELECT k, sum(x) AS s FROM one [RANGE {size} SECONDS SLIDE {size // 2} SECONDS] GROUP BY k")

    def join(window: str, more: str) -> Operator:
        return of(f"SELECT a.x, a.at AS first, b.at FROM one {window} AS a, two AS b WHERE a.k = b.k{more}")

    for low, size in ((3, 12), (6, 36)):
        rows = of(f"SELECT x, at FROM one WHERE x >= {low}")
        pairs = join(f"[RANGE {size} SECONDS]", f" AND a.x >= {low}")
        whole = Sieve(known["one"].source("s0"), (), (("at",), ("k",), ("x",)))
        short, long = pieces_of(windows(4)), pairs_of(join("", ""))
        assert short is not None
        assert long is not None
        wanted: list[tuple[Shape, Operator]] = [(whole, each) for each in (rows, windows(size), pairs)]
        for shape, plan in [*wanted, (short, windows(size)), (long, pairs)]:
            assert isinstance(check(shape, plan, base), Residual), f"{plan}"
