"""A plan cut into subgraphs: what runs together on one peer.

A "chain" is a source with the selections on it. A chain, with the projection to what the rest of the query needs, can
run at a peer of its own, as a rule where its stream is published: this peer "narrows" the source. Each join below
another can run apart, too (`apart.py`). Everything else runs at one peer, except that the subscriber's peer always
makes the shape of an XML result. `decision.py` says where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from protocols.clock import Stamp
from protocols.delivery.messages import Origin
from protocols.demand import Demand
from protocols.execution.apart import (
    Aliases,
    Renaming,
    aliases_of,
    handing_on_marks,
    inner_joins,
    made_by,
    marked,
    source_of,
    time_of,
)
from protocols.execution.messages import QueryId
from protocols.ids import Millis, PeerId, StreamName
from protocols.subgraphs import (
    Engine,
    FlowInput,
    Indexed,
    Inline,
    Input,
    Progress,
    Sharing,
    Spark,
    StreamInput,
    Subgraph,
)
from queries.canonical import digest
from queries.expressions import TIME, Expression, Named
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
from queries.reads import needed_above
from queries.restructure import one_shape
from queries.schema import Schema
from queries.slices import is_sliceable

NAME_DIGITS: Final = 16


class Cut(msgspec.Struct, frozen=True):
    """The subgraphs of a query, makers before consumers, and the host of each."""

    subgraphs: tuple[Subgraph, ...]
    hosts: tuple[PeerId, ...]
    demands: dict[int, Demand] = {}  # Of each subgraph, by its number, where somebody has looked (expected.py).

    @property
    def placed(self) -> list[tuple[Subgraph, PeerId]]:
        return list(zip(self.subgraphs, self.hosts, strict=True))

    @property
    def by_number(self) -> dict[int, PeerId]:
        """The host of each subgraph."""
        return {subgraph.number: host for subgraph, host in self.placed}

    def share_of(self, subgraph: Subgraph, resume: Progress) -> Progress:
        """The part of a query's progress that is about the sources below one subgraph."""
        below: dict[int, tuple[str, ...]] = {}
        for each in self.subgraphs:
            inputs = ((item.alias,) if isinstance(item, StreamInput) else below[item.subgraph] for item in each.inputs)
            below[each.number] = tuple(alias for aliases in inputs for alias in aliases)
        own = below[subgraph.number]
        covers = tuple(each for each in resume.covers if each.alias in own)
        lows = tuple(each for each in resume.lows if each.alias in own)
        return msgspec.structs.replace(resume, covers=covers, lows=lows)


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
    joins: Mapping[Aliases, PeerId] = MappingProxyType({}),
) -> Cut:
    """Cut a plan: `chains` says who narrows each source, by alias, `worker` who runs what has state.

    Of several joins, the worker runs the last one, all above it, and those below it that `joins` does not name.
    Subgraph 0 is the last: it runs at the proxy and makes the query's results.
    """
    if isinstance(plan, Union) and is_stateful(plan) and all(isinstance(each, Restructure) for each in plan.branches):
        plan = one_shape(plan)  # An engine makes rows, no XML.
    shape, body = (plan, plan.input) if isinstance(plan, Restructure) else (None, plan)
    stateful = is_stateful(body)
    worker = worker if stateful else proxy
    is_apart = worker != proxy
    cutting = _Cutting(query, body, since, chains, joins, engine, next_number=2 if is_apart else 1)
    whole, body = body, cutting.taken_apart(body, 1 if is_apart else 0, worker)
    if not is_apart:
        top = msgspec.structs.replace(shape, input=body) if shape is not None else body
        last = Subgraph(0, top, cutting.inputs(top), _engine(body, engine), is_timed=stateful)
        return _cut([*cutting.made, (last, proxy)])
    relayed = Source(f"{query}.1", "", output_schema(body))
    outputs = tuple(Named(column.path[-1], column) for column in relayed.columns if column.path != (TIME,))
    relay: Operator = Project(relayed, outputs)
    relay = msgspec.structs.replace(shape, input=relay) if shape is not None else relay
    timed = _with_time(body)
    name = derived_name(_with_time(whole))
    work = Subgraph(1, timed, cutting.inputs(timed), _engine(body, engine), 0, "", name)
    return _cut(
        [*cutting.made, (work, worker), (Subgraph(0, relay, (FlowInput("", 1, maker=worker),), Inline()), proxy)]
    )


@dataclass(slots=True)
class _Cutting:
    """One plan being cut."""

    query: QueryId
    plan: Operator
    since: Stamp
    chains: Mapping[str, PeerId]
    joins: Mapping[Aliases, PeerId]
    engine: str
    next_number: int
    made: list[tuple[Subgraph, PeerId]] = field(default_factory=list)  # Makers before consumers.
    _flows: dict[str, FlowInput] = field(default_factory=dict)  # By alias.
    _narrow: dict[str, Project] = field(init=False)
    _inner: dict[Aliases, Join] = field(init=False)
    _renaming: Renaming = field(default_factory=Renaming)

    def __post_init__(self) -> None:
        self._narrow, self._inner = narrowed(self.plan), inner_joins(self.plan)

    def taken_apart(self, plan: Operator, number: int, host: PeerId, *, tells_old: bool = False) -> Operator:
        """What is left of a plan for one subgraph, once other peers have their parts."""

        def move_chain(chain: Operator, source: Source) -> Operator:
            part = self._narrow.get(source.alias)
            maker = self.chains.get(source.alias, host)
            if maker == host or part is None:
                return _marked_chain(chain) if tells_old else chain
            return self._narrowed_at(maker, part, source, number, tells_old=tells_old)

        def move_join(join: Join) -> Operator | None:
            aliases = aliases_of(join)
            maker = self.joins.get(aliases, host) if aliases in self._inner else host
            return None if maker == host else self._joined_at(maker, join, number)

        return _replaced(plan, _Moves(move_chain, move_join, self._renaming.renamed, self._renaming.joined))

    def inputs(self, plan: Operator) -> tuple[Input, ...]:
        return _inputs(plan, self.since, self._flows)

    def _number(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    def _narrowed_at(self, host: PeerId, part: Project, source: Source, consumer: int, *, tells_old: bool) -> Operator:
        number, name = self._number(), derived_name(part)
        left = _derived(source, f"{self.query}.{number}", part)
        if tells_old:
            left = marked(left)
            part = handing_on_marks(msgspec.structs.replace(part, input=_marked_chain(part.input)))
        # A consumer with state needs old rows for replay, and Spark would leave them out.
        engine: Engine = Inline() if is_stateful(self.plan) else _engine(part, self.engine)
        inputs = _inputs(part, self.since, {})
        self._flows[source.alias] = FlowInput(source.alias, number, is_mixed=tells_old, maker=host)
        is_timed = is_stateful(self.plan)
        made = Subgraph(number, part, inputs, engine, consumer, source.alias, name, tells_old, is_timed)
        self.made.append((made, host))
        return left

    def _joined_at(self, host: PeerId, join: Join, consumer: int) -> Operator:
        """An inner join at a peer of its own: its consumer reads one source."""
        number, whole = self._number(), made_by(self.plan, join)
        below = self.taken_apart(whole.input, number, host, tells_old=True)
        outputs = (Named(each.name, self._renaming.renamed(each.expression)) for each in whole.outputs[:-1])
        part = handing_on_marks(Project(below, (*outputs, Named(TIME, time_of(below))), whole.alias))
        self._renaming.add(whole)
        inputs = self.inputs(part)
        self._flows[whole.alias] = FlowInput(whole.alias, number, is_mixed=True, maker=host)
        made = Subgraph(number, part, inputs, Spark(), consumer, whole.alias, derived_name(whole), tells_old=True)
        self.made.append((made, host))
        return source_of(part, f"{self.query}.{number}", join)


def introduced(
    made: Cut, known: Mapping[StreamName, tuple[Origin, ...]], patience_ms: Millis, sharing: Sharing = "auto"
) -> Cut:
    """The same subgraphs, with what there is to say of the streams they read.

    Who publishes them, how long to wait for each publisher, and whether others may read along.
    """

    def introduce(each: Input) -> Input:
        if not isinstance(each, StreamInput):
            return each
        origins = known.get(each.stream, ())
        return msgspec.structs.replace(each, known=origins, patience_ms=patience_ms, sharing=sharing)

    parts = (
        msgspec.structs.replace(part, inputs=tuple(introduce(each) for each in part.inputs)) for part in made.subgraphs
    )
    return Cut(tuple(parts), made.hosts)


def derived_name(plan: Operator) -> StreamName:
    """The name of the stream that a plan makes: the same for every way to write the plan."""
    return f"derived-{digest(plan)[:NAME_DIGITS]}"


def _cut(placed: Sequence[tuple[Subgraph, PeerId]]) -> Cut:
    return Cut(tuple(subgraph for subgraph, _ in placed), tuple(host for _, host in placed))


def narrowed(plan: Operator) -> dict[str, Project]:
    """For each alias, the selections and the projection that its source can be narrowed by before its rows travel."""
    needed = needed_above(plan)
    found: dict[str, Project] = {}

    def look(chain: Operator, source: Source) -> Operator:
        fields = tuple(each for each in source.schema.fields if each.name in needed[source.alias])
        if fields and (isinstance(chain, Select) or len(fields) < len(source.schema.fields)):
            columns = msgspec.structs.replace(source, schema=Schema(fields), event_time=None).columns
            found[source.alias] = Project(chain, tuple(Named(each.path[-1], each) for each in columns), source.alias)
        return chain

    _replaced(plan, _Moves(look))
    return found


def _derived(source: Source, stream: str, part: Project) -> Source:
    """A narrowed source as the operators above it see it."""
    names = [each.name for each in part.outputs]
    fields = tuple(each for each in source.schema.fields if each.name in names)
    return Source(stream, source.alias, Schema(fields), source.window, None, source.lateness_ms)


def indexed(plan: Operator, since: Stamp, proxy: PeerId, engine: Indexed) -> Cut:
    """The whole of a plan in the join index, which finds its peers itself."""
    return Cut((Subgraph(0, plan, _inputs(plan, since, {}), engine),), (proxy,))


def runs_inline(plan: Operator, engine: str) -> bool:
    """Whether the daemon can run a plan itself, and nobody wants Spark to."""
    return engine != "spark" and is_sliceable(plan)


def _engine(plan: Operator, engine: str) -> Engine:
    return Inline() if runs_inline(plan, engine) else Spark()


def _inputs(plan: Operator, since: Stamp, flows: Mapping[str, FlowInput]) -> tuple[Input, ...]:
    return tuple(
        flows[each.alias]
        if each.alias in flows
        else StreamInput(each.alias, each.stream, since, each.event_time, each.lateness_ms)
        for each in sources(plan)
    )


class _Moves(NamedTuple):
    """What becomes of the parts of a plan."""

    chain: Callable[[Operator, Source], Operator]  # A source, with the selections on it.
    join: Callable[[Join], Operator | None] = lambda _: None  # None: it stays.
    expression: Callable[[Expression], Expression] = lambda expression: expression
    joined: Callable[[Operator, Operator, Expression | None], Join] = Join


def _replaced(plan: Operator, moves: _Moves) -> Operator:
    """The plan with what the moves make of its parts.

    A window of rows counts them before they are selected, so a chain with such a window stays.
    """
    base = plan
    while isinstance(base, Select):
        base = base.input
    if isinstance(base, Source):
        is_ranked = base.window is not None and base.window.kind == "rows"
        return plan if is_ranked else moves.chain(plan, base)
    match plan:
        case Select():
            input_ = _replaced(plan.input, moves)
            return Select(input_, moves.expression(plan.predicate))
        case Project():
            input_ = _replaced(plan.input, moves)
            outputs = tuple(Named(each.name, moves.expression(each.expression)) for each in plan.outputs)
            return msgspec.structs.replace(plan, input=input_, outputs=outputs)
        case WindowAggregate() | Restructure():
            return msgspec.structs.replace(plan, input=_replaced(plan.input, moves))
        case Join():
            if (moved := moves.join(plan)) is not None:
                return moved
            left, right = _replaced(plan.left, moves), _replaced(plan.right, moves)
            return moves.joined(left, right, plan.predicate)
        case Nest():
            input_, nested = _replaced(plan.input, moves), _replaced(plan.nested, moves)
            return msgspec.structs.replace(plan, input=input_, nested=nested)
        case Union():
            branches = tuple(_replaced(branch, moves) for branch in plan.branches)
            return msgspec.structs.replace(plan, branches=branches)
    raise AssertionError(f"no rule for {plan}")


def _marked_chain(chain: Operator) -> Operator:
    """A source and the selections on it, with rows that say whether they are new."""
    if isinstance(chain, Select):
        return Select(_marked_chain(chain.input), chain.predicate)
    assert isinstance(chain, Source)
    return marked(chain)


def _with_time(plan: Operator) -> Operator:
    """A plan whose rows also carry their time, so that another subgraph can read them like a stream."""
    if isinstance(plan, Union):
        return Union(tuple(map(_with_time, plan.branches)))
    assert isinstance(plan, Project)
    return msgspec.structs.replace(plan, outputs=(*plan.outputs, Named(TIME, time_of(plan.input))))
