"""A plan cut into subgraphs: what runs together on one peer.

Selections on a source, with the projection to what the rest of the query needs, can run at a peer of their own, as a
rule where their stream is published; everything else runs at one peer; the shape of an XML result is always made at
the subscriber's peer. `placing.py` says where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from protocols.clock import Stamp
from protocols.execution.messages import Engine, FlowInput, Input, QueryId, StreamInput, Subgraph
from protocols.ids import PeerId, StreamName
from queries.canonical import digest
from queries.expressions import TIME, Expression, Named, columns_of
from queries.functions import call
from queries.plan import (
    Join,
    Nest,
    Operator,
    Project,
    Restructure,
    Select,
    Source,
    Union,
    WindowAggregate,
    output_schema,
    sources,
    walk,
)
from queries.restructure import one_shape
from queries.schema import Schema

NAME_DIGITS: Final = 16


class Cut(msgspec.Struct, frozen=True):
    """The subgraphs of a query, those that are read before those that read them, and the host of each."""

    subgraphs: tuple[Subgraph, ...]
    hosts: tuple[PeerId, ...]


def is_stateful(plan: Operator) -> bool:
    """Whether a plan has to remember rows."""
    return any(isinstance(each, Join | Nest | WindowAggregate) for each in walk(plan))


def cut(
    query: QueryId,
    plan: Operator,
    since: Stamp,
    chains: Mapping[str, PeerId],
    proxy: PeerId,
    worker: PeerId,
    engine: str,
) -> Cut:
    """Cut a plan: `chains` says who narrows each source, by alias, `worker` who runs what has state.

    Subgraph 0 is the last: it runs at the proxy and makes the query's results.
    """
    if isinstance(plan, Union) and is_stateful(plan) and all(isinstance(each, Restructure) for each in plan.branches):
        plan = one_shape(plan)  # An engine makes rows, no XML.
    shape, body = (plan, plan.input) if isinstance(plan, Restructure) else (None, plan)
    stateful = is_stateful(body)
    worker = worker if stateful else proxy
    narrow = narrowed(body)
    is_apart = worker != proxy
    moved: dict[str, tuple[Subgraph, PeerId]] = {}

    def move(chain: Operator, source: Source) -> Operator:
        host = chains.get(source.alias, worker)
        if host == worker or source.alias not in narrow:
            return chain
        number = len(moved) + (2 if is_apart else 1)
        part = narrow[source.alias]
        # Below state it hands on old rows, too: an engine apart would not tell them.
        moved_engine: Engine = "inline" if stateful else _engine(part, engine)
        inputs, consumer = _inputs(part, since, {}), 1 if is_apart else 0
        made = Subgraph(number, part, inputs, moved_engine, consumer, source.alias, derived_name(part))
        moved[source.alias] = made, host
        return _derived(source, f"{query}.{number}", part)

    whole, body = body, _replaced_chains(body, move)
    flows = {alias: subgraph.number for alias, (subgraph, _) in moved.items()}
    if not is_apart:
        top = msgspec.structs.replace(shape, input=body) if shape is not None else body
        return _cut([*moved.values(), (Subgraph(0, top, _inputs(top, since, flows), _engine(body, engine)), proxy)])
    relayed = Source(f"{query}.1", "", output_schema(body))
    outputs = tuple(Named(column.path[-1], column) for column in relayed.columns if column.path != (TIME,))
    relay: Operator = Project(relayed, outputs)
    relay = msgspec.structs.replace(shape, input=relay) if shape is not None else relay
    timed = _with_time(body)
    name = derived_name(_with_time(whole))
    work = Subgraph(1, timed, _inputs(timed, since, flows), _engine(body, engine), 0, "", name)
    return _cut([*moved.values(), (work, worker), (Subgraph(0, relay, (FlowInput("", 1),), "inline"), proxy)])


def derived_name(plan: Operator) -> StreamName:
    """The name of the stream that a plan over streams of the network makes, whoever writes it in whichever way."""
    return f"derived-{digest(plan)[:NAME_DIGITS]}"


def _cut(placed: Sequence[tuple[Subgraph, PeerId]]) -> Cut:
    return Cut(tuple(subgraph for subgraph, _ in placed), tuple(host for _, host in placed))


def narrowed(plan: Operator) -> dict[str, Project]:
    """What can make the rows of a source fewer or smaller before they travel, by alias: selections, a projection."""
    needed = _needed(plan)
    found: dict[str, Project] = {}

    def look(chain: Operator, source: Source) -> Operator:
        fields = tuple(field for field in source.schema.fields if field.name in needed[source.alias])
        if fields and (isinstance(chain, Select) or len(fields) < len(source.schema.fields)):
            columns = msgspec.structs.replace(source, schema=Schema(fields), event_time=None).columns
            found[source.alias] = Project(chain, tuple(Named(each.path[-1], each) for each in columns), source.alias)
        return chain

    _replaced_chains(plan, look)
    return found


def _derived(source: Source, stream: str, part: Project) -> Source:
    """What is left of a source to those above it, once it is narrowed."""
    names = [each.name for each in part.outputs]
    fields = tuple(field for field in source.schema.fields if field.name in names)
    return Source(stream, source.alias, Schema(fields), source.window, None, source.lateness_ms)


def indexed(plan: Operator, since: Stamp, proxy: PeerId, algorithm: Engine) -> Cut:
    """The whole of a plan in the join index, which finds its peers itself."""
    return Cut((Subgraph(0, plan, _inputs(plan, since, {}), algorithm),), (proxy,))


def _engine(plan: Operator, engine: str) -> Engine:
    return "spark" if is_stateful(plan) or engine == "spark" else "inline"


def _inputs(plan: Operator, since: Stamp, flows: Mapping[str, int]) -> tuple[Input, ...]:
    return tuple(
        FlowInput(each.alias, flows[each.alias])
        if each.alias in flows
        else StreamInput(each.alias, each.stream, since, each.event_time, each.lateness_ms)
        for each in sources(plan)
    )


def _replaced_chains(plan: Operator, move: Callable[[Operator, Source], Operator]) -> Operator:
    """The plan with each source and the selections on it handed to `move`. Rows are ranked before they are selected."""
    base = plan
    while isinstance(base, Select):
        base = base.input
    if isinstance(base, Source):
        is_ranked = base.window is not None and base.window.kind == "rows"
        return plan if is_ranked else move(plan, base)
    match plan:
        case Select() | Project() | WindowAggregate() | Restructure():
            return msgspec.structs.replace(plan, input=_replaced_chains(plan.input, move))
        case Join():
            left, right = _replaced_chains(plan.left, move), _replaced_chains(plan.right, move)
            return msgspec.structs.replace(plan, left=left, right=right)
        case Nest():
            input_, nested = _replaced_chains(plan.input, move), _replaced_chains(plan.nested, move)
            return msgspec.structs.replace(plan, input=input_, nested=nested)
        case Union():
            branches = tuple(_replaced_chains(branch, move) for branch in plan.branches)
            return msgspec.structs.replace(plan, branches=branches)
    raise AssertionError(f"no rule for {plan}")


def _needed(plan: Operator) -> dict[str, dict[str, None]]:
    """For each alias, the fields that operators above the selections of its source read."""
    needed: dict[str, dict[str, None]] = {each.alias: {} for each in sources(plan)}
    for operator in walk(plan):
        expressions, names = _reads(operator)
        for expression in expressions:
            for column in columns_of(expression):
                if column.input in needed:
                    needed[column.input][column.path[0]] = None
        for fields in needed.values():
            fields.update(dict.fromkeys(names))
    return needed


def _reads(operator: Operator) -> tuple[list[Expression], list[str]]:
    """What an operator reads of its rows: expressions, and fields by name alone."""
    match operator:
        case Select(predicate=predicate) if not _is_chain(operator):
            return [predicate], []
        case Project(outputs=outputs):
            return [each.expression for each in outputs], []
        case Join(predicate=predicate) | Nest(predicate=predicate) if predicate is not None:
            return [predicate], []
        case WindowAggregate(keys=keys, aggregates=aggregates, window=window):
            arguments = [each.argument for each in aggregates if each.argument is not None]
            gathered = [field.name for each in aggregates for field in each.fields]
            return [key.expression for key in keys] + arguments, gathered + list(window.by[:1])
    return [], []


def _is_chain(operator: Operator) -> bool:
    """Whether an operator is a source, or selections on one."""
    while isinstance(operator, Select):
        operator = operator.input
    return isinstance(operator, Source)


def _with_time(plan: Operator) -> Operator:
    """A plan whose rows also say when they are of, so that another subgraph can read them as it reads a stream."""
    if isinstance(plan, Union):
        return Union(tuple(map(_with_time, plan.branches)))
    assert isinstance(plan, Project)
    times = tuple(column for column in plan.input.columns if column.path == (TIME,))
    time: Expression = times[0] if len(times) == 1 else call("greatest", *times)
    return msgspec.structs.replace(plan, outputs=(*plan.outputs, Named(TIME, time)))
