"""How tests ask the catalogue of one peer, as another role of it would."""

from __future__ import annotations

from protocols.events import Event
from protocols.ids import PeerId
from tests.protocols.store.network import StoreNetwork


def looked_up(network: StoreNetwork, peer: PeerId, name: str) -> Event:
    catalogue = network.nodes[peer].catalogue
    assert catalogue
    token = ("test", "lookup", network.time)
    network.effects(peer, catalogue.lookup(name, token, network.time, guess=True))
    network.run_until(lambda: token in network.told)
    return network.told.pop(token)
