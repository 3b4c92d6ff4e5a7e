"""Messages, records, commands and answers about who may do what.

client ── AUTHENTICATE ──▶ peer ── AUTHENTICATED | REFUSED ──▶ client       all that follows is the client's
client ── GRANT, … ──▶ peer, which writes to the store, then RIGHTS_NEWS ──▶ every peer it knows: read again
peer ── what it may not do ──▶ peer ── NOT_ALLOWED ──▶ peer
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from protocols.clock import Stamp
from protocols.errors import expect
from protocols.ids import Count, Millis, PeerId
from protocols.messages import Answer, Command, Message, Record

Principal = str
"""Who asks: `peer:ID`, `client:NAME`. A grant may also name `peer:*`, `client:*` or `*`."""
Verb = Literal["publish", "read", "create", "stop", "admin"]
NetworkPolicy = Literal["open", "closed"]
OPEN: Final[NetworkPolicy] = "open"
CLOSED: Final[NetworkPolicy] = "closed"
DIGEST_MAX: Final = 32  # Bytes.
TEXT_MAX: Final = 1200  # Characters of a principal, an object or a kind of message.
ANONYMOUS: Final = "anonymous"
"""The client that presents no token at a door where one is expected; no token has this name."""


class RightsNews(Message, frozen=True, kw_only=True, tag="RIGHTS_NEWS"):
    """This is my copy of the rights, by its digest. Who has another reads the store again: nobody believes a digest."""

    digest: bytes
    is_answer: bool = False  # Nobody answers an answer.

    def check(self) -> None:
        expect(len(self.digest) <= DIGEST_MAX, "a digest that is too long")


class NotAllowed(Message, frozen=True, kw_only=True, tag="NOT_ALLOWED"):
    """What you sent needs a right that somebody lacks; it had no effect here."""

    kind: str  # Of the message.
    principal: Principal
    verb: Verb
    object: str
    digest: bytes = b""  # Of the rights that the sender goes by. They may be newer than the receiver's, or older.

    def check(self) -> None:
        expect(len(self.digest) <= DIGEST_MAX, "a digest that is too long")
        longest = max(len(self.kind), len(self.principal), len(self.object))
        expect(longest <= TEXT_MAX, "a text that is too long")


# In the journal.


class RightKept(Record, frozen=True, kw_only=True, tag="RIGHT"):
    """One entry of the rights as this peer knows it, so that a restart in a partition does not open the door."""

    item: str
    stamp: Stamp
    writer: PeerId
    value: bytes | None


class RightsKnown(Record, frozen=True, kw_only=True, tag="RIGHTS_KNOWN"):
    """This peer has read the rights once: from now on it goes by its copy until it can read them again."""

    at: Millis


# Between a client and its peer.


class Authenticate(Command, frozen=True, kw_only=True, tag="AUTHENTICATE"):
    """From now on this connection acts for the client of this token, NAME.SECRET. Without one, for `anonymous`."""

    token: str = ""


class Authenticated(Answer, frozen=True, kw_only=True, tag="AUTHENTICATED"):
    """The token is good."""

    client: str


class SetPolicy(Command, frozen=True, kw_only=True, tag="SET_POLICY"):
    """Open: everybody in the network may do everything. Closed: only what is granted. Answered with Done."""

    policy: NetworkPolicy


class Grant(Command, frozen=True, kw_only=True, tag="GRANT"):
    """Somebody may do this with streams, or with queries (`query:NAME`), whose names match. Answered with Done."""

    principal: Principal
    verbs: tuple[Verb, ...]
    pattern: str = "*"


class Revoke(Command, frozen=True, kw_only=True, tag="REVOKE"):
    """Take a grant back: these verbs of it, or all. Answered with Done."""

    principal: Principal
    verbs: tuple[Verb, ...] = ()
    pattern: str = "*"


class CreateToken(Command, frozen=True, kw_only=True, tag="CREATE_TOKEN"):
    """A token for a client. Its secret stays with whoever made it up. Answered with Done."""

    client: str
    digest: bytes  # SHA-256 of the secret.
    expires_at: Millis = 0  # 0: never.


class RemoveToken(Command, frozen=True, kw_only=True, tag="REMOVE_TOKEN"):
    """The token is worth nothing from now on. Its grants stay, for a later token of this name. Answered with Done."""

    client: str


class ShowRights(Command, frozen=True, kw_only=True, tag="SHOW_RIGHTS"):
    """Which rights are there?"""


class GrantShown(msgspec.Struct, frozen=True, array_like=True):
    """What one principal may do with what matches a pattern."""

    principal: Principal
    pattern: str
    verbs: tuple[Verb, ...]


class TokenShown(msgspec.Struct, frozen=True, array_like=True):
    """A client token, without its digest."""

    client: str
    created_at: Millis
    expires_at: Millis


class RightsShown(Answer, frozen=True, kw_only=True, tag="RIGHTS"):
    """All rights, as this peer knows them."""

    policy: NetworkPolicy
    grants: tuple[GrantShown, ...]
    tokens: tuple[TokenShown, ...]
    peer: PeerId  # Who answers,
    client: str  # and whom: empty for the peer's own user.
    is_known: bool  # False: this peer has not read them yet, and allows nothing until it has.


class ListAudit(Command, frozen=True, kw_only=True, tag="LIST_AUDIT"):
    """What was refused or changed at this peer lately?"""


class AuditEvent(msgspec.Struct, frozen=True, array_like=True):
    """One thing that whoever watches over a network wants to know."""

    at: Millis
    what: str  # refused | change | changed | token | quota | told
    principal: Principal
    action: str  # What it was about: a verb and an object, a change, a quota.
    via: str  # client | the kind of message
    count: Count = 1  # How often in a row.


class AuditListed(Answer, frozen=True, kw_only=True, tag="AUDIT"):
    """The newest events, oldest first."""

    events: tuple[AuditEvent, ...]
