"""The paper's figures 1 to 4, its section 6, and our cells, as golden conversations: who sends what to whom, in order.

The drawings tell stories; here they are told with tuples. A line that starts with ==== is done, what follows is said.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest

from protocols.ids import PeerId
from protocols.join_index.cells import cell_key
from protocols.join_index.keys import value_key
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import (
    AlIndex,
    AnyAlgorithm,
    AskRate,
    Attribute,
    Bundle,
    Finger,
    ForgetQuery,
    Join,
    Moved,
    Notification,
    Notify,
    Query,
    QueryIndexed,
    Rate,
    RemoveQuery,
    SplitValue,
    StreamTuple,
    VlIndex,
)
from protocols.messages import Message
from queries.catalogue import Stream
from queries.plan import output_schema
from queries.schema import Schema
from tests.protocols.join_index.network import Network

FIGURES = sorted((Path(__file__).parent / "figures").glob("*.txt"))
STREAMS = {
    "R": Stream("R", Schema.parse("A int, B int")),
    "S": Stream("S", Schema.parse("D int, E int")),
    "U": Stream("U", Schema.parse("A int, B int, C int")),
    "V": Stream("V", Schema.parse("D int, E int, F int")),
}
WIDTH = 36


class Story:
    """One figure played on a calm network of eight peers, N1 to N8."""

    def __init__(self) -> None:
        self.network = Network(STREAMS, peers=8, limits=JoinLimits(split_above=3))
        self.network.on_message = self._said
        self.names = {peer: f"N{number}" for number, peer in enumerate(self.network.ids, 1)}
        self.peers = {name: peer for peer, name in self.names.items()}
        self.lines: list[str] = []

    def play(self, command: str) -> None:
        self.lines.append(f"==== {command}")
        verb, who, rest = command.split(" ", 2)
        if verb == "publish":
            found = re.fullmatch(r"(\w+)\((.*)\)", rest)
            assert found, rest
            row = tuple(int(value) for value in found[2].split(","))
            self.network.publish(found[1], row, self.peers[who])
        elif verb == "pose":
            algorithm, text = rest.split(" ", 1)
            is_set = algorithm.endswith("-once")
            known = cast("AnyAlgorithm", algorithm.removesuffix("-once"))
            self.network.pose(text, known, self.peers[who], is_set=is_set)
        else:
            assert verb == "stop", verb
            self.network.stop(rest)
        self.network.run(for_ms=100)

    def _said(self, sender: PeerId, to: PeerId, message: Message) -> None:
        tag = str(message.__struct_config__.tag)
        way = f"{self.names[sender]} -> {self._towards(to, message)}"
        self.lines.append(f"{way:<{WIDTH}}{tag:<14}{self._about(message)}".rstrip())

    def _towards(self, to: PeerId, message: Message) -> str:
        """The peer, and the name by which it was found."""
        match message:
            case AlIndex(at=at) | AskRate(at=at):
                name = str(at)
            case VlIndex(at=at, value=value) | Join(at=at, value=value) | ForgetQuery(at=at, value=value):
                name = f"{at}={value[1:]}" if at else f"={value[1:]}"
            case Bundle(value=value, cell=cell) | Moved(value=value, cell=cell):
                name = f"{value[1:]}/{cell}"
            case _:
                return self.names[to]
        return f"{name} ({self.names[to]})"

    def _about(self, message: Message) -> str:
        match message:
            case AlIndex(tuple=each) | VlIndex(tuple=each):
                return self._shown(each)
            case Join(trigger=trigger, rewritten=rewritten):
                return f"{', '.join(each.query.id for each in rewritten)} with {self._shown(trigger)}"
            case Bundle(trigger=trigger, opened=opened, indexed=indexed):
                queries = [query.id for _, every in opened for each in every for query in each.queries]
                return f"{', '.join([*queries, *(f'by {at}' for at, _ in indexed)])} with {self._shown(trigger)}"
            case SplitValue(value=value, depth=depth):
                return f"{value[1:]} has {1 << depth} cells"
            case Moved(joins=joins, tuples=tuples):
                queries = [query.query.id for join in joins for query in join.rewritten]
                return ", ".join([*queries, *(self._shown(each.tuple) for each in tuples)])
            case Query(query=query, side=side):
                return f"{query.id} by its {('left', 'right')[side]} side"
            case RemoveQuery(query=query) | ForgetQuery(query=query) | AskRate(query=query) | QueryIndexed(query=query):
                return query
            case Rate(query=query, tuples=tuples):
                return f"{query} {tuples} tuples"
            case Notify(notifications=notifications):
                return ", ".join(map(self._result, notifications))
            case Finger(key=key):
                return self._place(key)
        raise AssertionError(f"no words for {message}")

    def _shown(self, each: StreamTuple) -> str:
        (row,) = STREAMS[each.id.stream].schema.decode(each.row)
        return f"{each.id.stream}{row}"

    def _result(self, each: Notification) -> str:
        _, plan = self.network.plans[each.query]
        (row,) = output_schema(plan).decode(each.row)
        return f"{each.query} {row}"

    def _place(self, key: bytes) -> str:
        """Who is evaluator of what, by the JOIN that asked."""
        cells = {f"{value}/{cell}": cell_key(f"n{value}", cell) for value in range(10) for cell in range(16)}
        return next(name for name, each in {**self.joined, **cells}.items() if each == key)

    @property
    def joined(self) -> dict[str, bytes]:
        found = (re.search(r"-> (\S*)=(\S+) \(.*JOIN", line) for line in self.lines)
        every = [match for match in found if match]
        places = {f"{match[1]}={match[2]}": (match[1], f"n{match[2]}") for match in every}
        return {name: value_key(None if not at else _attribute(at), value) for name, (at, value) in places.items()}


def _attribute(text: str) -> Attribute:
    relation, *path = text.split(".")
    return Attribute(relation, tuple(path))


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_the_conversation_is_that_of_the_figure(path: Path, rewrite: bool) -> None:
    head, _, rest = path.read_text().partition("\n====")
    story = Story()
    for command in re.findall(r"^==== (.*)$", f"===={rest}", flags=re.MULTILINE):
        story.play(command)
    now = "\n".join([head.rstrip(), *story.lines, ""])
    if rewrite:
        path.write_text(now)
    assert path.read_text() == now
