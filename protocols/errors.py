"""Whose mistake it is: ours stops the peer, theirs is dropped and counted."""

from __future__ import annotations


class RemoteProtocolError(ValueError):
    """Another peer, or a client, sent what no peer of ours would send."""


class LocalProtocolError(AssertionError):
    """We are about to do what the protocol forbids; the peer stops."""


class UnknownKind(RemoteProtocolError):
    """A message of a kind that this release does not have: its sender is newer."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"kind {kind} is not known to this release")
        self.kind = kind


def expect(is_so: bool, mistake: str) -> None:
    """What another peer sent must be so, or it is its mistake."""
    if not is_so:
        raise RemoteProtocolError(mistake)
