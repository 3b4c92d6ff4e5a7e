"""One attempt of a query in the join index, as its subscriber sees it: who runs it, and how far it has come.

An evaluator may send a result twice. So the subscriber remembers every result that it has handed on by the two tuples
it is made of, until both are covered. A tuple is covered once an evaluator has unpacked it and all that this evaluator
had sent by then is here: no further result can be made of two covered tuples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Final

from protocols.catalogue.statistics import StreamStatistics
from protocols.delivery.messages import Origin
from protocols.ids import Millis, PeerId, RequestId, as_count
from protocols.join_index.choice import Chosen, choose, rewriting
from protocols.join_index.condition import CompiledJoin
from protocols.join_index.heavy import heavy_values
from protocols.join_index.known import both
from protocols.join_index.messages import LEFT, RIGHT, SIDES, Attribute, IndexQuery, JoinId, ResultRows, Side
from protocols.join_index.replicas import replicas_for
from protocols.join_index.reports import ReaderSeen
from protocols.join_index.uncovered import Uncovered
from protocols.subgraphs import (
    Algorithm,
    Deploy,
    Indexed,
    IndexStatus,
    InputStatus,
    Progress,
    Reach,
    RewriterStatus,
    SubgraphStatus,
    Vector,
    digests_of,
)
from queries.schema import Row

AWAIT_MS: Final = 3_600_000  # How long a replay waits for tuples that the last attempt had covered.
UNCOVERED_MAX: Final = 100_000  # It stops waiting for them earlier if it remembers more results than this.

RewriterName = tuple[Side, int]  # A side, and one of the replicas that share its tuples.


@dataclass(slots=True, eq=False)
class JoinAttempt:
    """One attempt of a query.

    Keeps:     what it asked rewriters to index, and which reader serves each; results that are not covered yet
    Invariant: it hands on a result once, and none that an earlier attempt covered
    """

    deploy: Deploy
    join: CompiledJoin
    began_at: Millis
    evaluators: tuple[PeerId, ...] = ()  # Empty until a rewriter has named them.
    unknown: dict[RequestId, Side] = field(default_factory=dict)  # Questions to the catalogue about the streams.
    statistics: dict[Side, list[StreamStatistics]] = field(default_factory=dict)
    chosen: Chosen | None = None
    queries: dict[RewriterName, IndexQuery] = field(default_factory=dict)
    readers: dict[RewriterName, str] = field(default_factory=dict)
    posed_at: Millis = 0
    uncovered: Uncovered = field(default_factory=Uncovered)
    reported_at: Millis = 0  # When the proxy was last told of its progress.
    unsafe: deque[int] = field(default_factory=deque)  # Sizes of the groups of results that are not safe yet.
    _covers: Vector = field(default_factory=Vector)
    _reported: tuple[Reach, ...] = ()  # The progress that the proxy knows.
    _has_replayed: bool = False  # Evaluators have again what the last attempt had covered.
    _results: int = 0

    @property
    def name(self) -> JoinId:
        return self.join.query.id

    @property
    def engine(self) -> Indexed:
        engine = self.deploy.subgraph.engine
        assert isinstance(engine, Indexed)
        return engine

    @property
    def is_in_place(self) -> bool:
        """Whether every rewriter has indexed it."""
        return bool(self.queries) and len(self.readers) == len(self.queries)

    def alias(self, side: Side) -> str:
        return self.join.side(side).source.alias

    # How it runs.

    def choose_algorithm(self, alike: Mapping[Algorithm, int], count: int) -> None:
        """Take the algorithm that was asked for, or choose one for about `count` evaluators.

        `alike` counts the attempts with the same condition.
        """
        engine = self.engine
        if engine.is_open:
            self.chosen = choose(self.join, self.statistics, count, engine.skew, alike)
        else:
            self.chosen = Chosen(engine.algorithm, "as asked for")
        self.join = self.join.by(self.chosen.algorithm)

    def meets_at(self) -> Attribute:
        """The attribute whose rewriter names the evaluators: the one that SAI's triggers look for.

        Where both sides rewrite either would do. The last by name is the same whichever side a query names first.
        """
        assert self.chosen is not None
        left, right = rewriting(self.chosen.algorithm, both(self.join, self.statistics))
        if left and right:
            return max(self.join.attributes, key=str)
        return self.join.attributes[RIGHT if left else LEFT]

    def agree(self, evaluators: tuple[PeerId, ...]) -> None:
        """Decide on replicas and heavy values, now that the evaluators are known."""
        assert self.chosen is not None
        self.evaluators = evaluators
        engine, count, algorithm = self.engine, len(evaluators), self.chosen.algorithm
        known = both(self.join, self.statistics)
        rewrites = rewriting(algorithm, known)
        heavy = heavy_values(algorithm, self.join.attributes, rewrites, known, count, engine.skew)
        for side in SIDES:
            replicas = replicas_for(engine.replicas, self.statistics.get(side, ()), count)
            for replica in range(replicas):
                self.queries[side, replica] = IndexQuery(
                    query=self.join.query,
                    side=side,
                    replica=replica,
                    rewrites=rewrites[side],
                    evaluators=self.evaluators,
                    heavy=heavy,
                    replicas=replicas,
                )

    # Results.

    def new_rows(self, results: ResultRows, decoded: Sequence[Row]) -> tuple[list[Row], list[bytes]]:
        """Those that were not handed on before, and their digests."""
        digests = digests_of(results.rows)
        left, right = (self._reached(side, results.origins) for side in SIDES)
        is_new = self.uncovered.add(results, digests, left, right)
        rows = [*compress(decoded, is_new)]
        self._results += len(rows)
        return rows, [*compress(digests, is_new)]

    def _reached(self, side: Side, origins: Sequence[Origin]) -> list[int]:
        """Below which sequence the tuples of each origin are covered."""
        alias, covers = self.alias(side), self._covers.next
        return [covers.get((alias, origin), 0) for origin in origins]

    def advance(self, side: Side, covers: Mapping[Origin, int]) -> None:
        """A reader of this side has come so far."""
        alias = self.alias(side)
        self._covers.advance(tuple(Reach(alias, origin, upto) for origin, upto in covers.items()))

    def news(self, now: Millis) -> tuple[Progress, tuple[bytes, ...]] | None:
        """The progress and the digests beyond it, if they have changed since the last call; None during a replay."""
        self._has_replayed = self._has_replayed or self.has_caught_up(now)
        reached = self._covers.reaches()
        if not self._has_replayed or reached == self._reported:
            return None
        self._reported, self.reported_at = reached, now
        self.uncovered.cover(*(self._reached(side, self.uncovered.origins) for side in SIDES))
        return Progress(reached), self.uncovered.digests

    def has_caught_up(self, now: Millis) -> bool:
        """Whether evaluators have again all tuples that the last attempt had covered, so that later ones meet them."""
        if now - self.began_at >= AWAIT_MS or len(self.uncovered) > UNCOVERED_MAX:
            return True
        resume = self.deploy.resume.covers
        return all(self._covers.next.get((reach.alias, reach.origin), 0) >= reach.next for reach in resume)

    # For people to look at.

    def status(self, seen: Mapping[RewriterName, ReaderSeen]) -> SubgraphStatus:
        """How it is doing, by what its readers have reported."""
        reports = {rewriter: each.latest for rewriter, each in seen.items() if each.latest is not None}
        read = {rewriter: report.tuples for rewriter, report in reports.items()}
        unfit = {side: sum(report.unfit for each, report in reports.items() if each[0] == side) for side in SIDES}
        return SubgraphStatus(
            query=self.deploy.query,
            attempt=self.deploy.attempt,
            number=self.deploy.subgraph.number,
            life=self.began_at,
            rows_in=as_count(sum(read.values())),
            rows_out=self._results,
            waiting=sum(each.waiting is not None for each in seen.values()),
            inputs=tuple(
                InputStatus(
                    self.alias(side),
                    as_count(sum(n for each, n in read.items() if each[0] == side)),
                    late=0,
                    watermark_us=None,
                    is_idle=False,
                    unfit=as_count(unfit[side]),
                )
                for side in SIDES
            ),
            progress=Progress(self._covers.reaches()),
            index=self._index_status(seen, read),
        )

    def _index_status(self, seen: Mapping[RewriterName, ReaderSeen], read: Mapping[RewriterName, int]) -> IndexStatus:
        assert self.chosen is not None
        reports = [each.latest for each in seen.values() if each.latest is not None]
        rewriters = tuple(
            RewriterStatus(
                self.alias(side),
                str(self.join.side(side).attribute),
                seen[side, replica].peer,
                self.queries[side, replica].rewrites,
                replica,
                self.queries[side, replica].replicas,
                read.get((side, replica), 0),
            )
            for side, replica in sorted(seen)
        )
        return IndexStatus(
            rewriters,
            self.evaluators,
            len({each.peer: None for report in reports for each in report.sent}),
            as_count(sum(report.messages for report in reports)),
            self.chosen.algorithm,
            self.chosen.why,
            tuple((each.value, each.rows * each.columns) for each in self.queries[LEFT, 0].heavy),
        )
