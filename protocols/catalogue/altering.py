"""How the next version of a stream is decided, whoever asks for it at once (`voting.py`).

Each peer has a claim of its own for each version. Two peers that alter a stream at once never both write version 2: the
one that is behind tries for version 3 next, if what it wants still fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocols.catalogue.entries import Claim, claims_in, has_list, stream_in
from protocols.catalogue.events import StreamFound, SubscriberEntry
from protocols.catalogue.refusals import altering_already
from protocols.catalogue.streams import Alteration, StreamDefinition
from protocols.catalogue.voting import Vote, Voting
from protocols.clock import HybridClock, Stamp
from protocols.ids import Millis, PeerId, StreamName
from protocols.messages import Refused
from protocols.store.entries import Entry
from queries.errors import nearest

READS_MAX: Final = 24  # About six ballots. Then the client tries again.
READERS_NAMED: Final = 5

Outcome = tuple[int, Claim] | StreamDefinition | Refused | None
"""What to claim of which version; or the definition with the alteration; or why not; None: there is no such stream."""


@dataclass(slots=True)
class Altering:
    """One alteration on its way, at the peer that was asked for it.

    In:        the entries under the stream's key, after each write
    Out:       the next claim to write; or the outcome
    Invariant: a version is decided once, whoever asks for it
    """

    peer_id: PeerId
    clock: HybridClock
    name: StreamName
    mine: Alteration
    replicas: int = 1
    created_at: Stamp | None = None
    _voting: Voting[Alteration] | None = None
    _version: int = 0  # The version that it is about.
    _reads: int = 0

    def read(self, entries: tuple[Entry, ...], now: Millis) -> Outcome:
        """What follows from what the peers say now."""
        self._reads += 1
        found = stream_in(entries, self.name, ())
        definition = found.definition
        if definition is None or self.created_at not in (None, definition.created_at):
            return None
        self.created_at = definition.created_at
        if self.mine in definition.alterations:
            return definition
        if self._reads > READS_MAX:
            return altering_already(self.name)
        version = definition.version + 1
        claims = claims_in(entries, definition).get(version, {})
        if self._voting is None or version != self._version:
            self._voting, self._version = Voting(self.peer_id, self.clock), version
        voting = self._voting
        if voting.must_begin(claims):
            return objection(found, self.mine) or self._claim(voting.begin(claims, now))
        if voting.phase == "backed":
            return self._claim(voting.decide(claims))
        alteration = voting.likely(claims) or self.mine
        if alteration == self.mine and (refusal := objection(found, self.mine)):
            return refusal
        return self._claim(voting.back(alteration))

    def _claim(self, vote: Vote[Alteration]) -> tuple[int, Claim]:
        return self._version, Claim(stream=self.name, **vote._asdict())


def objection(found: StreamFound, mine: Alteration) -> Refused | None:
    """Why a stream cannot be altered so."""
    definition = found.definition
    assert definition is not None
    name, names = definition.name, [field.name for field in definition.current.fields]
    if definition.query:
        return _refused("invalid", f'stream "{name}" has the results of a query, and its columns', "")
    if mine.adds is not None:
        column = mine.adds.name
        if column in names:
            return _refused("exists", f'stream "{name}" has a column "{column}" already', "Choose another name.")
        if has_list((mine.adds,)):
            return _refused("invalid", f'stream "{name}": a column cannot be a list', "")
    else:
        column = mine.drops
        if column not in names:
            return _refused("unknown", f'stream "{name}" has no column "{column}"', nearest(column, names))
        if column == definition.event_time:
            error = f'column "{column}" of stream "{name}" is its event time'
            return _refused("invalid", error, "A stream keeps its event time. Create another stream.")
        readers = [each for each in found.subscribers if each.reads.columns is None or column in each.reads.columns]
        if readers:
            return _read_by(name, column, readers)
    try:
        definition.current.altered(mine.adds, mine.drops)
    except ValueError as error:
        return _refused("invalid", f'stream "{name}": {error}', "")
    return None


def _read_by(stream: StreamName, column: str, readers: list[SubscriberEntry]) -> Refused:
    named = ", ".join(dict.fromkeys(map(_reader, readers[:READERS_NAMED])))
    more = f" and {len(readers) - READERS_NAMED} more" if len(readers) > READERS_NAMED else ""
    return Refused(
        code="invalid",
        error=f'column "{column}" of stream "{stream}" is read',
        detail=f"Its readers: {named}{more}.",
        hint='End them first: "peer query stop" ends a query. A reader of the whole stream reads each column.',
    )


def _reader(entry: SubscriberEntry) -> str:
    """A subscription, by the name of its query if it has one."""
    name = entry.reads.reader or f'subscription "{entry.subscription}"'
    return f"{name} at peer {entry.peer.short}"


def _refused(code: str, error: str, hint: str) -> Refused:
    return Refused(code=code, error=error, hint=hint)
