"""A kept subscription is forgotten once no publisher waits for it any more, whatever crashes meanwhile."""

from __future__ import annotations

from protocols.catalogue.messages import ShowStream, StreamShown
from protocols.delivery.messages import CloseSubscription, Opened, OpenSubscription
from protocols.effects import Effect, Route
from protocols.messages import Done, Refused
from tests.protocols.lone import Lone

OPEN = OpenSubscription(stream="flights", subscription="kept", since="start", keep=True)
CLOSE = CloseSubscription(subscription="kept")


class Cut(Lone):
    """A peer that may be cut off from the store of the network."""

    is_cut = False

    def perform(self, effects: list[Effect]) -> None:
        super().perform([effect for effect in effects if not (self.is_cut and isinstance(effect, Route))])

    def readers(self) -> int:
        shown = self.answer(ShowStream(name="flights"))
        assert isinstance(shown, StreamShown)
        return shown.subscriptions


def kept() -> Cut:
    lone = Cut()
    lone.create("memory")
    assert isinstance(lone.answer(OPEN), Opened)
    lone.wait(5000)
    assert lone.readers() == 1
    return lone


def test_a_crash_before_it_is_unlisted_leaves_it_to_be_closed_again() -> None:
    lone = kept()
    lone.is_cut = True
    assert lone.ask(CLOSE, within_ms=1000) not in lone.answers
    lone.restart()
    lone.is_cut = False
    assert isinstance(lone.answer(CLOSE), Done), "it is still known"
    assert lone.readers() == 0
    lone.restart()
    assert isinstance(lone.answer(CLOSE), Refused)


def test_who_asks_meanwhile_is_answered_with_the_first() -> None:
    lone = kept()
    lone.is_cut = True
    first, second = lone.ask(CLOSE), lone.ask(CLOSE)
    opened = lone.answers[lone.ask(OPEN)][0]
    assert isinstance(opened, Refused)
    assert (opened.code, opened.retry_after_ms > 0) == ("busy", True)
    lone.is_cut = False
    lone.wait(30_000)
    assert isinstance(lone.answers[first][0], Done)
    assert isinstance(lone.answers[second][0], Done)
    assert lone.readers() == 0


def test_where_the_network_cannot_be_told_it_stays_and_the_client_hears_of_it() -> None:
    lone = kept()
    lone.is_cut = True
    refused = lone.answer(CLOSE)
    assert isinstance(refused, Refused)
    assert refused.code == "unavailable"
    lone.is_cut = False
    assert isinstance(lone.answer(OPEN), Opened), "nothing has changed"
    assert lone.readers() == 1
