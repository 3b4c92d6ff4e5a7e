"""The papers' queries and tuples that stand in papers/."""

from __future__ import annotations

import json
from datetime import UTC, datetime, time
from pathlib import Path

from queries import query, sql_streams
from queries.catalogue import Stream
from queries.reference import Tuple

PAPERS = Path(__file__).parent / "papers"

FILES = sorted(path for path in PAPERS.glob("*/*.txt") if path.name != "tuples.txt")

DAY = datetime(2026, 1, 31, tzinfo=UTC)


def streams_of(folder: Path) -> dict[str, Stream]:
    made = sql_streams.read_all((folder / "streams.sql").read_text())
    return {each.name: each.stream for each in made if isinstance(each, sql_streams.CreateStream)}


def tuples_of(folder: Path) -> dict[str, list[Tuple]]:
    """Lines of `time stream [values]`; the id of a tuple is its number in the stream, from 1."""
    streams = streams_of(folder)
    lists: dict[str, list[Tuple]] = {name: [] for name in streams}
    for line in (folder / "tuples.txt").read_text().splitlines():
        published_at, name, values = line.split(maxsplit=2)
        published = datetime.combine(DAY, time.fromisoformat(published_at), UTC)
        lists[name].append(Tuple(published, streams[name].schema.row(json.loads(values)), len(lists[name]) + 1))
    return lists


def read(path: Path) -> tuple[str, dict[str, str]]:
    """The heading of a file, and its sections by name."""
    heading, *sections = path.read_text().split("---- ")
    named = dict(section.split("\n", maxsplit=1) for section in sections)
    return heading, {name: text.rstrip("\n") for name, text in named.items()}


def planned(path: Path) -> query.Query:
    sections = read(path)[1]
    return query.parse(sections["query"], streams_of(path.parent), json.loads(sections.get("parameters", "[]")))
