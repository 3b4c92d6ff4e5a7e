"""What a proxy has asked other roles of its peer, and for which of its queries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from protocols.effects import Effect
from protocols.execution.running import Running
from protocols.ids import RequestId
from protocols.inside import Inside
from protocols.messages import Command

ROLE: Final = "queries"

Purpose = Literal["", "likely", "streams", "stream", "rates", "results", "publish", "drop"]


@dataclass(slots=True)
class Questions:
    """Questions that are not answered yet."""

    inside: Inside
    _asked: dict[RequestId, tuple[Running, Purpose]] = field(default_factory=dict)

    def ask(self, query: Running, purpose: Purpose, command: Command) -> list[Effect]:
        request, effect = self.inside.ask(ROLE, command)
        self._asked[request] = (query, purpose)
        return [effect]

    def take(self, request: RequestId) -> tuple[Running | None, Purpose]:
        """What was asked, now that it is answered."""
        return self._asked.pop(request, (None, ""))

    def stop(self, query: Running) -> None:
        """Answers still to come are of no use any more; that to a publish or a creation is."""
        for request, (asker, purpose) in list(self._asked.items()):
            if asker is query and purpose in ("likely", "streams", "stream", "rates"):
                del self._asked[request]
