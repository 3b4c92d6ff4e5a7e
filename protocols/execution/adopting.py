"""The notes that a proxy has the backup of its results keep, and what a successor reads from them.

The backup keeps them beside its copy of the results. A note (`Note`) is one or two records of the proxy's journal: the
query as installed, and perhaps a checkpoint of what its results are made of (ResultsNoted). So the copy and its notes
are what the proxy's own disk has of the query, and taking over is a restart elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Final, get_args

import msgspec

from protocols.clock import AHEAD_MAX_MS, wall_ms
from protocols.delivery.messages import Note
from protocols.execution.messages import EngineName, QueryInstalled, ResultsNoted
from protocols.execution.refusals import NAME, unreadable
from protocols.execution.results import QueryResults
from protocols.ids import MILLIS_MAX, Millis, StreamName
from protocols.reading import read
from queries.casts import read_interval

if TYPE_CHECKING:
    from protocols.execution.submitted import SubmittedQuery


TERMS_MAX: Final = 1 << 32
TEXT_MAX: Final = 1 << 21  # Characters: a client's command has no more.

_encode: Final = msgspec.msgpack.Encoder(enc_hook=bytes).encode
_decoder: Final = msgspec.msgpack.Decoder(
    QueryInstalled | ResultsNoted,
    dec_hook=lambda wanted, raw: wanted(raw),
)


def takeover_asked(options: Iterable[tuple[str, str]]) -> Millis:
    """After how long a text wants its query taken over; 0: only when somebody asks for it."""
    asked = read_interval(dict(options).get("takeover", ""))
    return asked // timedelta(milliseconds=1) if asked is not None else 0


def note_beside(
    query: SubmittedQuery, now: Millis, note: ResultsNoted | None = None, *, is_whole: bool = False
) -> None:
    """Have the backup keep what another proxy needs to go on with the query."""
    mirror = query.services.publisher.copied(query.stream)
    if mirror is None:
        return
    state = _encode(query.record("acknowledged" if query.is_acknowledged else "begun"))
    if note is not None:
        parts, is_whole = (state, _encode(note)), note.adds_to is None
        mirror.keep(note.number or query.results.number_from(0), note.next, parts, is_whole=is_whole)
    elif not mirror.amend((state,)):
        number = query.results.number_from(query.services.clock.tick(now))
        mirror.keep(number, mirror.feed.next, (state,), is_whole=is_whole)


def may_be_taken(query: SubmittedQuery) -> bool:
    """Whether another peer may have taken it over: this one was away, and does not know yet."""
    mirror = query.services.publisher.copied(query.stream)
    return mirror is not None and not mirror.is_checked


def installed_in(notes: tuple[Note, ...]) -> QueryInstalled | None:
    """The query that notes are about, if they can be read."""
    found = [each for each in _records(notes) if isinstance(each, QueryInstalled)]
    return found[-1] if found else None


def unsound(installed: QueryInstalled, stream: StreamName, now: Millis) -> str:
    """Why no proxy of ours has installed such a query for the results of a stream; empty if one may have."""
    if installed.stream != stream:
        return "its notes are of another stream"
    if not NAME.fullmatch(installed.query) or installed.engine not in get_args(EngineName):
        return "its notes name no query, or no engine"
    if unreadable(installed.statistics) is not None or len(installed.text) > TEXT_MAX:
        return "its notes have a text that nobody submits"
    if installed.term >= TERMS_MAX or installed.before > MILLIS_MAX:
        return "its notes count more than there can be"
    if wall_ms(max(installed.inserted_at, installed.since or 0)) > now + AHEAD_MAX_MS:
        return "its notes are from the future"
    return ""


def successor(notes: tuple[Note, ...], count: int) -> QueryInstalled | None:
    """The query as its next proxy installs it, from the notes beside a copy of `count` results.

    None: the notes cannot be read, or do not say what the last of these results are made of.
    """
    installed = installed_in(notes)
    if installed is None:
        return None
    results = QueryResults(installed.query, installed.stream)
    results.notes = [installed.base] if installed.base is not None else []
    results.notes += [each for each in _records(notes) if isinstance(each, ResultsNoted)]
    results.restart(count)
    if (results.notes[-1].next if results.notes else 0) != count:
        return None
    base = ResultsNoted(query=installed.query, next=0, progress=results.resume, beyond=tuple(results.beyond), number=1)
    return msgspec.structs.replace(
        installed,
        state="acknowledged",
        term=installed.term + 1,
        before=installed.before + count,
        base=base,
    )


def _records(notes: tuple[Note, ...]) -> list[QueryInstalled | ResultsNoted]:
    found = [read(_decoder, part) for note in notes for part in note.parts]
    return [each for each in found if each is not None] if None not in found else []
