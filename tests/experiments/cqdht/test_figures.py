"""The paper's figures 1 to 4, its section 6, and our cells, as golden conversations: who sends what to whom, in order.

The drawings tell stories; here they are told with tuples. A line that starts with ==== is done, what follows is said.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest

from experiments.cqdht.cells import cell_key
from experiments.cqdht.indexer import leaves
from experiments.cqdht.limits import JoinLimits
from experiments.cqdht.messages import (
    AlIndex,
    AnyAlgorithm,
    AskLoad,
    AskRate,
    Bundle,
    CellName,
    Contents,
    Finger,
    ForgetQuery,
    Halved,
    HandedOn,
    Join,
    Moved,
    Notification,
    Notify,
    PeerLoad,
    Query,
    QueryIndexed,
    Rate,
    RemoveQuery,
    StreamTuple,
    VlIndex,
)
from protocols.ids import PeerId
from protocols.join_index.keys import value_key
from protocols.join_index.messages import Attribute
from protocols.messages import Message
from queries.catalogue import Stream
from queries.plan import output_schema
from queries.schema import Schema
from tests.experiments.cqdht.network import Network

FIGURES = sorted((Path(__file__).parent / "figures").glob("*.txt"))
STREAMS = {
    "R": Stream("R", Schema.parse("A int, B int")),
    "S": Stream("S", Schema.parse("D int, E int")),
    "U": Stream("U", Schema.parse("A int, B int, C int")),
    "V": Stream("V", Schema.parse("D int, E int, F int")),
}
ATTRIBUTES = [Attribute(name, path) for name, stream in STREAMS.items() for path in leaves(stream.schema)]
WIDTH = 36


class Story:
    """One figure played on a calm network of eight peers, N1 to N8."""

    def __init__(self) -> None:
        self.network = Network(STREAMS, peers=8, limits=JoinLimits(busy_above=3))
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
            case Bundle(value=value):
                name = f"cells of {value[1:]}"
            case _:
                return self.names[to]
        return f"{name} ({self.names[to]})"

    def _about(self, message: Message) -> str:
        match message:
            case AlIndex(tuple=each) | VlIndex(tuple=each):
                return self._shown(each)
            case Join(trigger=trigger, rewritten=rewritten):
                return f"{', '.join(each.query.id for each in rewritten)} with {self._shown(trigger)}"
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
        return self._about_cells(message)

    def _about_cells(self, message: Message) -> str:
        match message:
            case Bundle(trigger=trigger, shares=shares):
                queries = [query.id for share in shares for each in share.plans for query in each.queries]
                own = [f"by {_named(share.cell)}" for share in shares if share.keep_ms is not None]
                return f"{', '.join([*queries, *own])} with {self._shown(trigger)}"
            case HandedOn(value=value, cells=cells, peer=peer):
                return f"{value[1:]}: {', '.join(_named(cell) for cell, _ in cells)} to {self.names[peer]}"
            case Halved(value=value, cell=cell, bits=bits):
                return f"{value[1:]}: {_named(cell)}, {bits} times"
            case Moved(cells=cells):
                return "; ".join(f"{each.value[1:]}: {_named(each.cell)}: {self._inside(each)}" for each in cells)
            case AskLoad():
                return ""
            case PeerLoad(load=load):
                return f"{load}"
        raise AssertionError(f"no words for {message}")

    def _shown(self, each: StreamTuple) -> str:
        (row,) = STREAMS[each.id.stream].schema.decode(each.row)
        return f"{each.id.stream}{row}"

    def _inside(self, each: Contents) -> str:
        queries = [
            f"{query.id} with {self._shown(trigger)}"
            for triggered in each.queries
            for plans in triggered.plans
            for query in plans.queries
            for trigger in triggered.by
        ]
        return ", ".join([*queries, *(self._shown(of) for of, _ in each.tuples)])

    def _result(self, each: Notification) -> str:
        _, plan = self.network.plans[each.query]
        (row,) = output_schema(plan).decode(each.row)
        return f"{each.query} {row}"

    def _place(self, key: bytes) -> str:
        """Who is evaluator of what, by the JOIN that asked."""
        values = [f"n{value}" for value in range(10)]
        names = [CellName(at, part) for at in ATTRIBUTES for part in range(4)]
        cells = {_named(name, value): cell_key(value, name) for value in values for name in names}
        return next(name for name, each in {**self.joined, **cells}.items() if each == key)

    @property
    def joined(self) -> dict[str, bytes]:
        found = (re.search(r"-> (\S*)=(\S+) \(.*JOIN", line) for line in self.lines)
        every = [match for match in found if match]
        places = {f"{match[1]}={match[2]}": (match[1], f"n{match[2]}") for match in every}
        return {name: value_key(None if not at else _attribute(at), value) for name, (at, value) in places.items()}


def _named(cell: CellName, value: str = "") -> str:
    """A cell that was cut off has a number; all others of a value have one key."""
    if value and not cell.part:
        return f"cells of {value[1:]}"
    return " ".join(filter(None, (value[1:], str(cell.at), f"part {cell.part}" if cell.part else "")))


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
