"""A client that sends well-formed commands without sense, in any order: its peer goes on, and says why not."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from protocols.catalogue.messages import DropStream
from protocols.delivery.messages import CloseSubscription, Publish, Published
from protocols.errors import RemoteProtocolError
from protocols.execution.messages import StopQuery, SubmitQuery
from protocols.messages import Command, Refused
from protocols.rights.messages import Revoke, SetPolicy
from protocols.store.messages import Leave
from protocols.wire import COMMANDS
from tests.protocols.at_work import ASKED, COUNT, INDEXED, JOIN, network
from tests.protocols.lone import SCHEMA, Lone
from tests.protocols.things import make
from tests.seeds import draw_seed
from tests.sim.senseless import Mutator
from tests.soaking import many

SENT = 400
ENDS = (Leave, SetPolicy, DropStream, Revoke, StopQuery, CloseSubscription)  # Little can happen behind one of these.
KNOWN = {"stream": "flights", "name": "flights", "query": "kept", "subscription": "kept"}


def command(rng: random.Random, mutator: Mutator, kinds: list[type[Command]]) -> Command | None:
    """Any command, about what there is or not; None if no decoder takes it."""
    kind: Any = rng.choice(kinds)
    made = mutator.changed(make(kind, rng), kind)
    if rng.random() < 0.5:
        made = replace(made, **{name: value for name, value in KNOWN.items() if name in kind.__struct_fields__})
    if "text" in kind.__struct_fields__ and rng.random() < 0.7:
        made = replace(made, text=rng.choice((JOIN, INDEXED, COUNT)))
    try:
        return COMMANDS.decode(COMMANDS.encode(made))
    except (RemoteProtocolError, OverflowError):
        return None


def refusal(lone: Lone) -> str:
    """Why a peer does not do what it always did; empty if it does."""
    row = SCHEMA.encode([(1, "VIE")])
    answer = lone.answer(Publish(stream="flights", rows=row, count=1, version=99))
    return "" if isinstance(answer, Published) else str(answer)


@pytest.mark.parametrize("turn", range(many(2, soaked=20)))
@pytest.mark.parametrize("left_out", [(Leave,), ENDS], ids=["all", "that end nothing"])
def test_whatever_a_client_says_its_peer_goes_on(turn: int, left_out: tuple[type[Command], ...]):
    rng = random.Random(draw_seed() + turn)
    mutator = Mutator(rng, "knows")
    lone, entries = network()
    for each in (*entries, *ASKED):
        mutator.hear_of(each)
    kinds = [kind for kind in COMMANDS.kinds if kind not in left_out]
    sent: Counter[str] = Counter()
    for _ in range(SENT):
        made = command(rng, mutator, kinds)
        if made is not None:
            sent[type(made).__name__] += 1
            lone.ask(made, rng.choice((0, 0, 200, 3000)))
    assert sent.total() > SENT / 2
    if left_out == ENDS:
        assert refusal(lone) == ""


@pytest.mark.parametrize(
    "text", ['{"flights":' * 5000, "[" * 5000, '{"flights": {"rate_per_s": 1e999}}', "9" * 5000, "[{"]
)
def test_statistics_that_are_none_are_refused(text: str):
    lone, _ = network()
    answer = lone.answer(SubmitQuery(text=COUNT, statistics=text))
    assert isinstance(answer, Refused)
    assert (answer.code, answer.error) == ("invalid", "the statistics of its streams cannot be read")
