"""A query explained: what it gives, what kind it is, and its plan as a tree, as JSON or as a graph for dot."""

from __future__ import annotations

from typing import Any

import msgspec

from queries.catalogue import Streams
from queries.expressions import Column
from queries.plan import Join, Nest, Operator, Project, Restructure, Select, Source, WindowAggregate, sources
from queries.query import Query, QueryClass

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


def as_text(query: Query, streams: Streams | None = None) -> str:
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
    return "\n".join([*lines, *_tree(query.plan)])


def as_json(query: Query, streams: Streams | None = None) -> dict[str, Any]:
    """For programs: the same facts, and each operator with its inputs inside it."""
    return {
        "language": query.language,
        "class": query.query_class,
        "columns": [_column_json(each) for each in _visible(query.plan)],
        "options": dict(query.options),
        "kept_ms": _kept(query.plan, streams or {}),
        "plan": _operator_json(query.plan),
    }


def as_dot(query: Query) -> str:
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
    """Streams whose tuples a join or a list keeps for their whole retention, since no window says less."""
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


def _tree(operator: Operator, first: str = "", rest: str = "") -> list[str]:
    lines = [f"{first}{operator}"]
    for number, each in enumerate(operator.inputs, start=1):
        last = number == len(operator.inputs)
        lines += _tree(each, f"{rest}{'└── ' if last else '├── '}", f"{rest}{'    ' if last else '│   '}")
    return lines


def _operator_json(operator: Operator) -> dict[str, Any]:
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
    said["inputs"] = [_operator_json(each) for each in operator.inputs]
    return said


def _window_json(operator: Source | WindowAggregate) -> dict[str, Any] | None:
    window = operator.window
    if window is None:
        return None
    # A decimal goes as text, so that no reader makes a float of it.
    sizes = {
        name: size if size is None or isinstance(size, int) else str(size)
        for name, size in (("size", window.size), ("slide", window.slide))
    }
    return {"kind": window.kind, **sizes, "by": list(window.by)}


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
