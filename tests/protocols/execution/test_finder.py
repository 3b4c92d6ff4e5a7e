"""The finder of queries: what it asks of proxies and answers to other peers, when messages are lost, late or twice."""

from __future__ import annotations

import random

import msgspec
import pytest

from overlay.router import MESSAGE_BYTES_MAX
from protocols.catalogue.events import QueriesFound, QueryEntry, QueryLookupFailed
from protocols.effects import Blame, Effect, Reply, Send, Tell
from protocols.events import Answered, PeerDown, Received, TimerFired, Unreachable
from protocols.execution.finder import (
    ANSWER_BYTES_MAX,
    ANSWERS_KEPT,
    ASK_AGAIN_MS,
    ASKED_EACH_MAX,
    LISTED_WITHIN_MS,
    NOT_ASKED,
    PROXY_DOWN,
    SHOWN_WITHIN_MS,
    TICK,
)
from protocols.execution.messages import (
    AskProxy,
    ListQueries,
    NotHere,
    ProxyAnswer,
    QueriesListed,
    QueryListed,
    QueryShown,
    ShowQuery,
    StopQuery,
)
from protocols.execution.refusals import QUERIES_MAX
from protocols.ids import PeerId
from protocols.messages import Command, Done, Refused
from protocols.peer import Peer
from protocols.wire import MESSAGES

US, PROXY, OTHER = (PeerId(bytes([digit]) * 20) for digit in (0x11, 0x22, 0x33))
SHOWN = QueryShown(
    query="q",
    stream="q.1",
    text="SELECT 1",
    state="running",
    attempt=7,
    reason="",
    inserted_at=5,
    results=3,
    subgraphs=(),
)


def entry(proxy: PeerId, name: str = "q", inserted_at: int = 5) -> QueryEntry:
    stream = f"{name}.{proxy.short}"
    return QueryEntry(name=name, stream=stream, proxy=proxy, text="SELECT 1", inserted_at=inserted_at, reads=("s",))


class Finding:
    """The finder of one peer; the test is the directory, the proxies and the clock."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000
        self.peer = Peer(US, random.Random(1))
        self.finder = self.peer.finder

    def handle(self, event: object) -> list[Effect]:
        effects = self.finder.handle(event, self.now)  # type: ignore[arg-type]
        self.finder.validate()
        return effects

    def look_up(self, command: Command, *found: QueryEntry) -> list[Effect]:
        """A client's command, up to what follows from the answer of the directory."""
        assert isinstance(command, ShowQuery | StopQuery | ListQueries)
        self.handle(NotHere(9, command, ("mine",)))
        (number,) = (*self.finder._lookups, *self.finder._listings)
        return self.handle(QueriesFound(("finder", number), found))

    def asked(self, effects: list[Effect]) -> AskProxy:
        (message,) = [each.message for each in effects if isinstance(each, Send)]
        assert isinstance(message, AskProxy)
        return message

    def hear(self, sender: PeerId, message: AskProxy | ProxyAnswer) -> list[Effect]:
        return self.handle(Received(sender, message))

    def tick(self, after_ms: int) -> list[Effect]:
        self.now += after_ms
        return self.handle(TimerFired(TICK))


def test_a_proxy_is_asked_with_a_name_that_only_it_has_and_its_answer_goes_to_the_client_once():
    finding = Finding()
    ask = finding.asked(finding.look_up(ShowQuery(query="q@22"), entry(PROXY), entry(OTHER)))
    assert ask.command == ShowQuery(query=f"q@{PROXY.hex()}")
    answer = ProxyAnswer(number=ask.number, answer=SHOWN)
    assert finding.hear(OTHER, answer) == [], "it was not asked"
    (reply,) = finding.hear(PROXY, answer)
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, QueryShown)
    assert (reply.request, reply.answer.proxy, reply.answer.results) == (9, PROXY, 3)
    assert finding.hear(PROXY, answer) == []


def test_a_question_is_repeated_until_its_time_is_up():
    finding = Finding()
    ask = finding.asked(finding.look_up(ShowQuery(query="q"), entry(PROXY)))
    assert Send(PROXY, ask) in finding.tick(ASK_AGAIN_MS)
    reply, *_ = finding.tick(SHOWN_WITHIN_MS)
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, Refused)
    assert reply.answer.error == 'query "q": its proxy 22222222 does not answer'
    assert finding.finder._asked == {}


@pytest.mark.parametrize("is_down", [False, True])
def test_a_proxy_that_is_known_to_be_away_is_not_waited_for(is_down: bool):
    finding = Finding()
    ask = finding.asked(finding.look_up(StopQuery(query="q"), entry(PROXY)))
    assert finding.handle(PeerDown(OTHER)) == []
    (reply,) = finding.handle(PeerDown(PROXY) if is_down else Unreachable(PROXY, ask))
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, Refused)
    assert reply.answer.hint.startswith("Stop it once that peer is back.")


def test_what_nobody_has_is_not_known():
    finding = Finding()
    (reply,) = finding.look_up(StopQuery(query="q@22"), entry(OTHER))
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, Refused)
    assert (reply.answer.error, reply.answer.detail) == ('query "q@22" is not known', "Queries of this peer: mine.")


@pytest.mark.parametrize("proxy", [US, PROXY])
def test_what_is_in_the_directory_and_not_at_its_proxy_may_be_lost_and_its_results_at_their_backup(proxy: PeerId):
    finding = Finding()
    replicated = msgspec.structs.replace(entry(proxy), durability="replicated")
    effects = finding.look_up(ShowQuery(query="q"), replicated)
    if proxy != US:
        number = finding.asked(effects).number
        effects = finding.hear(PROXY, ProxyAnswer(number=number, answer=Refused(code="unknown", error="what is q?")))
    (reply,) = effects
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, Refused)
    assert reply.answer.error == f'query "q" is not known at its proxy {proxy.short}'
    assert reply.answer.hint.endswith(f'peer subscribe "q.{proxy.short}" --since start')


def test_a_directory_that_does_not_answer_is_not_an_empty_one():
    finding = Finding()
    for command in (ShowQuery(query="q"), ListQueries(everywhere=True)):
        finding.handle(NotHere(9, command, ()))
        (number,) = (*finding.finder._lookups, *finding.finder._listings)
        (reply,) = finding.handle(QueryLookupFailed(("finder", number), "too few"))
        assert isinstance(reply, Reply)
        assert isinstance(reply.answer, Refused)
        assert (reply.answer.code, reply.answer.retry_after_ms) == ("unavailable", 1000)


def test_a_list_has_what_proxies_say_and_of_the_silent_what_the_directory_says():
    finding = Finding()
    entries = (entry(PROXY, "there", 4), entry(PROXY, "over", 5), entry(OTHER, "silent", 6), entry(US, "gone", 7))
    effects = finding.look_up(ListQueries(everywhere=True), *entries)
    asks = {each.peer: each.message for each in effects if isinstance(each, Send)}
    assert list(asks) == [PROXY, OTHER]
    (own,) = finding.peer.inside.roles
    mine = QueryListed("mine", "mine.1", "SELECT 2", "running", 1, 8, 9, US)
    assert finding.handle(Answered(own, QueriesListed(queries=(mine,)), last=True)) == []
    there = QueryListed("there", "there.22222222", "SELECT 1", "waiting", 0, 2, 4, None)
    ask = asks[PROXY]
    assert isinstance(ask, AskProxy)
    assert finding.hear(PROXY, ProxyAnswer(number=ask.number, answer=QueriesListed(queries=(there,)))) == []
    reply, *_ = finding.tick(LISTED_WITHIN_MS)
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, QueriesListed)
    assert [(each.query, each.state, each.proxy) for each in reply.answer.queries] == [
        ("there", "waiting", PROXY),
        ("silent", PROXY_DOWN, OTHER),
        ("mine", "running", US),
    ]
    assert finding.finder._listings == {}


def test_a_question_of_another_peer_is_asked_here_once_however_often_it_comes():
    finding = Finding()
    ask = AskProxy(number=5, command=StopQuery(query="q"))
    assert len(finding.hear(OTHER, ask)) == 1
    assert finding.hear(OTHER, ask) == []
    (request,) = finding.peer.inside.roles
    told = Send(OTHER, ProxyAnswer(number=5, answer=Done(stamp=8)))
    assert finding.handle(Answered(request, Done(stamp=8), last=True)) == [told]
    assert finding.hear(OTHER, ask) == [told], "its answer was lost"
    for number in range(10, 10 + ANSWERS_KEPT):
        finding.hear(OTHER, AskProxy(number=number, command=ListQueries()))
        request = min(finding.peer.inside.roles)
        finding.handle(Answered(request, QueriesListed(queries=()), last=True))
    assert len(finding.finder._answered) == ANSWERS_KEPT


def test_one_peer_does_not_take_the_turns_of_all_others():
    finding = Finding()
    for number in range(ASKED_EACH_MAX):
        (effect,) = finding.hear(OTHER, AskProxy(number=number, command=StopQuery(query="q")))
        assert isinstance(effect, Tell)
    (busy,) = finding.hear(OTHER, AskProxy(number=ASKED_EACH_MAX, command=StopQuery(query="q")))
    assert isinstance(busy, Send)
    assert isinstance(busy.message, ProxyAnswer)
    assert isinstance(busy.message.answer, Refused)
    assert busy.message.answer.code == "busy"
    (effect,) = finding.hear(PROXY, AskProxy(number=1, command=StopQuery(query="q")))
    assert isinstance(effect, Tell)


def test_an_answer_that_fits_no_message_is_refused_where_it_is_made():
    finding = Finding()
    finding.hear(OTHER, AskProxy(number=5, command=ShowQuery(query="q")))
    (request,) = finding.peer.inside.roles
    large = QueryShown(
        query="q",
        stream="q.1",
        text="a" * ANSWER_BYTES_MAX,
        state="running",
        attempt=7,
        reason="",
        inserted_at=5,
        results=3,
        subgraphs=(),
    )
    (told,) = finding.handle(Answered(request, large, last=True))
    assert isinstance(told, Send)
    assert isinstance(told.message, ProxyAnswer)
    assert isinstance(told.message.answer, Refused)


@pytest.mark.parametrize(("name_characters", "is_whole"), [(64, True), (200, False)])
def test_of_very_many_queries_a_proxy_tells_what_fits_and_the_directory_has_the_rest(
    name_characters: int, is_whole: bool
):
    names = [f"{number:0{name_characters}}" for number in range(QUERIES_MAX)]
    text = "SELECT long FROM text WHERE " + "a > 1 AND " * 20
    rows = tuple(QueryListed(name, f"{name}.1", text, "running", 1, 2, place) for place, name in enumerate(names))
    proxy, asker = Finding(), Finding()
    proxy.hear(OTHER, AskProxy(number=5, command=ListQueries()))
    (request,) = proxy.peer.inside.roles
    (told,) = proxy.handle(Answered(request, QueriesListed(queries=rows), last=True))
    assert isinstance(told, Send)
    assert isinstance(told.message, ProxyAnswer)
    assert isinstance(told.message.answer, QueriesListed)
    assert len(MESSAGES.encode(told.message)) < MESSAGE_BYTES_MAX
    assert (told.message.answer.is_whole, len(told.message.answer.queries) == len(rows)) == (is_whole, is_whole)

    entries = [
        QueryEntry(name=name, stream=f"{name}.1", proxy=PROXY, text="SELECT …", inserted_at=place, reads=("s",))
        for place, name in enumerate([*names, "over"])
    ]
    ask = asker.asked(asker.look_up(ListQueries(everywhere=True), *entries))
    (own,) = asker.peer.inside.roles
    assert asker.handle(Answered(own, QueriesListed(queries=()), last=True)) == []
    (reply,) = asker.hear(PROXY, ProxyAnswer(number=ask.number, answer=told.message.answer))
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, QueriesListed)
    # Whether a query of an incomplete list is over, its proxy has not said.
    assert [each.query for each in reply.answer.queries] == ([*names] if is_whole else [*names, "over"])
    assert {each.text for each in reply.answer.queries} == {"SELECT …"}
    assert {each.state for each in reply.answer.queries} == {"running"} | (set() if is_whole else {NOT_ASKED})


@pytest.mark.parametrize(
    "mistake",
    [
        AskProxy(number=1, command=ListQueries(everywhere=True)),
        AskProxy(number=1, command=ShowQuery(query="q" * 300)),
        ProxyAnswer(number=1, answer=Done(stamp=-1)),
        ProxyAnswer(number=1, answer=QueriesListed(queries=(QueryListed("q", "q.1", "", "running", 0, -2, 1),))),
    ],
)
def test_a_message_without_sense_is_the_mistake_of_its_sender(mistake: AskProxy | ProxyAnswer):
    finding = Finding()
    (blame,) = finding.peer.handle(Received(OTHER, mistake), finding.now)
    assert isinstance(blame, Blame)
    assert blame.peer == OTHER


def test_an_answer_to_another_question_is_the_mistake_of_its_sender():
    finding = Finding()
    ask = finding.asked(finding.look_up(ShowQuery(query="q"), entry(PROXY)))
    (blame,) = finding.peer.handle(Received(PROXY, ProxyAnswer(number=ask.number, answer=Done(stamp=1))), finding.now)
    assert isinstance(blame, Blame)
