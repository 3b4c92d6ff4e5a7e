"""Random queries of our SQL, each written twice: for us, and for DuckDB, which knows no windows over streams.

DuckDB gets plain tables with a column `t`, the TIME of a row in microseconds. For a join each row has two instants
beside it, when it enters its window and when it leaves; of the instants at one time the look of a sliding window (2 t)
comes before a tuple's arrival (2 t + 1). An aggregate's windows are a lateral join with their numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import NamedTuple

from tests.queries.random_sql import STREAMS, Expressions, Text, both, plain

SECOND = 1_000_000
NEVER = 4_000_000_000_000_000_000
OUTPUTS = ("int", "decimal", "float", "string", "bool", "timestamp")


class Pair(NamedTuple):
    """A query in both languages; DuckDB's has one column more, when a result is due in microseconds."""

    ours: str
    duck: str
    shape: str


@dataclass(frozen=True, slots=True)
class Window:
    """A window as both languages say it: seconds or rows."""

    kind: str = ""
    size: int = 0
    slide: int = 0

    @property
    def ours(self) -> str:
        match self.kind:
            case "":
                return ""
            case "rows":
                return f" [ROWS {self.size}{f' SLIDE {self.slide}' if self.slide else ''}]"
        return f" [RANGE {self.size} SECONDS{f' SLIDE {self.slide} SECONDS' if self.slide else ''}]"

    def stretch(self) -> str:
        """When a row enters and leaves, as columns."""
        size, slide = self.size * SECOND, self.slide * SECOND
        enter, leave = "2 * t + 1", f"{NEVER}"
        if self.kind == "rows":
            leave = f"coalesce(lead(2 * t + 1, {self.size}) OVER (ORDER BY t), {NEVER})"
        elif self.slide:
            enter, leave = f"2 * (t // {slide} + 1) * {slide}", f"2 * ((t + {size}) // {slide} + 1) * {slide}"
        elif self.kind:
            leave = f"2 * (t + {size}) + 2"
        return f"{enter} AS enter_, {leave} AS leave_"

    def numbers(self, time: str, alias: str) -> tuple[str, str, str]:
        """Of the windows an aggregate's row is in: first number, last number, and the condition for a complete one."""
        if self.kind == "rows":
            slide = self.slide or self.size
            first = f"greatest(0, ({alias}.rank_ - {self.size} + {slide}) // {slide})"
            return first, f"{alias}.rank_ // {slide}", f"w.n * {slide} + {self.size} <= {alias}.count_"
        slide = (self.slide or self.size) * SECOND
        return f"{time} // {slide} + 1", f"({time} + {self.size * SECOND}) // {slide}", "TRUE"


class Queries:
    """Makes queries from one source of randomness."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def query(self) -> Pair:
        shape = self._random.choice(
            ("select", "join", "window join", "aggregate", "aggregate", "distinct", "union", "join aggregate")
        )
        match shape:
            case "select":
                made = self._select([self._source("s")], [Window()], self._kinds())
            case "join" | "window join":
                count = self._random.choice((2, 2, 2, 3, 4))
                windows = [self._join_window() if shape == "window join" else Window() for _ in range(count)]
                made = self._select([self._source(f"s{n}") for n in range(count)], windows, self._kinds())
            case "union":
                kinds = self._kinds(1)
                branches = []
                for number in range(self._random.choice((2, 2, 3))):
                    sources = [self._source(f"b{number}s{n}") for n in range(self._random.choice((1, 1, 2)))]
                    branches.append(self._select(sources, [Window()] * len(sources), kinds))
                made = Text(*(" UNION ALL ".join(texts) for texts in zip(*branches, strict=True)))
            case "distinct":
                made = self._distinct()
            case _:
                made = self._aggregate(2 if shape == "join aggregate" else 1)
        return Pair(made.ours, made.duck, shape)

    def _kinds(self, fewest: int = 0) -> list[str]:
        """The types of what is selected; none stands for everything."""
        return [self._random.choice(OUTPUTS) for _ in range(self._random.randint(fewest, 4))]

    def _source(self, alias: str) -> tuple[str, str]:
        return alias, self._random.choice(list(STREAMS))

    def _join_window(self) -> Window:
        kind = self._random.choice(("", "time", "time", "slide", "rows"))
        match kind:
            case "time":
                return Window("time", self._random.choice((1, 5, 20, 60)))
            case "slide":
                return Window("time", self._random.choice((5, 10, 30)), self._random.choice((5, 10, 20)))
            case "rows":
                return Window("rows", self._random.choice((1, 2, 5)))
        return Window()

    def _expressions(self, sources: list[tuple[str, str]], now: bool = False) -> Expressions:
        return Expressions(self._random, [(alias, STREAMS[name]) for alias, name in sources], now)

    # Parts of a query.

    def _from(self, sources: list[tuple[str, str]], windows: list[Window]) -> tuple[Text, list[Text]]:
        """The sources, with commas or JOIN … ON between them, and what ON says."""
        duck, joined = [], []
        ours = ""
        by_join = self._random.random() < 0.3
        for number, ((alias, name), window) in enumerate(zip(sources, windows, strict=True)):
            placed = self._random.choice((f"{name}{window.ours} AS {alias}", f"{name} {alias}{window.ours}"))
            duck.append(f"(SELECT *, {window.stretch()} FROM {name}) AS {alias}")
            if not number:
                ours = placed
            elif by_join:
                joined.append(plain(f"{sources[number - 1][0]}.k = {alias}.k"))
                ours += f" {self._random.choice(('', 'INNER '))}JOIN {placed} ON {joined[-1].ours}"
            else:
                ours += self._random.choice((", ", " CROSS JOIN ")) + placed
        return Text(ours, ", ".join(duck)), joined

    def _where(self, sources: list[tuple[str, str]]) -> list[Text]:
        """Equalities that chain the sources, mostly, and conditions of any kind."""
        conditions = []
        for (one, _), (other, _) in pairwise(sources):
            condition = self._random.choice((f"{one}.k = {other}.k", f"{one}.k * 2 = {other}.k + 3", ""))
            if condition or self._random.random() < 0.8:
                conditions.append(plain(condition or f"{one}.k = {other}.k"))
        about = [[source] for source in sources if self._random.random() < 0.4]
        if self._random.random() < 0.5:
            about.append(sources)
        return conditions + [self._expressions(some, now=len(sources) == 1).predicate() for some in about]

    def _together(self, aliases: list[str]) -> list[str]:
        """Rows are in their windows at one moment if those of each two overlap, and no window is empty."""
        return [f"{one}.enter_ < {other}.leave_" for one in aliases for other in aliases]

    def _select(self, sources: list[tuple[str, str]], windows: list[Window], kinds: list[str]) -> Text:
        aliases = [alias for alias, _ in sources]
        (tables, joined), conditions = self._from(sources, windows), self._where(sources)
        outputs = self._outputs(sources, kinds)
        due = f"greatest({', '.join(f'{alias}.enter_' for alias in aliases)}) // 2"
        ours = f"SELECT {outputs.ours} FROM {tables.ours}{_where(conditions)}"
        together = [*joined, *map(plain, self._together(aliases))]
        return Text(
            ours, f"SELECT {outputs.duck}, {due} FROM {tables.duck}{_where([*conditions, *together], duck=True)}"
        )

    def _outputs(self, sources: list[tuple[str, str]], kinds: list[str]) -> Text:
        """What is selected: expressions of these types, or everything if there are none."""
        if not kinds:
            named = (f"{alias}.{field.name}" for alias, name in sources for field in STREAMS[name].schema.fields)
            return Text("*", ", ".join(named))
        expressions = self._expressions(sources, now=len(sources) == 1)
        outputs = [expressions.of(kind) for kind in kinds]
        if "float" in kinds and self._random.random() < 0.3:  # Only shown: there DuckDB has a float, and we a decimal.
            quotient = both("{} / {}", expressions.leaf("decimal"), expressions.leaf("decimal"))
            outputs[kinds.index("float")] = quotient
        return both(", ".join(f"{{}} AS c{number}" for number in range(len(outputs))), *outputs)

    def _aggregate_window(self, sources: list[tuple[str, str]]) -> tuple[Window, str, bool]:
        """A window, how GROUP BY says it, and whether it is said there and not behind the stream."""
        size, slide = self._random.choice(((5, 0), (10, 0), (30, 0), (5, 5), (10, 5), (10, 4), (30, 10), (30, 20)))
        pick = self._random.random()
        if len(sources) == 1 and pick < 0.25:
            return Window("rows", self._random.choice((1, 3, 5)), self._random.choice((0, 1, 2, 4))), "", False
        if len(sources) == 1 and pick < 0.5:
            return Window("time", size, slide), "", False
        if slide:
            return Window("time", size, slide), f"HOP(INTERVAL '{size}' SECOND, INTERVAL '{slide}' SECOND)", True
        return Window("time", size), f"TUMBLE(INTERVAL '{size}' SECOND)", True

    def _aggregates(self, expressions: Expressions) -> list[Text]:
        made = []
        for _ in range(self._random.randint(1, 3)):
            kind = self._random.choice(("int", "decimal", "float", "string", "timestamp", "*"))
            of_numbers = ("sum", "avg", "stddev") if kind in ("int", "decimal", "float") else ()
            function = self._random.choice(("count", "min", "max", *of_numbers))
            if kind == "*":
                made.append(plain("count(*)"))
            elif self._random.random() < 0.25:
                made.append(both(function + "(DISTINCT {})", expressions.leaf(kind)))
            else:
                made.append(both(function + "({})", expressions.of(kind, 1)))
        return made

    def _aggregate(self, count: int) -> Text:
        sources = [self._source(f"s{n}") for n in range(count)]
        window, group, said_there = self._aggregate_window(sources)
        expressions = self._expressions(sources)
        keys = [self._key(expressions) for _ in range(self._random.choice((0, 1, 1, 2)))]
        aggregates = self._aggregates(expressions)
        having = self._having(expressions) if self._random.random() < 0.4 else None
        bounds = self._bounds(window) if self._random.random() < 0.3 else []
        outputs = [*keys, *aggregates, *bounds]
        groups = [*(key.ours for key in keys), *([group] if said_there else [])]
        ours_group = f" GROUP BY {', '.join(groups)}" if groups else ""
        ours_having = f" HAVING {having.ours}" if having else ""
        joined = [self._join_window_of_time() if count > 1 else Window() for _ in sources]
        body = self._windowed(sources, joined, window, said_there, keys)
        ours = f"SELECT {', '.join(each.ours for each in outputs)} FROM {body.ours}{ours_group}{ours_having}"
        duck_having = f" HAVING {having.duck}" if having else ""
        due = f"w.n * {(window.slide or window.size) * SECOND}" if window.kind == "time" else "max(s0.t)"
        duck = f"SELECT {', '.join(each.duck for each in outputs)}, {due} FROM {body.duck}{duck_having}"
        return Text(ours, duck)

    def _bounds(self, window: Window) -> list[Text]:
        slide = window.slide or window.size
        if window.kind == "rows":
            start, end = f"w.n * {slide}", f"w.n * {slide} + {window.size}"
        else:
            end = f"make_timestamp(w.n * {slide * SECOND})"
            start = f"make_timestamp(w.n * {slide * SECOND} - {window.size * SECOND})"
        return [Text("window_start()", start), Text("window_end()", end)]

    def _distinct(self) -> Text:
        sources = [self._source("s0")]
        window, _, _ = self._aggregate_window(sources)
        expressions = self._expressions(sources)
        outputs = [self._key(expressions) for _ in range(self._random.randint(1, 2))]
        body = self._windowed(sources, [Window()], window, False, outputs)
        due = f"w.n * {(window.slide or window.size) * SECOND}" if window.kind == "time" else "max(s0.t)"
        ours = f"SELECT DISTINCT {', '.join(each.ours for each in outputs)} FROM {body.ours}"
        return Text(ours, f"SELECT {', '.join(each.duck for each in outputs)}, {due} FROM {body.duck}")

    def _windowed(
        self, sources: list[tuple[str, str]], joined: list[Window], window: Window, said_there: bool, keys: list[Text]
    ) -> Text:
        """FROM and WHERE of an aggregate, for DuckDB with the numbers of the windows and GROUP BY."""
        aliases = [alias for alias, _ in sources]
        conditions = self._where(sources)
        behind = joined if said_there else [window]
        ours, duck = [], []
        for (alias, name), seen, stretched in zip(sources, behind, joined, strict=True):
            ours.append(f"{name}{seen.ours if not said_there or len(sources) > 1 else ''} AS {alias}")
            rank = "row_number() OVER (ORDER BY t) - 1 AS rank_, count(*) OVER () AS count_"
            duck.append(f"(SELECT *, {stretched.stretch()}, {rank} FROM {name}) AS {alias}")
        time = f"greatest({', '.join(f'{alias}.enter_' for alias in aliases)}) // 2"
        first, last, complete = window.numbers(f"({time})", aliases[0])
        duck.append(f"LATERAL (SELECT unnest(range({first}, {last} + 1)) AS n) AS w")
        duck_where = _where([*conditions, *map(plain, self._together(aliases)), plain(complete)], duck=True)
        group = f" GROUP BY {', '.join([*(key.duck for key in keys), 'w.n'])}"
        return Text(", ".join(ours) + _where(conditions), ", ".join(duck) + duck_where + group)

    def _join_window_of_time(self) -> Window:
        while (window := self._join_window()).kind == "rows":
            pass
        return window

    def _key(self, expressions: Expressions) -> Text:
        """What to group by names a column: a constant there would mean the place of one to DuckDB."""
        kind = self._random.choice(("int", "string", "decimal"))
        while not re.search(r"\bs\d\.", (made := expressions.of(kind, 1)).ours):
            pass
        return made

    def _having(self, expressions: Expressions) -> Text:
        number = self._random.randint(0, 3)
        return self._random.choice(
            (
                plain(f"count(*) > {number}"),
                both(f"sum({{}}) >= {number}", expressions.leaf("int")),
                both(f"max({{}}) > {number} AND count(*) < 9", expressions.leaf("decimal")),
                both(f"NOT avg({{}}) < {number}", expressions.leaf("float")),
                both("min({}) IS NOT NULL OR count(*) = 1", expressions.leaf("string")),
            )
        )


def _where(conditions: list[Text], duck: bool = False) -> str:
    texts = [each.duck if duck else each.ours for each in conditions]
    return f" WHERE {' AND '.join(f'({text})' for text in texts)}" if texts else ""
