"""The paper's figures 1 to 4 and its section 6, played by the machines that peers run: golden conversations.

The steps are those of tests/experiments/cqdht/figures, where the paper's own machines play them. A line that starts
with ==== is done, what follows is said. Each departure from the paper's conversation is a test with its reason.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest

from protocols.delivery.messages import Batch
from protocols.ids import PeerId, distance
from protocols.join_index.heavy import evaluators_of
from protocols.join_index.keys import value_key, value_text
from protocols.join_index.messages import (
    AskEvaluators,
    Attribute,
    Covered,
    Evaluators,
    IndexQuery,
    JoinId,
    JoinResults,
    Load,
    Notified,
    Parcel,
    QueryIndexed,
    Receipt,
    RemoveQuery,
)
from protocols.join_index.rewriter import RELEASED_MS
from protocols.join_index.selections import Member
from protocols.messages import Message
from protocols.subgraphs import Algorithm
from queries.catalogue import Stream
from queries.plan import output_schema
from queries.schema import Schema
from tests.protocols.join_index.network import Network

HERE = Path(__file__).parent / "figures"
PAPERS = Path(__file__).parents[2] / "experiments" / "cqdht" / "figures"
FIGURES = ("1-tuple", "2-sai", "3-dai-q", "3-dai-t", "4-dai-t", "6-dai-v")
STREAMS = {
    "R": Stream("R", Schema.parse("A int, B int")),
    "S": Stream("S", Schema.parse("D int, E int")),
    "U": Stream("U", Schema.parse("A int, B int, C int")),
    "V": Stream("V", Schema.parse("D int, E int, F int")),
}
S_E = Attribute("S", ("E",))
WIDTH = 36


class Story:
    """One figure played by eight peers, N1 to N8."""

    def __init__(self) -> None:
        self.network = Network(STREAMS)
        self.network.on_message = self._said
        self.network.on_read = self._read
        self.names = {peer: f"N{number}" for number, peer in enumerate(self.network.ids, 1)}
        self.peers = {name: peer for peer, name in self.names.items()}
        self.lines: list[str] = []
        self._groups: dict[bytes, str] = {}

    def play(self, command: str) -> None:
        self.lines.append(f"==== {command}")
        verb, who, rest = command.split(" ", 2)
        peer = self.peers[who]
        if verb == "publish":
            found = re.fullmatch(r"(\w+)\((.*)\)", rest)
            assert found, rest
            self.network.publish(found[1], tuple(int(value) for value in found[2].split(",")), peer)
        elif verb == "pose":
            algorithm, text = rest.split(" ", 1)
            self.network.pose(text, cast("Algorithm", algorithm.removesuffix("-once")), peer)
        else:
            assert verb == "stop", verb
            self.network.stop(rest, peer)

    def _read(self, reader: PeerId, batch: Batch) -> None:
        origin = batch.origin
        shown = self._rows(Load(None, b"", 0, STREAMS[origin.stream].schema, origin, 0, (), (), batch.rows))[0]
        self._line(f"log at {self.names[origin.publisher]} -> {self.names[reader]}", "BATCH", shown)

    def _said(self, sender: PeerId, to: PeerId, message: Message) -> None:
        if isinstance(message, IndexQuery):
            self._groups[Member(message.query).group] = _plain(message.query.id)
        way = f"{self.names[sender]} -> {self._towards(to, message)}"
        self._line(way, str(message.__struct_config__.tag), self._about(message))

    def _line(self, way: str, tag: str, about: str) -> None:
        self.lines.append(f"{way:<{WIDTH}}{tag:<13} {about}".rstrip())

    def _towards(self, to: PeerId, message: Message) -> str:
        """The peer, and what it is addressed for."""
        match message:
            case IndexQuery(query=query, side=side):
                return f"{Member(query).attributes[side]} ({self.names[to]})"
            case Parcel(loads=loads) if loads:
                values = {f"{load.at or ''}={value[1:]}": None for load in loads for value in load.values}
                return f"{', '.join(values)} ({self.names[to]})"
        return self.names[to]

    def _about(self, message: Message) -> str:
        match message:
            case IndexQuery(query=query, side=side, rewrites=rewrites):
                what = "" if rewrites else ", to be read only"
                return f"{_plain(query.id)} by its {('left', 'right')[side]} side{what}"
            case AskEvaluators(query=query) | QueryIndexed(query=query) | RemoveQuery(query=query):
                return _plain(query)
            case Evaluators(query=query, peers=peers):
                return f"{_plain(query)}: {', '.join(sorted(self.names[peer] for peer in peers))}"
            case Parcel():
                return self._inside(message)
            case Receipt(sent=sent):
                return "".join(f"results up to {each.sequence} have left" for each in sent)
            case Covered(covers=covers, sent=numbers):
                read = [f"{each.origin.stream} of {self.names[each.origin.publisher]}" for each in covers]
                sent = [f"{each.sequence} by {self.names[each.peer]}" for each in numbers if each.sequence]
                return f"{', '.join(read)}; results: {', '.join(sent) or 'none'}"
            case JoinResults(results=results):
                return ", ".join(
                    f"{_plain(each.query)} {row}"
                    for each in results
                    for row in output_schema(self.network.plans[_plain(each.query)]).decode(each.rows)
                )
            case Notified():
                return ""
        raise AssertionError(f"no words for {message}")

    def _inside(self, parcel: Parcel) -> str:
        said = [f"new: {_plain(query.id)}" for query in parcel.queries]
        for load in parcel.loads:
            said += [f"{self._groups[load.group]} with {row}" if load.group else row for row in self._rows(load)]
        said += [f"over: {_plain(query)}" for query in parcel.over]
        return "; ".join([*said, *(f"released: {_plain(query)}" for query in parcel.released)])

    def _rows(self, load: Load) -> list[str]:
        return [f"{load.origin.stream}{row}" for row in load.schema.decode(load.rows)]


def _plain(query: JoinId) -> str:
    """Without the number of the attempt."""
    return query.partition("~")[0]


def steps(text: str) -> list[str]:
    return re.findall(r"^==== (.*)$", text, flags=re.MULTILINE)


def told(text: str, tag: str) -> list[str]:
    """The results in the conversation of a figure."""
    lines = re.findall(rf" {tag} +(.*)$", text, flags=re.MULTILINE)
    return sorted(result for line in lines for result in re.findall(r"q\d \([^)]*\)", line))


def played(figure: str) -> Story:
    story = Story()
    for step in steps((HERE / f"{figure}.txt").read_text()):
        story.play(step)
    return story


@pytest.mark.parametrize("figure", FIGURES)
def test_the_conversation_is_that_of_the_figure(figure: str, rewrite: bool) -> None:
    path = HERE / f"{figure}.txt"
    head = path.read_text().partition("\n====")[0]
    now = "\n".join([head.rstrip(), *played(figure).lines, ""])
    if rewrite:
        path.write_text(now)
    assert path.read_text() == now


@pytest.mark.parametrize("figure", FIGURES)
def test_steps_and_results_are_those_of_the_papers_machines(figure: str) -> None:
    live, papers = ((folder / f"{figure}.txt").read_text() for folder in (HERE, PAPERS))
    assert steps(live) == steps(papers)
    if figure != "4-dai-t":  # Its departure is below.
        assert told(live, "JOIN_RESULTS") == told(papers, "NOTIFY")


# Departures.


def test_a_tuple_that_no_query_waits_for_is_not_sent() -> None:
    """Figure 1 sends 2h messages for each tuple. A peer keeps a tuple in its log, and rewriters read it from there.

    A log can be read again after a crash; a tuple that was sent once cannot.
    """
    assert played("1-tuple").lines == ["==== publish N1 R(4, 7)"]


def test_sai_asks_the_catalogue_for_rates_and_has_both_rewriters_read() -> None:
    """Section 4.1 asks both rewriters (ASK_RATE) and indexes the query at one of them.

    The catalogue knows the rates of every stream, so no rewriter is asked. The other side's rewriter must know the
    query all the same: publishers do not index tuples by value, so it sends them on.
    """
    said = "\n".join(played("2-sai").lines)
    assert "RATE" not in said
    queries = re.findall(r"^N1 -> (\S+) .*QUERY +(q1 .*)$", said, flags=re.MULTILINE)
    assert queries == [("R.B", "q1 by its left side"), ("S.E", "q1 by its right side, to be read only")]


@pytest.mark.parametrize(("figure", "parcels"), [("2-sai", 4), ("3-dai-q", 4), ("3-dai-t", 4), ("6-dai-v", 2)])
def test_a_tuple_goes_out_for_queries_only_and_from_the_rewriter(figure: str, parcels: int) -> None:
    """The publisher of the paper sends a tuple to the evaluators of all its values (VL_INDEX), wanted or not.

    Here its rewriter sends it on, one hop later: once in SAI and DAI-V, twice in DAI-Q and DAI-T.
    """
    lines = [line for line in played(figure).lines if re.search(r" PARCEL +.*[RSUV]\(", line)]
    assert len(lines) == parcels
    assert all(re.match(r"N[248] -> ", line) for line in lines), "R.B is at N8, S.E at N2, U.B and V.E at N4"


def test_evaluators_are_known_from_the_start_and_take_turns() -> None:
    """The paper routes a JOIN to the peer nearest to the value's key, and learns it by FINGER.

    The rewriter of the attribute where both sides meet names all evaluators of an attempt, so both rewriters agree
    whoever comes and goes, and no finger has to be learnt. The key, modulo their number, chooses one of them: so each
    has as many keys as the others.
    """
    story = played("2-sai")
    named = [line[WIDTH:].split() for line in story.lines if " EVALUATORS " in line]
    assert named[0] == "EVALUATORS q1: N1, N2, N3, N4, N5, N6, N7".split()
    key = value_key(S_E, value_text(7))
    (evaluator,) = evaluators_of(key, sorted(story.network.ids[:-1]))
    assert evaluator != min(story.network.ids, key=lambda peer: distance(peer, key))
    assert any(f"-> S.E=7 ({story.names[evaluator]})" in line for line in story.lines)
    assert not any("FINGER" in line for line in story.lines)


def test_every_trigger_is_sent_and_every_pair_is_told() -> None:
    """Figure 4 sends equal rewritten queries once, and so tells only some of the pairs of equal tuples.

    A query here means a bag of results: two equal tuples make two of them, wherever the query runs.
    """
    live, papers = ((folder / "4-dai-t.txt").read_text() for folder in (HERE, PAPERS))
    assert (len(told(live, "JOIN_RESULTS")), len(told(papers, "NOTIFY"))) == (4, 3)


@pytest.mark.parametrize("figure", FIGURES[1:])
def test_what_must_not_get_lost_is_acknowledged(figure: str) -> None:
    """The paper trusts its network. Here parcels are sent until RECEIPT, results until NOTIFIED.

    COVERED says how far a rewriter is, so that the next attempt need not tell the same results again.
    """
    tags = [line[WIDTH:].split()[0] for line in played(figure).lines if not line.startswith("====")]
    assert tags.count("JOIN_RESULTS") == tags.count("NOTIFIED") > 0
    assert tags.count("RECEIPT") >= tags.count("JOIN_RESULTS")
    assert "COVERED" in tags


def test_a_subscriber_ends_its_query_at_the_evaluators_itself() -> None:
    """The paper does not speak of removal. A message to a rewriter that has just died would leave state behind.

    So the subscriber tells every evaluator, and the rewriters repeat it for a while.
    """
    story = played("2-sai")
    ended = [line.split()[2] for line in story.lines if line.endswith("over: q1")]
    assert sorted(ended) == [story.names[peer] for peer in story.network.ids[:-1]]
    story.network.wait(RELEASED_MS + 1)
    story.network.wait(1)
    assert all(machine.is_empty() for machine in story.network.machines.values())
