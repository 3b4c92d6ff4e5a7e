"""Two relations and queries over them, for the tests of single machines."""

from __future__ import annotations

from typing import Any

from protocols.clock import COUNT_BITS
from protocols.events import Received
from protocols.ids import Millis, PeerId
from protocols.join_index.messages import Attribute, JoinQuery
from protocols.messages import Message
from protocols.subgraphs import Algorithm
from queries import sql
from queries.catalogue import Stream
from queries.schema import Schema

STREAMS = {
    "R": Stream("R", Schema.parse("A int, B int")),
    "S": Stream("S", Schema.parse("D int, E int")),
    "P": Stream("P", Schema.parse("at timestamp, x int"), event_time="at"),
}
R_B = Attribute("R", ("B",))
S_E = Attribute("S", ("E",))
HOUR_MS = 3_600_000
SUBSCRIBER, PUBLISHER, REWRITER, EVALUATOR = (PeerId.of_public_key(bytes([number])) for number in range(4))
EQUI_JOIN = "SELECT R.A, S.D FROM R, S WHERE R.B = S.E"


def query(
    text: str = EQUI_JOIN, algorithm: Algorithm = "sai", name: str = "q1", at: Millis = 0, **more: Any
) -> JoinQuery:
    plan = sql.plan(text, STREAMS).plan
    return JoinQuery(name, SUBSCRIBER, at << COUNT_BITS, algorithm, plan, HOUR_MS, **more)


def received(message: Message, sender: PeerId = PUBLISHER) -> Received:
    return Received(sender, message)
