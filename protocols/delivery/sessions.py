"""The outcome of clients' recent publishes, so that a repeated publish is answered and not done twice."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from protocols.clock import wall_ms
from protocols.delivery.messages import Publish, PublishNoted
from protocols.events import StoredBatch
from protocols.ids import Millis, StreamName

KEPT_MS: Final[Millis] = 600_000  # Longer than any client repeats a publish.
SESSIONS_MIN: Final = 256  # Kept however old they are.
NOTES_MAX: Final = 128  # Per session: more than a client has in flight.
NOTES_TOTAL_MAX: Final = 100_000  # When full, a new session waits until an old one ends.


@dataclass(slots=True)
class Sessions:
    """The notes of the most recent sessions."""

    _notes: OrderedDict[tuple[StreamName, bytes], OrderedDict[int, PublishNoted]] = field(default_factory=OrderedDict)
    _count: int = 0

    def note(self, command: Publish, batch: StoredBatch) -> PublishNoted:
        """Remember which tuples a publish has become."""
        note = PublishNoted(
            stream=command.stream,
            session=command.session,
            number=command.number,
            first=batch.first,
            count=batch.count,
            stamp=batch.published_at,
        )
        self.add(note)
        return note

    def add(self, note: PublishNoted) -> None:
        key = (note.stream, note.session)
        notes = self._notes.setdefault(key, OrderedDict())
        self._notes.move_to_end(key)
        self._count += note.number not in notes
        notes[note.number] = note
        if len(notes) > NOTES_MAX:
            notes.popitem(last=False)
            self._count -= 1
        self._forget_before(wall_ms(note.stamp) - KEPT_MS)

    def find(self, command: Publish) -> PublishNoted | None:
        return self._notes.get((command.stream, command.session), OrderedDict()).get(command.number)

    def has_room_for(self, command: Publish) -> bool:
        return self._count < NOTES_TOTAL_MAX or (command.stream, command.session) in self._notes

    def forget(self, stream: StreamName) -> None:
        """The stream, or this epoch of it, no longer exists."""
        for key in [key for key in self._notes if key[0] == stream]:
            self._count -= len(self._notes.pop(key))

    def notes(self) -> list[PublishNoted]:
        return [note for notes in self._notes.values() for note in notes.values()]

    def _forget_before(self, before: Millis) -> None:
        """Forget the sessions that have been silent since this time."""
        while len(self._notes) > SESSIONS_MIN:
            key, notes = next(iter(self._notes.items()))
            if wall_ms(next(reversed(notes.values())).stamp) > before:
                return
            self._count -= len(self._notes.pop(key))
