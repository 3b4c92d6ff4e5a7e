"""What a role of a peer is: a machine that says which messages, commands, events and records are its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import ClassVar, NamedTuple, Protocol

from protocols.effects import Effect
from protocols.events import Event, LogBounds
from protocols.ids import LogId, Millis
from protocols.messages import Command, Message, Record


class Owned(NamedTuple):
    """What a peer hands to a role. An event that no role claims goes to all roles."""

    name: str  # Timers of the role, and tokens of what it asks other roles, begin with it.
    messages: tuple[type[Message], ...] = ()
    commands: tuple[type[Command], ...] = ()
    events: tuple[type[Event], ...] = ()
    records: tuple[type[Record], ...] = ()


class Role(Protocol):
    """One machine of a peer."""

    owned: ClassVar[Owned]

    def handle(self, event: Event, now: Millis) -> list[Effect]: ...
    def validate(self) -> None: ...


class KeptRole(Role, Protocol):
    """A role that owns records. The journal restores them after a crash."""

    def restore(self, record: Record, logs: Mapping[LogId, LogBounds]) -> None: ...
    def snapshot(self) -> list[Record]: ...


def messages_in(module: ModuleType) -> tuple[type[Message], ...]:
    """Every kind of message that a module defines."""
    things = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    return tuple(each for each in things if issubclass(each, Message))
