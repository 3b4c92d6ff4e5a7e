"""How one role of a peer uses another as a client does: the same commands, answered by an event."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from protocols.effects import AfterSync, Effect, Reply, Tell
from protocols.events import Answered, Requested
from protocols.ids import RequestId
from protocols.messages import Command


@dataclass(slots=True)
class Inside:
    """The commands that roles of this peer give each other. Their request numbers are negative, unlike clients'."""

    roles: dict[RequestId, str] = field(default_factory=dict)  # Who waits for each answer.
    _last: RequestId = 0

    def ask(self, role: str, command: Command) -> tuple[RequestId, Effect]:
        """Give a command on behalf of a role. The role gets Answered once, or many times for a subscription."""
        self._last -= 1
        self.roles[self._last] = role
        return self._last, Tell(Requested(self._last, command))

    def tell(self, command: Command) -> Effect:
        """Give a command whose answer nobody waits for."""
        self._last -= 1
        return Tell(Requested(self._last, command))

    @staticmethod
    def is_client(request: RequestId) -> bool:
        """Whether a command comes from outside, and not from a role of this peer."""
        return request >= 0

    def turned(self, effect: Effect) -> Effect:
        """A reply to a role becomes an event for it; any other effect stays as it is."""
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


@dataclass(slots=True)
class Questions:
    """The questions of one role that are not answered yet: on whose behalf each was asked, and what for."""

    inside: Inside
    role: str
    _asked: dict[RequestId, tuple[str, str]] = field(default_factory=dict)

    def ask(self, owner: str, purpose: str, command: Command) -> list[Effect]:
        request, effect = self.inside.ask(self.role, command)
        self._asked[request] = (owner, purpose)
        return [effect]

    def owner_of(self, request: RequestId) -> str:
        return self._asked.get(request, ("", ""))[0]

    def take(self, request: RequestId) -> str:
        """The purpose of a question that is now answered; empty if nobody wants the answer any more."""
        return self._asked.pop(request, ("", ""))[1]

    def stop(self, owner: str, purposes: Container[str]) -> None:
        """Answers for these purposes are of no use any more."""
        self._asked = {
            request: (asker, purpose)
            for request, (asker, purpose) in self._asked.items()
            if asker != owner or purpose not in purposes
        }
