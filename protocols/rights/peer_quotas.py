"""How much each other peer may have done and kept here, whatever it may do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from protocols.delivery.feed import Feed
from protocols.delivery.ingress import Ingress
from protocols.delivery.keeper import Keeper
from protocols.delivery.messages import Subscribe
from protocols.execution.executor import Executor
from protocols.ids import PeerId
from protocols.join_index.messages import IndexQuery
from protocols.join_index.rewriter import Rewriter
from protocols.messages import Message
from protocols.rights.quotas import Quotas
from protocols.subgraphs import Deploy

COUNTED: Final = (Deploy, Subscribe, IndexQuery)
"""The messages that make a peer keep something for their sender for as long as the sender likes."""


class Exceeded(NamedTuple):
    """A quota that a peer has used up."""

    name: str
    limit: int
    used: int


@dataclass(slots=True)
class PeerQuotas:
    """What other peers have here.

    Keeps: nothing; the roles know
    """

    publisher: Ingress
    keeper: Keeper
    executor: Executor
    rewriter: Rewriter

    def exceeded(self, sender: PeerId, message: Message, quotas: Quotas) -> Exceeded | None:
        """The quota that is in the way of a message; None if it may come in. What is there already is only renewed."""
        match message:
            case Deploy(query=query):
                limit, name = quotas.peer_subgraphs, "quota_peer_subgraphs"
                hosted = self.executor.hosted.items()
                used = sum(each.proxy == sender for key, each in hosted if key[0] != query) if limit else 0
            case Subscribe():
                limit, name = quotas.peer_subscriptions, "quota_peer_subscriptions"
                feeds = list(self._meant(message))
                is_known = any(_reads(feed, message, sender) for feed in feeds)
                used = self._served(sender) if limit and feeds and not is_known else 0
            case IndexQuery(query=query, side=side, replica=replica):
                limit, name = quotas.peer_joins, "quota_peer_joins"
                is_known = self.rewriter.holds((query.id, side, replica))
                used = self.rewriter.held_for(sender) if limit and not is_known else 0
            case _:
                return None
        return Exceeded(name, limit, used) if limit and used >= limit else None

    def _meant(self, message: Subscribe) -> Iterator[Feed]:
        """The feeds that a subscription is to read."""
        if message.copies_of:
            yield from (self.keeper.feeds[each] for each in message.copies_of if each in self.keeper.feeds)
        elif (outbox := self.publisher.outboxes.get(message.stream)) is not None:
            yield outbox.feed

    def _served(self, peer: PeerId) -> int:
        """To how many subscriptions of a peer something is served here, or a place is held for them."""
        own = (outbox.feed for outbox in self.publisher.outboxes.values())
        return sum(
            each.peer == peer for feed in chain(own, self.keeper.feeds.values()) for each in feed.consumers.values()
        )


def _reads(feed: Feed, message: Subscribe, peer: PeerId) -> bool:
    consumer = feed.consumers.get(message.subscription)
    return consumer is not None and consumer.peer == peer
