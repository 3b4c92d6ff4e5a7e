"""What became of clients' recent publishes, so that one asked again is answered and not repeated."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from protocols.delivery.messages import Publish, PublishNoted
from protocols.ids import StreamName

SESSIONS_MAX: Final = 256
NOTES_MAX: Final = 128  # Of one session: more than a client has under way at once.


@dataclass(slots=True)
class Sessions:
    """The notes of the sessions heard of last."""

    _notes: OrderedDict[tuple[StreamName, bytes], OrderedDict[int, PublishNoted]] = field(default_factory=OrderedDict)

    def add(self, note: PublishNoted) -> None:
        key = (note.stream, note.session)
        notes = self._notes.setdefault(key, OrderedDict())
        self._notes.move_to_end(key)
        notes[note.number] = note
        if len(notes) > NOTES_MAX:
            notes.popitem(last=False)
        if len(self._notes) > SESSIONS_MAX:
            self._notes.popitem(last=False)

    def find(self, command: Publish) -> PublishNoted | None:
        return self._notes.get((command.stream, command.session), OrderedDict()).get(command.number)

    def forget(self, stream: StreamName) -> None:
        """The stream, or this epoch of it, is no more."""
        for key in [key for key in self._notes if key[0] == stream]:
            del self._notes[key]

    def notes(self) -> list[PublishNoted]:
        return [note for notes in self._notes.values() for note in notes.values()]
