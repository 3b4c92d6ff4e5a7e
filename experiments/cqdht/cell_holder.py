"""The holder of cells: an evaluator that hands cells on, and halves them, when it has more load than others."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import msgspec

from experiments.cqdht.cells import Cell, Cells, cell_key, cut_off, part_of
from experiments.cqdht.evaluator import Evaluator, Place, Telling
from experiments.cqdht.limits import JoinLimits
from experiments.cqdht.messages import (
    Asked,
    AskLoad,
    Bundle,
    CellName,
    Contents,
    Finger,
    ForgetQuery,
    Halved,
    HandedOn,
    Moved,
    PeerLoad,
    Share,
    SharedPlan,
    StreamTuple,
)
from experiments.cqdht.rewriter import Rewriter
from experiments.cqdht.shared_plans import Sources, apart, some_cells, some_shares
from protocols.effects import Effect, Route, Send
from protocols.events import Event, Received, Unreachable, Unroutable
from protocols.ids import Key, Millis, PeerId
from queries.plan import Source

ASKED: Final = 4  # Peers, for a mean, each time when
GROWTH: Final = 1.5  # the load has grown so much.
BUSY: Final = 1.5  # A peer with so many times the mean hands cells on,
RELIEF: Final = 0.75  # a heavy one if that leaves nobody with more than this part of what the peer had.
BITS_MAX: Final = 8  # A cell with more than the mean of a peer is halved, so often at most.


@dataclass(slots=True)
class CellHolder:
    """Holds cells of values for an evaluator; cells.py says what they are for.

    In:        BUNDLE, MOVED, FORGET_QUERY of a cell; ASK_LOAD, PEER_LOAD; Unroutable and Unreachable for what it sent
    Out:       NOTIFY to subscribers; FINGER, HANDED_ON and HALVED to rewriters; MOVED, and what came for a cell that is
               elsewhere, to other holders; ASK_LOAD to any peers, PEER_LOAD to who asks
    Keeps:     of each cell that came here its load, how often it was halved, and who has got it from here. One that
               is here, whole and empty is forgotten when it counts anew
    Invariant: a rewritten query is in one cell, a tuple in all cells of its attribute and value; a cell is at one
               holder, or on its way to it
    """

    limits: JoinLimits
    evaluator: Evaluator
    rewriter: Rewriter
    cells: Cells = field(default_factory=Cells)
    _period: int = 0  # The how many-th it counts in.
    _rewriter_before: int = 0  # What it had filtered when the period began.
    _ask_at: float = 0.0  # The load at which others are asked for theirs.
    _asked: int = 0
    _answers: dict[int, tuple[int, PeerId]] = field(default_factory=dict)
    _lighter: deque[PeerId] = field(default_factory=deque)  # Who gets new cells, in turn, while this peer is busy.

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Received(sender=sender, message=Bundle() as message):
                return self._bundle(sender, message, now) + self._ask(message.value, now)
            case Received(message=Moved() as message):
                return self._take_in(message, now)
            case Received(message=ForgetQuery() as message):
                return self._forget(message, now)
            case Received(sender=sender, message=AskLoad(number=number)):
                return [Send(sender, PeerLoad(number=number, load=self._load(now)))]
            case Received(sender=sender, message=PeerLoad() as message):
                return self._answered(sender, message, now)
            case Unroutable(key=key, message=AskLoad() | Moved() as message):
                return [Route(key, message)]
            case Unreachable(peer=peer, message=Moved() | PeerLoad() as message):
                return [Send(peer, message)]
            case Unreachable(message=HandedOn() | Halved()):
                return []  # Whoever does not know it is told again.
        raise AssertionError(f"no rule for {event}")

    # What comes for cells.

    def _bundle(self, sender: PeerId, message: Bundle, now: Millis) -> list[Effect]:
        value, told = message.value, Telling()
        effects: list[Effect] = []
        if message.asks_finger:
            effects.append(Send(sender, Finger(key=cell_key(value, message.shares[0].cell))))
        elsewhere: dict[PeerId, list[Share]] = {}
        for share in message.shares:
            is_new = (value, share.cell) not in self.cells
            cell = self.cells.at(value, share.cell, share.holder)
            if is_new and self._lighter and self._has_room():  # Nothing is in it yet.
                cell.next = self._lighter[0]
            if cell.next is not None:
                elsewhere.setdefault(cell.next, []).append(msgspec.structs.replace(share, holder=cell.holder + 1))
                continue
            effects += self._halve(cell, share.bits)
            if share.bits < cell.bits:
                effects.append(Send(sender, Halved(value=value, cell=cell.name, bits=cell.bits)))
                share, cut = _parted(share, cell)
                effects += [Route(cell_key(value, each.cell), _passed(message, [each])) for each in cut]
            self._compare(cell, message.trigger, share, message.sources, told, now)
        self._lighter.rotate()
        for peer, shares in elsewhere.items():
            known = tuple((share.cell, share.holder) for share in shares)
            effects += [
                Send(peer, _passed(message, shares)),
                Send(sender, HandedOn(value=value, cells=known, peer=peer)),
            ]
        return effects + told.effects()

    def _compare(
        self, cell: Cell, trigger: StreamTuple, share: Share, sources: tuple[Source, ...], told: Telling, now: Millis
    ) -> None:
        place, before = _place(cell), self.evaluator.filtered
        rewritten = apart(share.plans, sources)
        self.evaluator.rewritten(place, trigger, rewritten, told, now)
        between = self.evaluator.filtered
        if share.keep_ms is not None:
            self.evaluator.indexed(place, trigger, share.keep_ms, told, now)
        self.cells.add(cell, between - before, self.evaluator.filtered - between)
        cell.width = max(cell.width, len(rewritten))

    def _forget(self, message: ForgetQuery, now: Millis) -> list[Effect]:
        query, value, at, part = message.query, message.value, message.at, message.part
        assert at is not None, "a cell has an attribute"
        cell = self.cells.at(value, CellName(at, part), message.holder)
        if cell.next is not None:
            return [Send(cell.next, msgspec.structs.replace(message, holder=cell.holder + 1))]
        self.evaluator.forget(query, [_place(cell)], now)
        other = part_of(query, part, part.bit_length(), cell.bits)
        if other == part:
            return []
        passed = msgspec.structs.replace(message, part=other, holder=0)
        return [Route(cell_key(value, CellName(at, other)), passed)]

    def _take_in(self, message: Moved, now: Millis) -> list[Effect]:
        told = Telling()
        effects: list[Effect] = []
        elsewhere: dict[PeerId, list[Contents]] = {}
        for contents in message.cells:
            cell = self.cells.at(contents.value, contents.cell, contents.holder)
            if cell.next is not None:
                elsewhere.setdefault(cell.next, []).append(msgspec.structs.replace(contents, holder=cell.holder + 1))
                continue
            bits = max(cell.bits, contents.bits)
            effects += self._halve(cell, contents.bits)
            for query in message.removed:
                self.evaluator.forget(query, [_place(cell)], now)
            self.evaluator.take_in(_place(cell), contents, message.sources, told, now)
            queries_load = max(0, contents.queries_load - cell.queries_load)  # If it comes twice, it counts once.
            self.cells.add(cell, queries_load, max(0, contents.tuples_load - cell.tuples_load))
            cell.bits = contents.bits
            effects += self._halve(cell, bits)  # It may have been halved here before this came.
        effects += [Send(peer, some_cells(message, some)) for peer, some in elsewhere.items()]
        return effects + told.effects()

    # A cell that is too heavy is halved.

    def _halve(self, cell: Cell, bits: int) -> list[Effect]:
        """Halve a cell so often: cut off queries, each time with all tuples."""
        place, before, own = _place(cell), cell.bits, cell.name.part
        if bits <= before:
            return []
        cell.bits, cell.width = bits, 0
        moves: list[Effect] = []
        queries = self.evaluator.queries_at(place)
        for part in cut_off(own, before, bits):
            going = [query for query in queries if part_of(query, own, before, bits) == part]
            sources = Sources()
            taken = self.evaluator.take_out(place, going, sources)
            self.cells.add(cell, cell.queries_load // 2 - cell.queries_load, 0)
            name, loads = CellName(cell.name.at, part), (cell.queries_load, cell.tuples_load)
            contents = Contents(cell.value, name, part.bit_length(), 0, *loads, taken, self.evaluator.tuples_at(place))
            moved = Moved(cells=(contents,), removed=self.evaluator.removed, sources=sources.told())
            moves.append(Route(cell_key(cell.value, name), moved))
        return moves

    # Who has too much hands on.

    def _load(self, now: Millis) -> int:
        if now // self.limits.load_ms != self._period:  # All peers begin anew at the same time.
            self._period = now // self.limits.load_ms
            self._rewriter_before = self.rewriter.filtered
            self._ask_at = 0.0
            self._lighter.clear()
            self.cells.count_anew(self._is_empty)
        return self.cells.load + self.rewriter.filtered - self._rewriter_before

    def _ask(self, salt: str, now: Millis) -> list[Effect]:
        """Ask a few peers for their load, if the load here has become high."""
        load = self._load(now)
        if load <= max(self.limits.busy_above, self._ask_at):
            return []
        self._ask_at = GROWTH * load
        self._answers.clear()
        numbers = range(self._asked, self._asked + ASKED)
        self._asked += ASKED
        return [Route(Key.of("load", salt, str(number)), AskLoad(number=number)) for number in numbers]

    def _answered(self, sender: PeerId, message: PeerLoad, now: Millis) -> list[Effect]:
        if message.number < self._asked - ASKED or len(self._answers) == ASKED:
            return []  # It is late, or came twice.
        self._answers[message.number] = (message.load, sender)
        if len(self._answers) < ASKED:
            return []
        answers = sorted(self._answers.values())
        mean = max(self.limits.busy_above, sum(load for load, _ in answers) / ASKED)
        is_busy = self._load(now) > BUSY * mean
        self._lighter = deque(peer for load, peer in answers if load < mean and is_busy)
        effects: list[Effect] = []
        for cell in self.cells.heaviest():
            if cell.width > 1 and cell.queries_load > mean and self._has_room():
                times = max(1, round(math.log2(cell.queries_load / max(1.0, mean))))
                effects += self._halve(cell, min(cell.bits + times, BITS_MAX))
        for load, peer in answers:
            effects += self._moved(peer, load, mean, now)
        self._ask_at = max(GROWTH * self._load(now), mean)  # The mean only grows: with less nobody is busy.
        return effects

    def _moved(self, peer: PeerId, load: int, mean: float, now: Millis) -> list[Effect]:
        """Hand on what is above the mean, and to no peer more than brings it up to the mean."""
        own = self._load(now)
        if own <= BUSY * mean or not self._has_room():
            return []
        room = min(own - mean, mean - load)
        given: list[Contents] = []
        sources = Sources()
        for cell in self.cells.heaviest():
            if cell.load <= room or (not given and load + cell.load < RELIEF * own):
                room -= cell.load
                given.append(self._taken_out(cell, sources))
                cell.next = peer
        if not given:
            return []
        return [Send(peer, Moved(cells=tuple(given), removed=self.evaluator.removed, sources=sources.told()))]

    def _taken_out(self, cell: Cell, sources: Sources) -> Contents:
        place = _place(cell)
        queries = self.evaluator.take_out(place, self.evaluator.queries_at(place), sources)
        tuples = self.evaluator.tuples_at(place)
        self.evaluator.drop_tuples(place)
        found = Contents(
            cell.value, cell.name, cell.bits, cell.holder + 1, cell.queries_load, cell.tuples_load, queries, tuples
        )
        self.cells.add(cell, -cell.queries_load, -cell.tuples_load)
        return found

    def _has_room(self) -> bool:
        """Whether there is room to remember one more cell that is elsewhere."""
        return len(self.cells) <= self.limits.cells_max

    def sweep(self, now: Millis) -> None:
        """Count anew when it is time, also if nothing comes any more."""
        self._load(now)

    def _is_empty(self, cell: Cell) -> bool:
        return not self.evaluator.has_any(_place(cell))

    def validate(self) -> None:
        self.cells.validate()
        for cell in self.cells.elsewhere():
            assert self._is_empty(cell), "it has been handed on"


def _passed(message: Bundle, shares: list[Share]) -> Bundle:
    """The shares for cells that other peers hold."""
    return msgspec.structs.replace(some_shares(message, shares), asks_finger=False)


def _place(cell: Cell) -> Place:
    return cell.name.at, cell.value, cell.name.part


def _parted(share: Share, cell: Cell) -> tuple[Share, list[Share]]:
    """A share split between its cell and the parts that were cut off since the sender last heard."""
    part, at = cell.name.part, cell.name.at
    by_part: dict[int, list[SharedPlan]] = {}
    for each in share.plans:
        asked: dict[int, list[Asked]] = {}
        for query in each.queries:
            asked.setdefault(part_of(query.id, part, share.bits, cell.bits), []).append(query)
        for other, queries in asked.items():
            by_part.setdefault(other, []).append(msgspec.structs.replace(each, queries=tuple(queries)))
    cut = [
        Share(CellName(at, other), other.bit_length(), 0, tuple(by_part.get(other, ())), share.keep_ms)
        for other in cut_off(part, share.bits, cell.bits)
        if other in by_part or share.keep_ms is not None
    ]
    return msgspec.structs.replace(share, plans=tuple(by_part.get(part, ()))), cut
