"""Who sends messages that no peer of ours would send: they are counted and logged, and who errs often is throttled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from protocols.ids import PeerId

PEERS_MAX: Final = 1024
LEVEL_MAX: Final = 50.0  # Mistakes beyond those that time has forgiven: with more a peer is throttled.
FORGIVEN_PER_S: Final = 1.0

log = structlog.get_logger("peerd.mistakes")


@dataclass(slots=True)
class Account:
    """The mistakes of one peer."""

    total: int = 0
    level: float = 0.0
    noted_at: float = 0.0
    last: str = ""  # What was wrong with the latest one.


class Mistakes:
    """Accounts of the peers that erred, the latest last; the oldest is forgotten where there are too many.

    A throttled peer is heard again as soon as time has forgiven enough. So one that errs all the time is heard, and
    logged, once in a second.
    """

    def __init__(self, time_s: Callable[[], float]) -> None:
        self.accounts: OrderedDict[PeerId, Account] = OrderedDict()
        self._time_s = time_s

    def note(self, peer: PeerId, reason: str) -> None:
        account = self.accounts.setdefault(peer, Account())
        self.accounts.move_to_end(peer)
        account.level = self._level(account) + 1.0
        account.noted_at, account.last = self._time_s(), reason
        account.total += 1
        if len(self.accounts) > PEERS_MAX:
            self.accounts.popitem(last=False)
        log.warning(
            "a message that makes no sense; it is dropped",
            sender=peer.short,
            reason=reason,
            mistakes=account.total,
            throttled=account.level >= LEVEL_MAX,
        )

    def is_throttled(self, peer: PeerId) -> bool:
        """Whether messages of a peer are dropped unread for now."""
        account = self.accounts.get(peer)
        return account is not None and self._level(account) >= LEVEL_MAX

    def _level(self, account: Account) -> float:
        forgiven = (self._time_s() - account.noted_at) * FORGIVEN_PER_S
        return max(0.0, account.level - forgiven)
