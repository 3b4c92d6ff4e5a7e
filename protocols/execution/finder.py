"""Queries of other peers: finds the proxy of a query that a client names, and has it do what the client asks.

client ── SHOW_QUERY, STOP, LIST_QUERIES ──▶ this peer ── ASK_PROXY ──▶ proxy ── PROXY_ANSWER ──▶ this peer ──▶ client

A name with an @ and the beginning of a peer's id ("busy@1a57fae9") means the query of that peer.
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass, field
from typing import ClassVar, Final

import msgspec

from protocols.catalogue.events import LookupFailed, QueriesFound, QueryEntry, QueryLookupFailed, StreamFound
from protocols.catalogue.machine import CatalogueMachine
from protocols.catalogue.queries import TEXT_LISTED, shortened
from protocols.clock import HybridClock, Stamp
from protocols.effects import Effect, Reply, Send, SetTimer
from protocols.errors import expect
from protocols.events import Answered, Event, PeerDown, Received, TimerFired, Unreachable
from protocols.execution.adopter import backup_of
from protocols.execution.messages import (
    AdoptQuery,
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
from protocols.execution.refusals import (
    ambiguous_query,
    directory_silent,
    lost_query,
    not_adopted,
    proxy_busy,
    proxy_silent,
    too_large_to_show,
    unknown_query,
)
from protocols.ids import Millis, PeerId, RequestId
from protocols.inside import Inside, Questions
from protocols.messages import Answer, Done, Refused
from protocols.role import Owned

ROLE: Final = "finder"
TICK: Final = f"{ROLE}/tick"
TICK_MS: Final = 500
ASK_AGAIN_MS: Final = 1000
LISTED_WITHIN_MS: Final = 3000
SHOWN_WITHIN_MS: Final = 5000
ADOPTED_WITHIN_MS: Final = 20_000  # The network decides who goes on.
STOPPED_WITHIN_MS: Final = 20_000  # The proxy drops the stream of the results first.
PROXIES_ASKED_MAX: Final = 256
ASKED_MAX: Final = 256  # Questions of other peers that are open here.
ASKED_EACH_MAX: Final = 64  # Of one peer: another one has its turn.
ANSWERS_KEPT: Final = 64  # For questions that are repeated because the answer was lost.
ANSWER_BYTES_MAX: Final = 1 << 20
PROXY_DOWN: Final = "proxy is down"  # In place of a query's state.
NOT_ASKED: Final = "not asked"
OWN: Final = "own"  # Purposes of questions inside this peer: our own queries, for a list,
HERE: Final = "here"  # what another peer asked for,
ADOPT: Final = "adopt"  # and that our backup of a query takes it over.

_encode: Final = msgspec.msgpack.Encoder(enc_hook=bytes).encode


@dataclass(slots=True)
class _Asked:
    """A question to a proxy."""

    proxy: PeerId
    command: ShowQuery | StopQuery | ListQueries | AdoptQuery
    entry: QueryEntry
    then: RequestId | _Listing  # Who waits for the answer.
    until: Millis
    again_at: Millis


@dataclass(slots=True)
class _Listing:
    """A list of all queries, on its way."""

    request: RequestId
    entries: tuple[QueryEntry, ...] | None = None
    own: QueriesListed | None = None
    waiting: dict[PeerId, None] = field(default_factory=dict)  # Proxies that have not answered yet.
    found: dict[PeerId, QueriesListed] = field(default_factory=dict)
    silent: dict[PeerId, None] = field(default_factory=dict)

    def listed(self, peer_id: PeerId) -> QueriesListed:
        """All queries, oldest first. What its proxy says of a query holds; the directory speaks for the silent."""
        assert self.own is not None
        entries = {each.stream: each for each in self.entries or ()}
        rows = {each.stream: each for each in self.own.queries}
        for proxy, listed in self.found.items():
            for row in listed.queries:
                text = row.text or (entries[row.stream].text if row.stream in entries else "")
                rows[row.stream] = msgspec.structs.replace(row, text=text, proxy=proxy)
        for each in entries.values():
            listed_by = self.found.get(each.proxy)
            has_ended = each.proxy == peer_id or (listed_by is not None and listed_by.is_whole)
            if each.stream not in rows and not has_ended:
                state = PROXY_DOWN if each.proxy in self.silent else NOT_ASKED
                rows[each.stream] = QueryListed(
                    each.name, each.stream, each.text, state, 0, 0, each.inserted_at, each.proxy
                )
        return QueriesListed(queries=tuple(sorted(rows.values(), key=lambda each: (each.inserted_at, each.stream))))


@dataclass(slots=True)
class QueryFinder:
    """Asks the proxies of queries that are not this peer's, and answers other peers that ask this one.

    In:        what the proxy of this peer does not know (NotHere); the directory; ASK_PROXY, PROXY_ANSWER
    Out:       QUERY_SHOWN, QUERIES, DONE, REFUSED to clients; ASK_PROXY, PROXY_ANSWER
    Keeps:     questions until they are answered or their time is up
    Invariant: every question of a client is answered once
    """

    owned: ClassVar[Owned] = Owned(ROLE, messages=(AskProxy, ProxyAnswer), events=(NotHere,))

    peer_id: PeerId
    catalogue: CatalogueMachine
    clock: HybridClock
    inside: Inside
    _lookups: dict[Stamp, NotHere] = field(default_factory=dict)  # Waiting for the directory.
    _listings: dict[Stamp, _Listing] = field(default_factory=dict)
    _adoptions: dict[Stamp, tuple[RequestId, QueryEntry]] = field(default_factory=dict)  # Waiting for the catalogue.
    _asked: dict[Stamp, _Asked] = field(default_factory=dict)
    _questions: Questions = field(init=False)
    _open: dict[str, tuple[PeerId, Stamp]] = field(default_factory=dict)  # What other peers asked, by name of question.
    _answered: dict[str, ProxyAnswer] = field(default_factory=dict)
    _is_ticking: bool = False

    def __post_init__(self) -> None:
        self._questions = Questions(self.inside, ROLE)

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case NotHere():
                return self._look_up(event, now)
            case StreamFound() | LookupFailed():
                return self._backup_found(event, now)
            case QueriesFound() | QueryLookupFailed():
                return self._looked_up(event, now)
            case Received(sender=sender, message=ProxyAnswer() as message):
                return self._heard(sender, message, now)
            case Received(sender=sender, message=AskProxy() as message):
                return self._ask_here(sender, message)
            case Answered(request=request, answer=answer):
                owner = self._questions.owner_of(request)
                match self._questions.take(request):
                    case "own":
                        return self._listed_own(owner, answer)
                    case "adopt":
                        return [Reply(int(owner), answer)]
                return self._answer(owner, answer)
            case Unreachable(peer=peer, message=AskProxy(number=number)):
                asked = self._asked.get(number)
                return self._give_up(number, now) if asked is not None and asked.proxy == peer else []
            case PeerDown(peer=peer):
                lost = [number for number, asked in self._asked.items() if asked.proxy == peer]
                return [effect for number in lost for effect in self._give_up(number, now)]
            case TimerFired():
                return self._tick(now)
        return []

    # For our clients.

    def _look_up(self, event: NotHere, now: Millis) -> list[Effect]:
        number = self.clock.tick(now)
        if isinstance(event.command, ListQueries):
            self._listings[number] = _Listing(event.request)
            own = self._questions.ask(str(number), OWN, ListQueries())
            return own + self.catalogue.queries.all((ROLE, number), now)
        self._lookups[number] = event
        return self.catalogue.queries.named(event.command.query.partition("@")[0], (ROLE, number), now)

    def _looked_up(self, event: QueriesFound | QueryLookupFailed, now: Millis) -> list[Effect]:
        number = int(event.token[1])
        if (listing := self._listings.get(number)) is not None:
            if isinstance(event, QueriesFound):
                return self._ask_all(number, listing, event.entries, now)
            del self._listings[number]
            return [Reply(listing.request, directory_silent("", event.reason))]
        waiting = self._lookups.pop(number, None)
        if waiting is None or isinstance(waiting.command, ListQueries):
            return []
        request, command = waiting.request, waiting.command
        if isinstance(event, QueryLookupFailed):
            return [Reply(request, directory_silent(command.query, event.reason))]
        meant = {each.proxy: each for each in event.entries if _is_meant(each, command)}
        is_adoption = isinstance(command, AdoptQuery)  # A proxy that has lost its disk may be this very peer.
        there = {proxy: each for proxy, each in meant.items() if proxy != self.peer_id or is_adoption}
        if not there:  # The proxy of this peer has been asked before: what it does not know is gone.
            ours = meant.get(self.peer_id)
            refusal = lost_query(ours) if ours is not None else unknown_query(command.query, waiting.known)
            return [Reply(request, refusal)]
        if len(there) > 1:
            return [Reply(request, ambiguous_query(command.query, list(there)))]
        (entry,) = there.values()
        if is_adoption:
            return self._find_backup(number, entry, request, now)
        within_ms = STOPPED_WITHIN_MS if isinstance(command, StopQuery) else SHOWN_WITHIN_MS
        exact = msgspec.structs.replace(command, query=f"{entry.name}@{entry.proxy.hex()}")
        return self._ask(entry, exact, request, within_ms, now)

    def _find_backup(self, number: Stamp, entry: QueryEntry, request: RequestId, now: Millis) -> list[Effect]:
        if entry.durability != "replicated":
            hint = "Its results were on the disk of its proxy alone. Submit it again."
            return [Reply(request, not_adopted(entry.name, "it is not replicated", hint))]
        self._adoptions[number] = request, entry
        return self.catalogue.lookup(entry.stream, (ROLE, number), now)

    def _backup_found(self, event: StreamFound | LookupFailed, now: Millis) -> list[Effect]:
        """Ask the backup of a query's results to take the query over."""
        request, entry = self._adoptions.pop(int(event.token[1]))
        if isinstance(event, LookupFailed):
            return [Reply(request, directory_silent(entry.name, event.reason))]
        backup = backup_of(event, entry.proxy)
        if backup is None:
            return [Reply(request, not_adopted(entry.name, "no backup of its results is listed"))]
        command = AdoptQuery(query=f"{entry.name}@{entry.proxy.hex()}")
        if backup == self.peer_id:
            return self._questions.ask(str(request), ADOPT, command)
        asked = msgspec.structs.replace(entry, proxy=backup)
        return self._ask(asked, command, request, ADOPTED_WITHIN_MS, now)

    def _ask(
        self,
        entry: QueryEntry,
        command: ShowQuery | StopQuery | ListQueries | AdoptQuery,
        then: RequestId | _Listing,
        within_ms: Millis,
        now: Millis,
    ) -> list[Effect]:
        number = self.clock.tick(now)
        self._asked[number] = _Asked(entry.proxy, command, entry, then, now + within_ms, now + ASK_AGAIN_MS)
        return [Send(entry.proxy, AskProxy(number=number, command=command)), *self._start_ticking()]

    def _heard(self, sender: PeerId, message: ProxyAnswer, now: Millis) -> list[Effect]:
        asked = self._asked.get(message.number)
        if asked is None or asked.proxy != sender:
            return []  # Too late, or for the second time.
        expect(isinstance(message.answer, (*_ANSWERS[type(asked.command)], Refused)), "an answer to another question")
        del self._asked[message.number]
        answer: Answer = message.answer
        if isinstance(asked.then, _Listing):
            if isinstance(answer, QueriesListed):
                asked.then.found[sender] = answer
            return self._settle(asked.then, sender)
        if isinstance(answer, Refused) and answer.code == "unknown" and not isinstance(asked.command, AdoptQuery):
            answer = lost_query(asked.entry)
        if isinstance(answer, QueryShown):
            answer = msgspec.structs.replace(answer, proxy=sender)
        if isinstance(answer, Done):
            self.clock.witness(answer.stamp)
        return [Reply(asked.then, answer)]

    def _give_up(self, number: Stamp, now: Millis) -> list[Effect]:
        """A proxy does not answer."""
        asked = self._asked.pop(number)
        if isinstance(asked.then, _Listing):
            return self._settle(asked.then, asked.proxy)
        if isinstance(asked.command, AdoptQuery):
            why = f"peer {asked.proxy.short}, its backup, does not answer, or cannot take it over"
            return [Reply(asked.then, not_adopted(asked.entry.name, why))]
        return [Reply(asked.then, proxy_silent(asked.entry, isinstance(asked.command, StopQuery)))]

    # Lists of all queries.

    def _ask_all(self, number: Stamp, listing: _Listing, entries: tuple[QueryEntry, ...], now: Millis) -> list[Effect]:
        listing.entries = entries
        proxies = {each.proxy: each for each in entries if each.proxy != self.peer_id}
        effects: list[Effect] = []
        for proxy in list(proxies)[:PROXIES_ASKED_MAX]:
            listing.waiting[proxy] = None
            effects += self._ask(proxies[proxy], ListQueries(), listing, LISTED_WITHIN_MS, now)
        return effects + self._finish(number)

    def _listed_own(self, owner: str, answer: Answer) -> list[Effect]:
        listing = self._listings.get(int(owner))
        if listing is None:
            return []
        assert isinstance(answer, QueriesListed), "a proxy lists its queries"
        listing.own = answer
        return self._finish(int(owner))

    def _settle(self, listing: _Listing, proxy: PeerId) -> list[Effect]:
        """A proxy has answered, or will not."""
        listing.waiting.pop(proxy, None)
        if proxy not in listing.found:
            listing.silent[proxy] = None
        number = next((number for number, each in self._listings.items() if each is listing), None)
        return self._finish(number) if number is not None else []

    def _finish(self, number: Stamp) -> list[Effect]:
        """Answer once everything is there."""
        listing = self._listings[number]
        if listing.waiting or listing.own is None or listing.entries is None:
            return []
        del self._listings[number]
        return [Reply(listing.request, listing.listed(self.peer_id))]

    # For other peers.

    def _ask_here(self, sender: PeerId, message: AskProxy) -> list[Effect]:
        """The one place where a command of another peer, which is a member, becomes a command at this peer."""
        owner = f"{sender.hex()}/{message.number}"
        if (before := self._answered.get(owner)) is not None:
            return [Send(sender, before)]
        if owner in self._open:
            return []
        of_sender = sum(asker == sender for asker, _ in self._open.values())
        if len(self._open) >= ASKED_MAX or of_sender >= ASKED_EACH_MAX:
            return [Send(sender, ProxyAnswer(number=message.number, answer=proxy_busy(self.peer_id)))]
        self._open[owner] = sender, message.number
        return self._questions.ask(owner, HERE, message.command)

    def _answer(self, owner: str, answer: Answer) -> list[Effect]:
        if owner not in self._open:
            return []
        asker, number = self._open.pop(owner)
        assert isinstance(answer, QueryShown | QueriesListed | Done | Refused), "nothing else answers these commands"
        if isinstance(answer, QueriesListed):
            answer = _fitting(answer)
        if isinstance(answer, QueryShown) and len(_encode(answer)) > ANSWER_BYTES_MAX:
            answer = too_large_to_show(answer.query, self.peer_id)
        message = ProxyAnswer(number=number, answer=answer)
        self._answered[owner] = message
        while len(self._answered) > ANSWERS_KEPT:
            del self._answered[next(iter(self._answered))]
        return [Send(asker, message)]

    # Time.

    def _start_ticking(self) -> list[Effect]:
        if self._is_ticking:
            return []
        self._is_ticking = True
        return [SetTimer(TICK, TICK_MS)]

    def _tick(self, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        for number, asked in list(self._asked.items()):
            if now >= asked.until:
                effects += self._give_up(number, now)
            elif now >= asked.again_at:
                asked.again_at = now + ASK_AGAIN_MS
                effects.append(Send(asked.proxy, AskProxy(number=number, command=asked.command)))
        self._is_ticking = bool(self._asked)
        return [*effects, SetTimer(TICK, TICK_MS)] if self._asked else effects

    def validate(self) -> None:
        assert self._is_ticking or not self._asked, "what is asked of a proxy ends in time"
        assert len(self._open) <= ASKED_MAX
        assert len(self._answered) <= ANSWERS_KEPT


_ANSWERS: Final[dict[type, tuple[type[Answer], ...]]] = {
    ShowQuery: (QueryShown,),
    StopQuery: (Done,),
    AdoptQuery: (Done,),
    ListQueries: (QueriesListed,),
}


def _fitting(listed: QueriesListed) -> QueriesListed:
    """As much of a list as fits into a message.

    Texts are cut to their beginnings. If that is not enough they are left out, and then the youngest queries.
    """
    for characters in (TEXT_LISTED, 0):
        rows = [msgspec.structs.replace(row, text=shortened(row.text, characters)) for row in listed.queries]
        sizes = list(itertools.accumulate(len(_encode(row)) for row in rows))
        fitting = bisect.bisect(sizes, ANSWER_BYTES_MAX)
        if fitting == len(rows):
            break
    return QueriesListed(queries=tuple(rows[:fitting]), is_whole=fitting == len(rows))


def _is_meant(entry: QueryEntry, command: ShowQuery | StopQuery | AdoptQuery) -> bool:
    """Whether a name, perhaps with the beginning of a peer's id, means this query."""
    name, _, peer = command.query.partition("@")
    return entry.name == name and entry.proxy.hex().startswith(peer)
