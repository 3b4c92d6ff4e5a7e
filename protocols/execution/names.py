"""The queries of one peer by their names, also across a restart.

A query that was refused gives its name away at once, though it ends only when the stream of its results is dropped:
whoever corrects it may call it the same again. Until then it is found under that stream, a name that no query can have.
"""

from __future__ import annotations

from protocols.execution.messages import QueryId, QueryInstalled, ResultsNoted
from protocols.execution.placing import Placing
from protocols.execution.running import Running
from protocols.ids import StreamName
from protocols.messages import Record

Names = dict[QueryId, Running]


def make_way(running: Names, name: QueryId, stream: StreamName = "") -> None:
    """Take the name from a query that was refused, unless it is the one of that stream."""
    known = running.get(name)
    if known is not None and known.is_refused and known.stream != stream:
        running[known.stream] = running.pop(name)


def forget(running: Names, query: Running) -> None:
    """It has ended."""
    query.state = "ended"
    del running[next(name for name, each in running.items() if each is query)]


def restore(running: Names, record: Record) -> None:
    """Know what the journal does. Of two queries of one name it tells of the later one later."""
    match record:
        case QueryInstalled(state="ended"):
            for ended in [each for each in running.values() if each.stream == record.stream]:
                forget(running, ended)
        case QueryInstalled():
            make_way(running, record.query, record.stream)
            query = running.setdefault(record.query, _restored(record))
            query.is_installed = record.state == "acknowledged"
        case ResultsNoted() if record.query in running:
            running[record.query].results.notes.append(record)


def _restored(record: QueryInstalled) -> Running:
    query = Running(record.query, record.text, record.engine, record.inserted_at, record.stream, is_begun=True)
    query.placing = Placing(record.placement, record.within_ms, record.statistics)
    return query
