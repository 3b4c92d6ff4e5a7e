"""A continuous query: its text, its plan, the class it belongs to, and how it wants to be run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from queries.catalogue import Streams
from queries.plan import Operator

Language = Literal["sql", "wxquery"]
# CQ-DHT, section 2, has T1 and T2: two-way joins on an equality, which the DHT's index can evaluate. A theta join has
# no equality.
QueryClass = Literal["select", "T1", "T2", "theta", "windowed", "multi-way", "aggregate", "nested"]


class ParsedQuery(msgspec.Struct, frozen=True):
    """What a text means, given the streams it names."""

    text: str
    language: Language
    plan: Operator
    query_class: QueryClass
    options: tuple[tuple[str, str], ...] = ()  # What WITH (key = value) asked for.


def parse(text: str, streams: Streams, parameters: Sequence[Any] = ()) -> ParsedQuery:
    """The query of a text in either language; raises QueryError. `parameters` replace the question marks of SQL."""
    if _WXQUERY.match(text):
        from queries import wxquery

        return wxquery.plan(text, streams)
    from queries import sql

    return sql.plan(text, streams, parameters)


_WXQUERY: Final = re.compile(r"\s*(<|\{|\(:|(for|let|if|stream)\b)|\s*\((?![\s(]*select\b)", re.IGNORECASE)
_NAMED: Final = re.compile(r"""\bstream\s*\(\s*["']([^"']+)["']""", re.IGNORECASE)
_FROM: Final = re.compile(
    r"\bfrom\b(.*?)(?=\b(?:where|group|having|union|with|from)\b|\)|;|$)", re.IGNORECASE | re.DOTALL
)
_WINDOW: Final = re.compile(r"\[[^][]*\]")
_FIRST: Final = re.compile(r"""\s*"?([A-Za-z_][A-Za-z0-9_.-]*)""")
LIKELY_MAX: Final = 32
REPLICAS_MAX: Final = 16  # How many rewriters may share an attribute in the join index.


def likely_streams(text: str) -> tuple[str, ...]:
    """The streams that a text seems to name, so that they can be looked up before it is parsed. Only the parser knows
    for sure.

    >>> likely_streams('SELECT a.x FROM a [RANGE 5 MINUTES], "b-c" AS b WHERE a.x = b.x')
    ('a', 'b-c')
    >>> likely_streams('<r>{ for $p in stream("photons")/photons/photon return $p }</r>')
    ('photons',)
    """
    if _WXQUERY.match(text):
        names = _NAMED.findall(text)
    else:
        pieces = [piece for found in _FROM.findall(_WINDOW.sub(" ", text)) for piece in found.split(",")]
        names = [first[1] for piece in pieces if (first := _FIRST.match(piece))]
    return tuple(dict.fromkeys(names))[:LIKELY_MAX]
