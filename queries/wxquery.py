"""WXQuery to a plan: StreamGlobe's language for continuous queries over streams of XML.

Source ─▶ Select ─▶ (WindowAggregate ─▶ Select) ─▶ (Join) ─▶ (Nest) ─▶ Project ─▶ Restructure

A query is one such branch, or the union of several: a sequence has one for each of its streams. All operators but the
last work on records in the network; Restructure builds the XML at the subscriber's peer. The elements around a branch
are its envelope: they open once, before the first result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from queries.binder import classify
from queries.catalogue import Streams
from queries.plan import Operator, Restructure, Union
from queries.query import ParsedQuery
from queries.wx_branch import Branch
from queries.wx_content import as_flwr
from queries.wx_names import Names
from queries.wx_syntax import Conditional, ElementConstructor, Flwr, Name, PathOutput, parse
from queries.wx_syntax import Expression as ExpressionText

SOURCES_MAX: Final = 32


def plan(text: str, streams: Streams) -> ParsedQuery:
    """The query of a text; raises QueryError.

    >>> from queries.catalogue import Stream
    >>> from queries.schema import Schema
    >>> streams = {"photons": Stream("photons", Schema.parse("en decimal, det_time decimal"))}
    >>> text = (
    ...     '<hits>{ for $p in stream("photons")/photons/photon where $p/en >= 1.3 return <hit>{ $p/en }</hit> }</hits>'
    ... )
    >>> print(plan(text, streams).plan)
    Restructure into hits/…
    """
    planner = _Planner(Names(text, streams))
    branches = tuple(planner.branches(parse(text), ()))
    whole: Operator = branches[0] if len(branches) == 1 else Union(branches)
    return ParsedQuery(text, "wxquery", whole, classify(whole))


@dataclass(slots=True)
class _Planner:
    """Finds the branches of a query: the expressions that start from a stream, and the elements around them."""

    names: Names
    aliases: list[str] = field(default_factory=list)
    sources: int = 0
    envelope: tuple[str, ...] | None = None

    def branches(self, text: ExpressionText, envelope: tuple[str, ...]) -> Iterator[Restructure]:
        match text:
            case ElementConstructor(tag=tag, content=()):
                hint = "put what belongs to each result into return" if envelope else "for $x in stream(…)/… return …"
                raise self.names.error(f'"<{tag.text}/>" holds no stream, so it has no results', text.span, hint)
            case ElementConstructor(tag=tag, content=content):
                for part in content:
                    yield from self.branches(part, (*envelope, tag.text))
            case Conditional():
                hint = "put it into return, or its condition into where"
                raise self.names.error("a condition outside of for has nothing to test", text.span, hint)
            case Flwr():
                yield self._branch(text, envelope)
            case PathOutput(path=path):
                if isinstance(path.origin, Name):
                    self.names.variable(path.origin, {})
                yield self._branch(as_flwr(path), envelope)
            case _:
                if not text.items:
                    raise self.names.error("an empty sequence has no results", text.span, "leave it out")
                for item in text.items:
                    yield from self.branches(item, envelope)

    def _branch(self, text: Flwr, envelope: tuple[str, ...]) -> Restructure:
        branch = Branch(self.names, self.aliases)
        branch.read(text, {})
        self.sources += branch.sources
        if self.sources > SOURCES_MAX:
            problem = f"the query reads {self.sources} streams; at most {SOURCES_MAX} are allowed"
            raise self.names.error(problem, text.span)
        if self.envelope is not None and envelope != self.envelope:
            outer, inner = "/".join(self.envelope) or "no element", "/".join(envelope) or "no element"
            problem = f"one branch is in {outer}, another in {inner}: the first never ends, so the second never begins"
            raise self.names.error(problem, text.span, "put both into the same element: <a> { … } { … } </a>")
        self.envelope = envelope
        return branch.operator(envelope)
