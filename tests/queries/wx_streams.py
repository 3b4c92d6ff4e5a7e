"""The streams that tests of WXQuery speak of: StreamGlobe's photons, and alerts with every other type."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from queries import reference, restructure
from queries.catalogue import Stream
from queries.plan import Operator, Restructure, walk
from queries.schema import Schema

PHOTONS = Stream(
    "photons",
    Schema.parse(
        "coord record(cel record(ra decimal, dec decimal), det record(dx int, dy int)),"
        " phc int, en decimal, det_time decimal"
    ),
)
ALERTS = Stream(
    "alerts",
    Schema.parse(
        "id int, en decimal, level string, at timestamp, seen bool, raw bytes, weight float,"
        " note string null, spot record(x int, y int null) null"
    ),
    event_time="at",
)
STREAMS = {stream.name: stream for stream in (PHOTONS, ALERTS)}
START = datetime(2026, 1, 1, tzinfo=UTC)

PHOTON = 'stream("photons")/photons/photon'
ALERT = 'stream("alerts")/alerts/alert'


def photon(en: str, det_time: str = "0", ra: str = "130.0", dec: str = "-45.0", phc: int = 1):
    return PHOTONS.schema.row(
        {
            "coord": {"cel": {"ra": Decimal(ra), "dec": Decimal(dec)}, "det": {"dx": 1, "dy": 2}},
            "phc": phc,
            "en": Decimal(en),
            "det_time": Decimal(det_time),
        }
    )


def alert(id: int, at_s: int = 0, **others):  # noqa: A002 (the name of the element)
    given = {"en": "1.0", "level": "red", "seen": True, "raw": "", "weight": 1.0} | others
    return ALERTS.schema.row({"id": id, "at": START + timedelta(seconds=at_s)} | given)


def results(plan: Operator, **rows) -> list[str]:
    """The XML of each result, given the rows of the streams; one is published each second."""
    tuples = {
        stream: [
            reference.Tuple(START + timedelta(seconds=number), row, f"{stream}-{number}")
            for number, row in enumerate(rows.get(stream, ()))
        ]
        for stream in STREAMS
    }
    return [result.row[0] for result in reference.evaluate(plan, tuples)]


def whole(plan: Operator, **rows) -> str:
    """The document of all results."""
    envelope = next(each.envelope for each in walk(plan) if isinstance(each, Restructure))
    return restructure.document(envelope, results(plan, **rows))
