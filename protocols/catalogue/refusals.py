"""Answers that several roles give about streams."""

from __future__ import annotations

from protocols.ids import StreamName
from protocols.messages import Refused


def unknown_stream(name: StreamName, nearest: StreamName | None) -> Refused:
    """The answer for a stream that is not there."""
    meant = f'Did you mean "{nearest}"? ' if nearest else ""
    return Refused(
        code="unknown",
        error=f'stream "{name}" is not known',
        hint=f'{meant}"peer stream ls" shows the streams there are, "peer stream create" makes one.',
    )
