"""Who believes whom alive: every peer's view of the membership, each with its own delay behind the truth.

Views are not stored. Whether a peer sees another follows from when that one last changed, and from a lag drawn from
both of their numbers. So ten thousand views of ten thousand peers cost only the recent changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, Protocol

from overlay.sim.agenda import Agenda
from overlay.sim.mix import mix
from protocols.events import NEIGHBOURS_MAX
from protocols.ids import ID_BITS, Key, Millis, PeerId

_UP_LAG_MS: Final = (20, 800)
_DOWN_LAG_MS: Final = (500, 3_000)
LAG_MAX_MS: Final = _DOWN_LAG_MS[1]
_HISTORY_MAX: Final = 6
_LONG_AGO: Final = -1_000_000


class Resident(Protocol):
    """What the membership needs to know of a peer."""

    index: int
    peer_id: PeerId

    def neighbourhood_changed(self) -> None: ...


class Separation:
    """A partition: peers on one side do not hear those on the other, from one time to another."""

    __slots__ = ("healed_at", "one_way", "side", "since")

    def __init__(self, side: dict[int, bool], since: Millis, one_way: bool) -> None:
        self.side = side
        self.since = since
        self.one_way = one_way  # Only what side False sends to side True is lost.
        self.healed_at: Millis | None = None

    def stops(self, sender: int, receiver: int) -> bool:
        """Whether what one peer sends to another now is lost."""
        a, b = self.side.get(sender), self.side.get(receiver)
        return self.healed_at is None and a is not None and b is not None and a != b and (b or not self.one_way)


class Membership:
    """The peers of one simulation, the truth about them, and every peer's view of it."""

    def __init__(self, agenda: Agenda, salt: int) -> None:
        self._agenda = agenda
        self._salt = salt
        self._residents: list[Resident] = []
        self._history: list[list[tuple[Millis, bool]]] = []  # When each came and went, latest last.
        self._is_up: list[bool] = []
        self._settled_at: list[Millis] = []  # After this time everybody has noticed the peer's latest change.
        self._known: list[tuple[int, int]] = []  # Identifier and index, in order, of all peers that somebody may see.
        self._nearest: dict[int, list[int]] = {}  # By key; forgotten when the known peers change.
        self.separations: list[Separation] = []  # Includes healed ones that somebody has not noticed yet.

    # The truth.

    def add(self, resident: Resident) -> None:
        assert resident.index == len(self._residents)
        self._residents.append(resident)
        self._history.append([])
        self._is_up.append(False)
        self._settled_at.append(_LONG_AGO)

    def came_up(self, index: int, *, long_ago: bool = False) -> None:
        """A peer is up; at the beginning of a run everybody knows it already."""
        self._change(index, _LONG_AGO if long_ago else self._agenda.now, is_up=True)
        entry = (self._residents[index].peer_id.number, index)
        place = bisect_left(self._known, entry)
        if place == len(self._known) or self._known[place] != entry:
            self._known.insert(place, entry)
            self._nearest.clear()
        if not long_ago:
            self._announce(index)

    def went_down(self, index: int) -> None:
        self._change(index, self._agenda.now, is_up=False)
        history = self._history[index]
        del history[:-_HISTORY_MAX]
        self._announce(index)
        self._agenda.after(LAG_MAX_MS + 1, self._forget, index, history[-1])

    def peer_id(self, index: int) -> PeerId:
        return self._residents[index].peer_id

    def is_up(self, index: int) -> bool:
        return self._is_up[index]

    def _change(self, index: int, at: Millis, *, is_up: bool) -> None:
        self._history[index].append((at, is_up))
        self._is_up[index] = is_up
        self._settled_at[index] = at + LAG_MAX_MS

    def separate(self, side: dict[int, bool], *, one_way: bool) -> Separation:
        """Partition the network; peers without a side are on both."""
        separation = Separation(side, self._agenda.now, one_way)
        self.separations.append(separation)
        self._look_again(separation)
        return separation

    def heal(self, separation: Separation) -> None:
        if separation.healed_at is None:
            separation.healed_at = self._agenda.now
            self._look_again(separation)
            self._agenda.after(LAG_MAX_MS + 1, self.separations.remove, separation)

    @property
    def is_torn(self) -> bool:
        """Whether there is a partition, or somebody has not noticed yet that it has healed."""
        return bool(self.separations)

    def is_cut(self, sender: int, receiver: int) -> bool:
        if not self.separations:
            return False
        return any(separation.stops(sender, receiver) for separation in self.separations)

    # The views.

    def sees(self, observer: int, index: int) -> bool:
        """Whether one peer believes another alive."""
        if observer == index:
            return True
        now, state = self._agenda.now, self._is_up[index]
        if now <= self._settled_at[index]:
            state = False
            for at, is_up in self._history[index]:
                if now - at > LAG_MAX_MS or now - at >= self._lag(observer, index, at, is_up=is_up):
                    state = is_up
        if state:
            for separation in self.separations:
                if self._believes(separation, observer, index):
                    return False
        return state

    def owner(self, key: Key, observer: int) -> int:
        """The live peer nearest to a key, as one peer sees it."""
        return next(self._seen_by_distance(key, observer, 8), observer)

    def neighbours(self, observer: int) -> list[int]:
        """The live peers nearest to one by identifier, as it sees them; nearest first."""
        found: list[int] = []
        for index in self._seen_by_distance(self._residents[observer].peer_id, observer, NEIGHBOURS_MAX + 8):
            if index != observer:
                found.append(index)
                if len(found) == NEIGHBOURS_MAX:
                    break
        return found

    def _seen_by_distance(self, key: Key, observer: int, wanted: int) -> Iterator[int]:
        """The peers that one sees, nearest to a key first; about `wanted` of them will be needed."""
        number, passed = key.number, 0
        now, is_up, settled_at = self._agenda.now, self._is_up, self._settled_at
        is_whole = not any(observer in separation.side for separation in self.separations)
        while passed < len(self._known):
            nearest = self._nearest_known(number, wanted)
            for index in nearest[passed:]:
                # Nearly always there is no doubt, and no need to compute the view.
                if (is_whole and is_up[index] and now > settled_at[index]) or self.sees(observer, index):
                    yield index
            passed, wanted = len(nearest), 2 * wanted

    def _nearest_known(self, number: int, wanted: int) -> list[int]:
        """The known peers nearest to a number, at least `wanted` if there are so many."""
        cached = self._nearest.get(number)
        if cached is not None and (len(cached) >= wanted or len(cached) == len(self._known)):
            return cached
        known = self._known
        # A subtree of identifiers is a slice of the sorted list, and everything in it is nearer than everything
        # outside.
        bits = max(0, ID_BITS - len(known).bit_length())
        while True:
            low = number >> bits << bits
            first, last = bisect_left(known, (low, 0)), bisect_left(known, (low + (1 << bits), 0))
            if last - first >= wanted or last - first == len(known):
                break
            bits += 1
        found = [index for _, index in sorted((other ^ number, index) for other, index in known[first:last])]
        self._nearest[number] = found
        return found

    def _lag(self, observer: int, index: int, changed_at: Millis, *, is_up: bool) -> Millis:
        low, high = _UP_LAG_MS if is_up else _DOWN_LAG_MS
        return low + (mix(observer, index, self._salt + changed_at) * (high - low) >> 32)

    def _believes(self, separation: Separation, observer: int, index: int) -> bool:
        """Whether an observer believes a peer dead because of a partition; a one-way one counts both ways."""
        side = separation.side
        if observer not in side or side.get(index, side[observer]) == side[observer]:
            return False
        now, until = self._agenda.now, separation.healed_at
        lasted = (now if until is None else until) - separation.since
        is_noticed = lasted >= LAG_MAX_MS or lasted >= self._lag(observer, index, separation.since, is_up=False)
        if until is None or not is_noticed:
            return is_noticed
        healed_for = now - until
        return healed_for < _UP_LAG_MS[1] and healed_for < self._lag(observer, index, separation.since, is_up=True)

    # Who looks again, and when.

    def _announce(self, index: int) -> None:
        """Let everybody whom it concerns notice the latest change of a peer, each after its own lag."""
        at, is_up = self._history[index][-1]
        for observer in self._watchers(index):
            lag = self._lag(observer, index, at, is_up=is_up)
            self._agenda.at(at + lag, self._residents[observer].neighbourhood_changed)

    def _watchers(self, index: int) -> Iterator[int]:
        """The peers that can have this one as a neighbour; a subtree with enough peers looks no further."""
        known, number = self._known, self._residents[index].peer_id.number
        first, last, bits = bisect_left(known, (number, 0)), bisect_left(known, (number + 1, 0)), 0
        while last - first < len(known):
            bits += 1
            low = number >> bits << bits
            wider_first = bisect_left(known, (low, 0), 0, first)
            wider_last = bisect_left(known, (low + (1 << bits), 0), last)
            for begin, end in ((wider_first, first), (last, wider_last)):
                if end - begin <= 2 * NEIGHBOURS_MAX:  # Some of them may be dead, or cut off.
                    yield from (other for _, other in known[begin:end])
            first, last = wider_first, wider_last

    def _look_again(self, separation: Separation) -> None:
        """A partition changes many views at once: all look again until the last one has noticed."""
        for index in separation.side:
            for wait_ms in range(_DOWN_LAG_MS[0], LAG_MAX_MS + 500, 500):
                self._agenda.after(wait_ms, self._residents[index].neighbourhood_changed)

    def _forget(self, index: int, last_change: tuple[Millis, bool]) -> None:
        """After the longest lag nobody sees a peer that is down."""
        history = self._history[index]
        if history[-1] == last_change:
            history.clear()
            entry = (self._residents[index].peer_id.number, index)
            del self._known[bisect_left(self._known, entry)]
            self._nearest.clear()
