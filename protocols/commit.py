"""Effects that wait for the disk: they may happen only when everything appended before them is safe."""

from __future__ import annotations

from collections import deque

from protocols.effects import Effect


class SyncGate:
    """Holds the effects of AfterSync, in order, until the journal has synced far enough.

    >>> gate = SyncGate()
    >>> gate.hold(appended=2, effects=(Effect(),))
    >>> gate.release(synced=1), gate.release(synced=2)
    ([], [Effect()])
    """

    def __init__(self) -> None:
        self._held: deque[tuple[int, tuple[Effect, ...]]] = deque()

    def hold(self, appended: int, effects: tuple[Effect, ...]) -> None:
        self._held.append((appended, effects))

    def release(self, synced: int) -> list[Effect]:
        """The effects that may be performed, now that so much is on disk."""
        released: list[Effect] = []
        while self._held and self._held[0][0] <= synced:
            released += self._held.popleft()[1]
        return released
