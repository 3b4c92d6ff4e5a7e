"""How one role of a peer uses another as a client does: the same commands, answered by an event."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocols.effects import AfterSync, Effect, Reply, Tell
from protocols.events import Answered, Requested
from protocols.ids import RequestId
from protocols.messages import Command


@dataclass(slots=True)
class Inside:
    """The questions that roles of this peer have put to each other. Their numbers are below zero, clients' are not."""

    roles: dict[RequestId, str] = field(default_factory=dict)
    _last: RequestId = 0

    def ask(self, role: str, command: Command) -> tuple[RequestId, Effect]:
        """A command of a role; it hears Answered once, or again and again for a subscription."""
        self._last -= 1
        self.roles[self._last] = role
        return self._last, Tell(Requested(self._last, command))

    def tell(self, command: Command) -> Effect:
        """A command that is not answered."""
        self._last -= 1
        return Tell(Requested(self._last, command))

    @staticmethod
    def is_client(request: RequestId) -> bool:
        """Whether a question comes from outside, and not from a role of this peer."""
        return request >= 0

    def turned(self, effect: Effect) -> Effect:
        """A reply to a role becomes something that happens to it; anything else stays what it is."""
        if isinstance(effect, Reply) and not self.is_client(effect.request):
            return Tell(Answered(effect.request, effect.answer, effect.last))
        if isinstance(effect, AfterSync) and any(isinstance(each, Reply) for each in effect.effects):
            return AfterSync(tuple(self.turned(each) for each in effect.effects))
        return effect

    def role_of(self, event: Answered) -> str | None:
        """Who asked; None where nobody waits for it any more."""
        if event.last:
            return self.roles.pop(event.request, None)
        return self.roles.get(event.request)

    def forget(self, request: RequestId) -> None:
        self.roles.pop(request, None)
