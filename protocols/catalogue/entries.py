"""What lies under the keys of the catalogue, and how it is read: a stream's definition and what was altered of it, its
publishers and subscriptions.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from protocols.catalogue.custody import custodies_in
from protocols.catalogue.events import DerivedEntry, PublisherEntry, StreamFound, SubscriberEntry
from protocols.catalogue.streams import Alteration, StreamDefinition
from protocols.catalogue.voting import Ballot
from protocols.clock import Stamp
from protocols.ids import Millis, PeerId, StreamName
from protocols.reading import read
from protocols.store.entries import Entry
from protocols.store.events import Token
from queries.schema import Field

DEFINITION: Final = "definition"
ALTERATION: Final = "alteration/"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,126}")


class Claim(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What one peer has said about one version of a stream: a block of `voting.py`."""

    stream: StreamName
    begun: Ballot  # It takes no part in earlier ballots.
    backed_in: Ballot | None = None  # The ballot in which it backed this alteration.
    backs: Alteration | None = None
    is_decided: bool = False  # The version is this alteration, for good.


Claims = dict[PeerId, Claim]


def claim_item(created_at: Stamp, version: int, peer: PeerId) -> str:
    return f"{ALTERATION}{created_at}/{version}/{peer.hex()}"


encode: Final = msgspec.msgpack.Encoder(enc_hook=bytes).encode


def _decoder(kind: type) -> msgspec.msgpack.Decoder[object]:
    return msgspec.msgpack.Decoder(kind, dec_hook=lambda wanted, raw: wanted(raw))


DEFINITIONS: Final = _decoder(StreamDefinition)
_PUBLISHERS: Final = _decoder(PublisherEntry)
_SUBSCRIBERS: Final = _decoder(SubscriberEntry)
DERIVED: Final = _decoder(DerivedEntry)
_CLAIMS: Final = _decoder(Claim)
_PEER: Final = re.compile(r"[0-9a-f]{40}")


def stream_in(entries: tuple[Entry, ...], name: StreamName, token: Token) -> StreamFound:
    """Read the entries under a stream's key; an entry that makes no sense counts as absent, and so does a publisher to
    an earlier stream of the name.
    """
    definition: StreamDefinition | None = None
    is_dropped = False
    publishers: list[PublisherEntry] = []
    subscribers: list[SubscriberEntry] = []
    for entry in sorted(entries, key=lambda each: each.item):
        if entry.item == DEFINITION:
            decoded = value_of(DEFINITIONS, entry)
            if isinstance(decoded, StreamDefinition) and _makes_sense(decoded, name):
                definition = decoded
            is_dropped = entry.value is None
        elif entry.item.startswith("publisher/"):
            publisher = value_of(_PUBLISHERS, entry)
            publishers += [publisher] if isinstance(publisher, PublisherEntry) else []
        elif entry.item.startswith("subscriber/"):
            subscriber = value_of(_SUBSCRIBERS, entry)
            subscribers += [subscriber] if isinstance(subscriber, SubscriberEntry) else []
    if definition is not None:
        created_at = definition.created_at
        publishers = [each for each in publishers if each.created_at in (0, created_at)]
        definition = composed(definition, claims_in(entries, definition))
    custodies = custodies_in(entries, name) if definition is not None and definition.query else ()
    return StreamFound(
        token,
        name,
        definition,
        tuple(publishers),
        tuple(subscribers),
        is_dropped=is_dropped,
        custodies=custodies,
    )


def claims_in(entries: tuple[Entry, ...], definition: StreamDefinition) -> dict[int, Claims]:
    """By version: what the peers say of it. Those of an earlier stream of the name are left out."""
    found: dict[int, Claims] = {}
    ours = f"{ALTERATION}{definition.created_at}/"
    for entry in sorted(entries, key=lambda each: each.item):
        if not entry.item.startswith(ours):
            continue
        version, _, peer = entry.item.removeprefix(ours).partition("/")
        claim = value_of(_CLAIMS, entry)
        if not isinstance(claim, Claim) or claim.stream != definition.name:
            continue  # Rights are checked by the stream that it names.
        if version.isdecimal() and _PEER.fullmatch(peer):
            found.setdefault(int(version), {})[PeerId.fromhex(peer)] = claim
    return found


def claimed(entry: Entry | None) -> StreamName | None:
    """The stream that an entry claims a version of."""
    claim = value_of(_CLAIMS, entry) if entry is not None else None
    return claim.stream if isinstance(claim, Claim) else None


def composed(definition: StreamDefinition, claims: dict[int, Claims]) -> StreamDefinition:
    """A definition with all that was decided since the stream was created."""
    alterations: list[Alteration] = []
    schema = definition.schema
    while decided := [each.backs for each in claims.get(schema.version + 1, {}).values() if each.is_decided]:
        if decided[0] is None or decided[0].drops == definition.event_time:
            break
        try:
            schema = schema.altered(decided[0].adds, decided[0].drops)
        except ValueError:  # Only a peer that errs writes this.
            break
        alterations.append(decided[0])
    return msgspec.structs.replace(definition, alterations=tuple(alterations))


def value_of(decoder: msgspec.msgpack.Decoder[object], entry: Entry) -> object | None:
    return read(decoder, entry.value)


def has_list(fields: tuple[Field, ...]) -> bool:
    return any(field.type == "list" or has_list(field.fields) for field in fields)


def _makes_sense(definition: StreamDefinition, name: StreamName) -> bool:
    """Whether whoever wrote this is a peer of some release, and not one that errs."""
    columns = {column.name: column.type for column in definition.schema.fields}
    is_timed = definition.event_time is None or columns.get(definition.event_time) == "timestamp"
    return definition.name == name and bool(columns) and is_timed and definition.retention_ms > 0


def problem_with(definition: StreamDefinition) -> str | None:
    if not _NAME.fullmatch(definition.name):
        return "a name begins with a letter and has letters, digits, dots, dashes and underscores, 127 at most"
    if not definition.schema.fields:
        return "it has no columns"
    if has_list(definition.schema.fields):
        return "a column cannot be a list"
    if definition.alterations:
        return "a new stream has no alterations"
    if definition.event_time is not None:
        columns = {column.name: column for column in definition.schema.fields}
        column = columns.get(definition.event_time)
        if column is None or column.type != "timestamp":
            return f'its event time "{definition.event_time}" is not a column of type timestamp'
        if column.nullable:
            return f'its event time "{definition.event_time}" may be null; a row without a time has no place in it'
    if definition.retention_ms <= 0 or definition.lateness_ms < 0 or definition.idle_ms < 0:
        return "retention must be above 0, lateness and idle not below"
    if definition.idle_ms and definition.event_time is None:
        return "only a stream with an event time can be idle; without one, windows close by the clock"
    return None


def publisher_item(peer: PeerId, epoch: Millis) -> str:
    return f"publisher/{peer.hex()}/{epoch}"
