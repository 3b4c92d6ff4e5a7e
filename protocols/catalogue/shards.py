"""A directory in the store: its entries lie under a few keys, so that no peer has to keep all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocols.effects import Effect
from protocols.events import Event
from protocols.ids import Key, Millis
from protocols.store.entries import Entry
from protocols.store.events import StoreRead

SHARDS: Final = 16

Step = Callable[[Event, Millis], list[Effect]]
"""What to do once the store has answered."""
Read = Callable[[Key, Step, Millis], list[Effect]]
"""How the catalogue reads from the store: key, what follows, now."""
Listed = Callable[[tuple[Entry, ...] | None, Millis], list[Effect]]
"""What to do with all entries of a directory; None if a part of it did not answer."""


def shard_of(directory: str, name: str) -> Key:
    """The key under which a directory keeps a name."""
    return Key.of(directory, str(Key.of("shard", name)[0] % SHARDS))


def read_shards(read: Read, directory: str, then: Listed, now: Millis) -> list[Effect]:
    """Read all of a directory."""
    answers: list[Event] = []

    def answered(event: Event, now: Millis) -> list[Effect]:
        answers.append(event)
        if len(answers) < SHARDS:
            return []
        read = [each for each in answers if isinstance(each, StoreRead)]
        entries = tuple(entry for each in read for entry in each.entries)
        return then(entries if len(read) == SHARDS else None, now)

    effects: list[Effect] = []
    for shard in range(SHARDS):
        effects += read(Key.of(directory, str(shard)), answered, now)
    return effects
