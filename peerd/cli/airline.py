"""The airline that `peer demo` plays: five streams at the rates of the IFLOW paper, and what is asked about them.

Its clock runs faster than ours. Every tuple says when it happened by that clock, so windows are minutes of the airline.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

COMPRESSION: Final = 12  # Minutes of the airline in a minute of ours.
FLIGHTS_MAX: Final = 1000
CITIES: Final = tuple(
    "ATLANTA BOSTON CHICAGO DALLAS DENVER DETROIT HONOLULU HOUSTON MEMPHIS MIAMI NEWARK ORLANDO PHOENIX PORTLAND"
    " RALEIGH SEATTLE TAMPA TULSA".split()
)
CARRIERS: Final = ("DL", "AA", "UA", "WN")
TERMINALS: Final = ("N", "S", "E", "W")
FORECASTS: Final = ("SUN", "CLOUDS", "RAIN", "SNOW", "WIND")


class Source(NamedTuple):
    """A stream of the airline: its columns, and how many tuples a minute it has in the paper's figure 5."""

    schema: str
    per_min: float
    peer: int  # Where it is published.


SOURCES: Final[Mapping[str, Source]] = {
    "FLIGHTS": Source(
        "NUM int, STATUS string, GATE string, DEST string, TERMINAL string, CARRIER_CODE string, AT timestamp", 300, 1
    ),
    "CHECK-INS": Source("FLIGHT int, STATUS string, AT timestamp", 240, 2),
    "BAGGAGE": Source("FLIGHT int, STATUS string, AREA string, AT timestamp", 500, 3),
    "WEATHER": Source("CITY string, FORECAST string, AT timestamp", 90, 4),
    "SALES": Source("FLIGHT int, SEATS int, PRICE decimal, AT timestamp", 70, 4),
}

DELAYED: Final = "SELECT NUM, GATE, DEST, AT FROM FLIGHTS WHERE TERMINAL = 'N' AND STATUS = 'DELAYED'"
# The paper's Q2 (section 4.1.1): the display of a terminal.
DISPLAY: Final = """
    SELECT FL.NUM, FL.GATE, BG.AREA, CI.STATUS, WR.FORECAST
    FROM FLIGHTS FL [RANGE 5 MINUTES], WEATHER WR [RANGE 5 MINUTES],
         CHECK-INS CI [RANGE 1 MINUTE], BAGGAGE BG [RANGE 1 MINUTE]
    WHERE FL.DEST = WR.CITY AND FL.NUM = CI.FLIGHT AND FL.NUM = BG.FLIGHT
      AND FL.TERMINAL = 'N' AND FL.CARRIER_CODE = 'DL'
"""


class Clock(NamedTuple):
    """The airline's time."""

    began_at: datetime
    began_s: float

    def at(self, now_s: float) -> datetime:
        return self.began_at + timedelta(seconds=(now_s - self.began_s) * COMPRESSION)


def tuples(stream: str, clock: Clock, rng: random.Random) -> Iterator[tuple[float, tuple[Any, ...]]]:
    """The tuples of a stream, each with the second of our clock at which it happens."""
    now_s = clock.began_s
    flights = itertools.cycle(range(1, FLIGHTS_MAX + 1))
    while True:
        now_s += rng.expovariate(SOURCES[stream].per_min / 60 * COMPRESSION)
        at = clock.at(now_s)
        yield now_s, (*_values(stream, next(flights), rng), at)


def _values(stream: str, number: int, rng: random.Random) -> tuple[Any, ...]:
    match stream:
        case "FLIGHTS":
            status = rng.choice(("ON TIME", "ON TIME", "ON TIME", "BOARDING", "DELAYED"))
            terminal = TERMINALS[number % 4]
            gate = f"{terminal}{number % 37 + 1}"
            return number, status, gate, CITIES[number % len(CITIES)], terminal, CARRIERS[number // 4 % 4]
        case "CHECK-INS":
            return rng.randint(1, FLIGHTS_MAX), rng.choice(("OPEN", "CLOSING", "CLOSED"))
        case "BAGGAGE":
            return rng.randint(1, FLIGHTS_MAX), rng.choice(("LOADING", "LOADED", "ON BOARD")), f"B{rng.randint(1, 9)}"
        case "WEATHER":
            return rng.choice(CITIES), rng.choice(FORECASTS)
    return rng.randint(1, FLIGHTS_MAX), rng.randint(1, 6), Decimal(rng.randrange(4000, 90000)) / 100
