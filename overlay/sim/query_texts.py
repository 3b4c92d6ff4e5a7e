"""The streams and queries of simulated clients."""

from __future__ import annotations

import re
from typing import Final

from queries.catalogue import Stream
from queries.schema import Schema

SCHEMA: Final = Schema.parse("number int, part int, at timestamp")
STREAMS: Final = {
    **{name: Stream(name, SCHEMA, "at") for name in ("left_side", "right_side")},
    "clock_side": Stream("clock_side", SCHEMA),  # Its time is that of publication.
}
QUERIES: Final = (
    "SELECT number * 2 AS twice, part FROM left_side WHERE part <> 1",
    "SELECT number, part FROM left_side WHERE part = 1 UNION ALL SELECT number + 1000, part FROM right_side",
    "SELECT l.number, r.number AS other FROM left_side l [RANGE 3 SECONDS], right_side r [RANGE 2 SECONDS] "
    "WHERE l.part = r.part AND r.number > 3",
    "SELECT part, count(*) AS rows, sum(number) AS total FROM right_side [RANGE 4 SECONDS SLIDE 2 SECONDS] "
    "WHERE number <> 2 GROUP BY part",
    "SELECT l.number, r.number AS other FROM left_side l, right_side r WHERE l.part = r.part AND l.part = 2",
    "SELECT a.number, b.number AS other FROM left_side a [RANGE 3 SECONDS], left_side b [RANGE 2 SECONDS] "
    "WHERE a.part = b.part AND b.number > 2",
    "SELECT number, part FROM right_side WHERE part <> 2 UNION ALL SELECT number + 500, part FROM right_side",
    "SELECT part, count(*) AS rows, min(number) AS least FROM clock_side [RANGE 3 SECONDS SLIDE 3 SECONDS] "
    "GROUP BY part",
)
SEVERAL: Final = {name: Stream(name, SCHEMA, "at") for name in ("left_side", "right_side", "far_side")}
JOINS_OF_SEVERAL: Final = tuple(
    # Many redundant conditions make the planner expect few results, so that placing a join apart may pay.
    re.sub(r"(\w+) ~ (\w+)", " AND ".join(rf"\1.number + {more} = \2.number + {more}" for more in range(8)), text)
    for text in (
        "SELECT l.number, r.part, f.number AS far FROM left_side l, right_side r, far_side f WHERE l ~ r AND r ~ f",
        "SELECT r.part, f.part AS other FROM left_side l, right_side r, far_side f "
        "WHERE l ~ r AND r.part = f.part AND f.number <> 6 AND l.number <> 2",
        "SELECT a.number, d.number AS far FROM left_side a, right_side b, left_side c, far_side d "
        "WHERE a ~ b AND b ~ c AND c ~ d AND b.part <> 1",
        "SELECT c.part FROM far_side a, far_side b, far_side c WHERE a ~ b AND a.part = c.part",
        "SELECT l.number, f.number AS far FROM left_side l [RANGE 3 SECONDS], right_side r [RANGE 2 SECONDS], "
        "far_side f [RANGE 4 SECONDS] WHERE l.part = r.part AND r.part <> f.part",
        "SELECT a.number, b.number AS next, d.part FROM left_side a [RANGE 2 SECONDS], left_side b [RANGE 1 SECOND], "
        "right_side c, far_side d [RANGE 3 SECONDS] WHERE a.part <> b.part AND c ~ b AND d.part = a.part",
    )
)
SHARED: Final = (
    "SELECT number, part FROM left_side WHERE part = 0 AND number >= 0",
    "SELECT number, part FROM left_side WHERE part = 0 AND number >= 9",
    "SELECT number, part FROM left_side WHERE part = 1 AND number >= 9",
    "SELECT number, part FROM left_side WHERE part = 2",
    "SELECT number + 1 AS more FROM left_side WHERE number > 5 OR part = 2",
    "SELECT number + 2 AS more FROM left_side WHERE number > 20 OR part = 2",
    "SELECT number, part FROM left_side",
    "SELECT number FROM left_side WHERE number > 5 AND number <= 25 WITH (sharing = off)",
    "SELECT number FROM left_side WHERE part = 1 UNION ALL SELECT number + 100 FROM left_side WHERE part = 2",
    "SELECT number, part FROM clock_side WHERE part <> 1",
    "SELECT number FROM clock_side WHERE number < 12",
    "SELECT part, count(*) AS rows, sum(number) AS total FROM left_side [RANGE 4 SECONDS SLIDE 2 SECONDS] "
    "WHERE number <> 2 GROUP BY part",
    "SELECT part, max(number) AS most FROM left_side [RANGE 3 SECONDS SLIDE 3 SECONDS] WHERE part < 2 GROUP BY part",
    # With the first of the two above these share slices.
    "SELECT part, sum(number) AS total FROM left_side [RANGE 5 SECONDS SLIDE 3 SECONDS] "
    "WHERE number <> 2 GROUP BY part",
    "SELECT part, min(number) AS least, sum(number) AS total FROM left_side [RANGE 9 SECONDS SLIDE 1 SECOND] "
    "WHERE number <> 2 GROUP BY part HAVING sum(number) > 9",
    "SELECT l.part AS which, sum(l.number) AS total FROM left_side AS l [RANGE 2 SECONDS] WHERE l.number <> 2 "
    "GROUP BY l.part",
    "SELECT part, count(*) AS rows FROM clock_side [RANGE 3 SECONDS SLIDE 3 SECONDS] GROUP BY part",
    "SELECT part, min(number) AS least, sum(number) AS total FROM clock_side [RANGE 4 SECONDS SLIDE 1 SECOND] "
    "GROUP BY part",
    "SELECT a.number, b.number AS other FROM left_side a [RANGE 3 SECONDS], left_side b [RANGE 2 SECONDS] "
    "WHERE a.part = b.part AND b.number > 12",
)
STATEFUL: Final = "SELECT part, count(*) AS rows FROM left_side [RANGE 2 SECONDS SLIDE 2 SECONDS] GROUP BY part"
PLAIN: Final = {
    "left_side": Stream("left_side", Schema.parse("number int, part int, at timestamp")),
    "right_side": Stream("right_side", Schema.parse("number int, part float, at timestamp")),
}
WINDOWED: Final = (
    "SELECT l.number, r.number AS other FROM left_side l [RANGE 3 SECONDS], right_side r [RANGE 2 SECONDS] "
    "WHERE l.part = r.part",
    "SELECT l.number, r.number AS other FROM left_side l [RANGE 1 SECOND], right_side r [RANGE 6 SECONDS] "
    "WHERE l.part = r.part AND r.number <> 3",
    "SELECT a.number, b.number AS other FROM left_side a [RANGE 2 SECONDS], left_side b [RANGE 4 SECONDS] "
    "WHERE a.part = b.part AND a.number <> b.number",
    "SELECT l.number, r.number AS other FROM left_side l [RANGE 2 SECONDS], right_side r WHERE l.part = r.part",
)
JOINS: Final = (
    "SELECT l.number, r.number AS other FROM left_side l, right_side r WHERE l.part = r.part AND r.number <> 3",
    "SELECT r.number, l.part FROM left_side l, right_side r WHERE r.number = l.number AND l.part = r.part",
    WINDOWED[0],
    "SELECT a.number, b.number AS other FROM left_side a, left_side b WHERE a.part = b.part AND a.number < b.number",
    "SELECT a.number, b.part FROM right_side a, right_side b WHERE a.number = b.number",
    "SELECT l.number, r.part FROM left_side l, right_side r WHERE l.number + 1 = r.number - 2",
)
JOINS_OF_VALUES: Final = (
    "SELECT l.number, r.number AS other FROM left_side l, right_side r "
    "WHERE 4 * l.number + l.part + 8 = 5 * r.number + r.part * r.part",
    "SELECT a.number, b.number AS other FROM left_side a, left_side b "
    "WHERE a.number + 1 = b.number * 2 AND b.part <> 1",
)
