"""A query explained: what it gives, what kind it is, and its plan as a tree, as JSON or as a graph for dot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from queries.catalogue import Streams
from queries.cost import Estimate, Rates
from queries.expressions import Column
from queries.plan import Join, Nest, Operator, Project, Restructure, Select, Source, WindowAggregate, sources
from queries.query import ParsedQuery, QueryClass

_CLASSES: dict[QueryClass, str] = {
    "select": "one stream, nothing to remember",
    "T1": "a join of two streams by one column of each; the DHT can index it",
    "T2": "a join of two streams on expressions; the DHT can index it by value",
    "theta": "a join of two streams without an equality between them",
    "windowed": "a join of two streams within windows",
    "multi-way": "a join of more than two streams",
    "aggregate": "groups and aggregates of windows",
    "nested": "results that hold lists of what other streams have brought",
}


Node = TypeVar("Node")
Notes = Callable[[Operator], Sequence[str]]
"""What stands beside an operator of the tree, in columns."""


def as_text(query: ParsedQuery, streams: Streams | None = None, notes: Notes | None = None) -> str:
    """For people; with `streams` it also tells how long unwindowed rows are kept.

    >>> from queries.catalogue import Stream
    >>> from queries.schema import Schema
    >>> from queries.sql import plan
    >>> known = {name: Stream(name, Schema.parse("a int, b string")) for name in ("R", "S")}
    >>> print(as_text(plan("SELECT R.a FROM R, S WHERE R.b = S.b", known)))
    class    T1: a join of two streams by one column of each; the DHT can index it
    columns  a int
    Project R.a
    └── Join R.b = S.b
        ├── Source R
        └── Source S
    """
    facts = [
        ("class", f"{query.query_class}: {_CLASSES[query.query_class]}"),
        ("columns", ", ".join(_column(each) for each in _visible(query.plan))),
    ]
    if query.options:
        facts.append(("options", ", ".join(f"{key} = {value}" for key, value in query.options)))
    kept = _kept(query.plan, streams or {})
    if kept:
        facts.append(("kept", ", ".join(f"{stream} for {_duration(ms)}" for stream, ms in kept.items())))
    lines = [f"{name:<9}{value}" for name, value in facts]
    return "\n".join([*lines, *tree(query.plan, notes)])


def as_json(query: ParsedQuery, streams: Streams | None = None, rates: Rates | None = None) -> dict[str, Any]:
    """For programs: the same facts, with each operator's inputs and what flows out of it nested inside."""
    return {
        "language": query.language,
        "class": query.query_class,
        "columns": [_column_json(each) for each in _visible(query.plan)],
        "options": dict(query.options),
        "kept_ms": _kept(query.plan, streams or {}),
        "plan": operator_json(query.plan, rates),
    }


def as_dot(query: ParsedQuery) -> str:
    """For Graphviz: tuples flow from the sources at the bottom to the result at the top."""
    lines = ["digraph plan {", '  rankdir="BT";', '  node [shape="box", fontname="monospace"];']
    edges: list[str] = []

    def add(operator: Operator) -> str:
        name = f"o{len(lines) - 2}"
        lines.append(f"  {name} [label={_quoted(str(operator))}];")
        edges.extend(f"  {add(each)} -> {name};" for each in operator.inputs)
        return name

    add(query.plan)
    return "\n".join([*lines, *edges, "}"])


def _visible(plan: Operator) -> list[Column]:
    return [column for column in plan.columns if not column.path[-1].startswith("$")]


def _column(column: Column) -> str:
    return f"{column.path[-1]} {column.type}{' null' if column.nullable else ''}"


def _column_json(column: Column) -> dict[str, Any]:
    return {"name": column.path[-1], "type": column.type, "nullable": column.nullable}


def _kept(plan: Operator, streams: Streams) -> dict[str, int]:
    """Streams whose tuples a join or a list keeps for their whole retention, because no window bounds them."""
    inputs = sources(plan)
    if not _has_join(plan):
        return {}
    return {
        source.stream: streams[source.stream].retention_ms
        for source in inputs
        if source.window is None and source.stream in streams
    }


def _has_join(plan: Operator) -> bool:
    return isinstance(plan, Join | Nest) or any(_has_join(each) for each in plan.inputs)


def _duration(ms: int) -> str:
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms % size == 0 and ms >= size:
            return f"{ms // size} {unit}"
    return f"{ms} ms"


def tree(plan: Operator, notes: Notes | None = None) -> list[str]:
    """A plan as lines, its results at the top, with notes in columns beside it."""
    lines = list(branches(plan, lambda operator: operator.inputs))
    return aligned([(f"{prefix}{each}", *(notes(each) if notes is not None else ())) for prefix, each in lines])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, with aligned cells."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def branches(
    node: Node, inputs: Callable[[Node], Sequence[Node]], first: str = "", rest: str = ""
) -> Iterator[tuple[str, Node]]:
    """The nodes below a node, each with the tree branches that lead to it."""
    yield first, node
    below = inputs(node)
    for number, each in enumerate(below, start=1):
        last = number == len(below)
        yield from branches(each, inputs, f"{rest}{'└── ' if last else '├── '}", f"{rest}{'    ' if last else '│   '}")


def flow_notes(rates: Rates) -> Notes:
    """What flows out of each operator."""
    return lambda operator: flow_cells(rates.estimate(operator))


def flow_cells(flow: Estimate) -> tuple[str, ...]:
    """Rows a second, bytes a row, bytes a second."""
    return f"{_short(flow.rate_per_s)} rows/s", f"{_short(flow.row_bytes)} bytes", f"{_short(flow.beta)} bytes/s"


def _short(number: float) -> str:
    """
    >>> _short(0), _short(0.012345), _short(12.345), _short(45678)
    ('0', '0.0123', '12.3', '45,678')
    """
    return f"{number:,.0f}" if number >= 100 or number == 0 else f"{number:.3g}"


def operator_json(operator: Operator, rates: Rates | None = None) -> dict[str, Any]:
    """An operator with its inputs inside it."""
    said: dict[str, Any] = {"operator": type(operator).__name__}
    match operator:
        case Source():
            said |= {"stream": operator.stream, "alias": operator.alias, "window": _window_json(operator)}
            said |= {"event_time": operator.event_time, "lateness_ms": operator.lateness_ms}
        case Select() | Join() | Nest():
            said["predicate"] = None if operator.predicate is None else str(operator.predicate)
        case Project():
            said["outputs"] = [{"name": each.name, "expression": str(each.expression)} for each in operator.outputs]
        case WindowAggregate():
            said["window"] = _window_json(operator)
            said["keys"] = [{"name": key.name, "expression": str(key.expression)} for key in operator.keys]
            said["aggregates"] = [str(each) for each in operator.aggregates]
        case Restructure():
            said["envelope"] = list(operator.envelope)
            said["content"] = msgspec.to_builtins(operator.content)
    said["columns"] = [{"input": each.input, **_column_json(each)} for each in operator.columns]
    if rates is not None:
        flow = rates.estimate(operator)
        said["flow"] = {"rate_per_s": flow.rate_per_s, "row_bytes": flow.row_bytes, "bytes_per_s": flow.beta}
    said["inputs"] = [operator_json(each, rates) for each in operator.inputs]
    return said


def _window_json(operator: Source | WindowAggregate) -> dict[str, Any] | None:
    window = operator.window
    if window is None:
        return None
    # A decimal is written as text, so that no reader turns it into a float.
    sizes = {
        name: size if size is None or isinstance(size, int) else str(size)
        for name, size in (("size", window.size), ("slide", window.slide))
    }
    return {"kind": window.kind, **sizes, "by": list(window.by)}


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
