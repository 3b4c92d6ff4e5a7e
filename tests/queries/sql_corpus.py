"""Streams and SQL texts that the tests of the SQL front end share."""

from __future__ import annotations

from queries.catalogue import Stream
from queries.schema import Schema
from queries.sql_streams import CreateStream, read_all

STREAMS_TEXT = """
CREATE STREAM flights (num int, status string, departing string, destn string, dest string, dp-time timestamp,
    gate string null, terminal string, carrier_code string, at timestamp, delay float null, price decimal)
    WITH (event_time = at, lateness = 5s);
CREATE STREAM weather (city string, forecast string, temp float);
CREATE STREAM check-ins (flnum int, flight int, status string);
CREATE STREAM baggage (flight int, status string, area string);
CREATE STREAM sales (dest string, amount decimal, place record(lat float, lon float null) null, raw bytes);
CREATE STREAM Document (Id int, Title string, Conference string, AuthorId int);
CREATE STREAM Authors (Id int, Name string, Surname string);
CREATE STREAM R (A int, B int, C int);
CREATE STREAM S (B int, C int, D int, E int, F int);
CREATE STREAM plant.heat (celsius float, ok bool);
"""


def streams() -> dict[str, Stream]:
    return {each.name: each.stream for each in read_all(STREAMS_TEXT) if isinstance(each, CreateStream)}


def one(name: str, schema: str, **how: object) -> dict[str, Stream]:
    return {name: Stream(name, Schema.parse(schema), **how)}  # type: ignore[arg-type]


IFLOW_Q1 = """SELECT FL.STATUS, WR.FORECAST, CI.STATUS
FROM FLIGHTS FL, WEATHER WR, CHECK-INS CI
WHERE FL.DEPARTING='ATLANTA'
AND FL.DESTN = WR.CITY AND FL.NUM = CI.FLNUM
AND FL.DP-TIME - CURRENT_TIME < 12:00:00"""

IFLOW_GATE = """SELECT FL.GATE, BG.STATUS, CI.STATUS
FROM FLIGHTS FL [RANGE 5 MINUTES], BAGGAGE BG
[RANGE 1 MINUTE], CHECK-INS CI [RANGE 1 MINUTE]
WHERE FL.NUM = CI.FLIGHT AND FL.NUM =
BG.FLIGHT AND FL.NUM = ?;"""

FIVE_WAY = """SELECT FL.NUM, FL.GATE, BG.AREA, CI.STATUS, WR.FORECAST, SA.AMOUNT
FROM FLIGHTS FL [RANGE 5 MINUTES], WEATHER WR [RANGE 5 MINUTES], CHECK-INS CI [RANGE 1 MINUTE],
BAGGAGE BG [RANGE 1 MINUTE], SALES SA [RANGE 1 MINUTE]
WHERE FL.DEST = WR.CITY AND FL.NUM = CI.FLIGHT AND FL.NUM = BG.FLIGHT AND SA.DEST = FL.DEST
AND FL.TERMINAL = 'A' AND FL.CARRIER_CODE = 'DL'"""

CORPUS = (
    IFLOW_Q1,
    IFLOW_GATE.replace("?", "7"),
    FIVE_WAY,
    "Select D.Title, D.Conference From Document as D, Authors as A Where D.AuthorId = A.Id and A.Surname = 'Smith'",
    "Select R.A, S.D From R, S Where 4 * R.B + R.C + 8 = 5 * S.E + S.D * S.F",
    "SELECT * FROM flights",
    "SELECT fl.*, lower(gate) AS gate FROM flights AS fl WHERE delay > 1.5 OR gate IS NULL AND NOT price <= 10e2",
    "SELECT num FROM flights WHERE at BETWEEN '2026-01-01' AND TIMESTAMP '2026-02-01 12:00:00' AND num IN (1, 2, 3)",
    "SELECT num FROM flights WHERE gate NOT LIKE 'A%' ESCAPE '!' AND num NOT IN (7) AND dp-time IS NOT NULL",
    "SELECT CASE WHEN delay > 60 THEN 'late' WHEN delay IS NULL THEN '?' ELSE 'fine' END AS how FROM flights",
    "SELECT CASE num WHEN 1 THEN 'one' END, coalesce(gate, 'none'), -num, num % 2, num / 2.0 FROM flights",
    "SELECT substring(gate FROM 1 FOR 2), trim(LEADING 'x' FROM gate), position('a' IN gate) FROM flights",
    "SELECT extract(hour FROM at), date_trunc('day', at), CAST(num AS string) || 'x', price::float FROM flights",
    "SELECT place.lat, sales.place.lon, raw FROM sales WHERE raw = X'00ff' AND amount = '1.50'",
    "SELECT gate, count(*) AS n, avg(delay) FROM flights [RANGE 5 MINUTES SLIDE 1 MINUTE] GROUP BY gate HAVING n > 3",
    "SELECT gate, extract(hour FROM at) AS h, window_start(), count(DISTINCT num) FROM flights "
    "GROUP BY gate, h, TUMBLE(at, INTERVAL '5' MINUTE)",
    "SELECT sum(price), min(delay), max(at), stddev(delay) FROM flights GROUP BY HOP(INTERVAL '1 hour', 00:10:00)",
    "SELECT DISTINCT gate, terminal FROM flights [ROWS 20 SLIDE 10]",
    "SELECT fl.num FROM flights fl [ROWS 5] JOIN sales [RANGE 1 DAY] s ON fl.dest = s.dest WHERE fl.num > 3",
    "SELECT count(*) FROM flights f JOIN weather w ON f.dest = w.city GROUP BY w.city, TUMBLE(INTERVAL 1 HOUR)",
    "SELECT num FROM flights UNION ALL (SELECT price FROM flights) UNION ALL SELECT temp FROM weather",
    "SELECT h.celsius FROM plant.heat AS h, weather CROSS JOIN R WHERE h.ok IS TRUE AND h.ok IS NOT FALSE",
    "SELECT now(), CURRENT_TIMESTAMP FROM flights WHERE now() - at < INTERVAL '90' SECONDS -- a comment",
    "SELECT num FROM flights WITH (placement = in-network, within = 120 ms, join = 'dai-q')",
    'SELECT "check-ins".status /* quoted */ FROM "check-ins" WHERE flight = ANY (1, 2) AND flight <> ALL (3)',
    "CREATE STREAM a-b (x int, y record(z float null)) WITH (retention = 1h, policy = drop-oldest)",
    "DROP STREAM check-ins",
)
