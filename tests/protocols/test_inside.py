"""Roles of one peer that ask each other."""

from __future__ import annotations

from protocols.catalogue.messages import ListStreams
from protocols.effects import AfterSync, Reply, SetTimer, Tell
from protocols.events import Answered, Requested
from protocols.inside import Inside
from protocols.messages import Done

DONE = Done(stamp=1)


def test_a_question_comes_back_to_the_role_that_asked():
    inside = Inside()
    request, effect = inside.ask("queries", ListStreams())
    assert effect == Tell(Requested(request, ListStreams()))
    assert request < 0, "clients' numbers are above"
    turned = inside.turned(Reply(request, DONE))
    assert turned == Tell(Answered(request, DONE, last=True))
    assert inside.role_of(Answered(request, DONE, last=True)) == "queries"
    assert inside.roles == {}, "answered for good"


def test_a_subscription_is_answered_again_and_again():
    inside = Inside()
    request, _ = inside.ask("executor", ListStreams())
    for _ in range(3):
        assert inside.role_of(Answered(request, DONE, last=False)) == "executor"
    inside.forget(request)
    assert inside.role_of(Answered(request, DONE, last=False)) is None


def test_what_waits_for_the_disk_is_turned_too_and_clients_are_left_alone():
    inside = Inside()
    request, _ = inside.ask("queries", ListStreams())
    mine, theirs, timer = Reply(request, DONE), Reply(3, DONE), SetTimer("queries/tick", 5)
    assert inside.turned(AfterSync((mine, theirs, timer))) == AfterSync(
        (Tell(Answered(request, DONE, last=True)), theirs, timer)
    )
    assert inside.turned(theirs) is theirs
    assert inside.turned(timer) is timer
