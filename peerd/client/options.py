"""How a query is to run, as a program asks for it."""

from __future__ import annotations

from typing import Literal, TypedDict

from protocols.clock import Stamp
from protocols.execution.messages import PlacementName, QueryId, ResultsDurability

QueryEngine = Literal["auto", "inline", "spark", "sai", "dai-q", "dai-t", "dai-v"]  # The last four: the join index.


class QueryOptions(TypedDict, total=False):
    """The options of `Client.query` and `Client.submit`. None of them is needed.

    The text of a query can have most of them, too (`SELECT … WITH (…)`); what is given here goes before that.
    """

    name: QueryId  # The peer finds one if there is none.
    engine: QueryEngine
    placement: PlacementName  # How its operators are placed.
    within_ms: float | None  # A bound on the delay of a tuple to this peer.
    statistics: str  # Of streams that nobody publishes to yet, as `peer history --stats -o json` prints them.
    since: Literal["now", "start"] | Stamp  # It begins in the past, with what its streams have kept from then on.
    durability: ResultsDurability  # "replicated" keeps the results on a second disk, too.
    takeover_ms: float | None  # The peer with that disk goes on with the query once this one has been gone so long.
