"""Whose mistake it is: ours stops the peer, theirs is dropped and counted."""

from __future__ import annotations


class RemoteProtocolError(ValueError):
    """Another peer, or a client, sent what no peer of ours would send."""


class LocalProtocolError(AssertionError):
    """We are about to do what the protocol forbids; the peer stops."""
