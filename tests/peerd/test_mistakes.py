"""Senders of messages without sense: counted, and throttled while they err often."""

from __future__ import annotations

from peerd.mistakes import LEVEL_MAX, PEERS_MAX, Mistakes
from protocols.ids import PeerId

ROGUE, HONEST = PeerId(b"r" * 20), PeerId(b"h" * 20)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_who_errs_often_is_throttled_until_time_has_forgiven_it() -> None:
    clock = Clock()
    mistakes = Mistakes(clock)
    for _ in range(int(LEVEL_MAX)):
        assert not mistakes.is_throttled(ROGUE)
        mistakes.note(ROGUE, "BACKUP: a batch without tuples")
    assert mistakes.is_throttled(ROGUE)
    assert not mistakes.is_throttled(HONEST)
    clock.now_s += 1.5
    assert not mistakes.is_throttled(ROGUE)
    mistakes.note(ROGUE, "again")
    clock.now_s += 0.1
    mistakes.note(ROGUE, "and again")
    assert mistakes.is_throttled(ROGUE)
    assert mistakes.accounts[ROGUE].total == LEVEL_MAX + 2
    assert mistakes.accounts[ROGUE].last == "and again"


def test_accounts_are_bounded() -> None:
    mistakes = Mistakes(Clock())
    for number in range(PEERS_MAX + 10):
        mistakes.note(PeerId(number.to_bytes(20, "big")), "rubbish")
    assert len(mistakes.accounts) == PEERS_MAX
