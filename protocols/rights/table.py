"""The rights as one peer knows them: entries of the store, and the answer to "may this one do that?"."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeVar, get_args

import msgspec

from protocols.clock import Stamp
from protocols.ids import Key, Millis, PeerId
from protocols.reading import read
from protocols.rights.messages import (
    CLOSED,
    OPEN,
    GrantShown,
    NetworkPolicy,
    Principal,
    RightKept,
    TokenShown,
    Verb,
)
from protocols.store.entries import Entry

KEY: Final = Key.of("rights")
POLICY: Final = "policy"
VERBS: Final[tuple[Verb, ...]] = get_args(Verb)
QUERY: Final = "query:"
NAMES_MAX: Final = 4096  # Of streams and peers, asked for again with each message.
DECISIONS_MAX: Final = 50_000  # Remembered; then they are made anew.
PRINCIPAL: Final = re.compile(r"\*|peer:(?:\*|[0-9a-f]{40})|client:(?:\*|[a-z0-9][a-z0-9_-]{0,62})")
CLIENT: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
PATTERN: Final = re.compile(r"(?:query:)?[A-Za-z0-9._*-]{1,127}")
_RESULTS: Final = re.compile(r"(.+)\.[0-9a-f]+-[0-9a-f]{8}-[0-9a-f]+")

Kind = TypeVar("Kind")
_Token = tuple[bytes, Millis, Millis]
"""SHA-256 of the secret; when it was made; when it expires, or 0."""
_policies: Final = msgspec.msgpack.Decoder(NetworkPolicy)
_grants: Final = msgspec.msgpack.Decoder(tuple[Verb, ...])
_tokens: Final = msgspec.msgpack.Decoder(_Token)
encode: Final = msgspec.msgpack.Encoder().encode


def grant_item(principal: Principal, pattern: str) -> str:
    return f"grant/{principal}/{pattern}"


def token_item(client: str) -> str:
    return f"token/{client}"


@lru_cache(maxsize=NAMES_MAX)
def peer_principal(peer: PeerId) -> Principal:
    return f"peer:{peer.hex()}"


def client_principal(client: str) -> Principal:
    return f"client:{client}"


@lru_cache(maxsize=NAMES_MAX)
def object_of(stream: str) -> str:
    """What a right to a stream is about: the stream, or the query whose results it has.

    >>> object_of("flights"), object_of("delays.19c8-3f9a77c0-2")
    ('flights', 'query:delays')
    """
    results = _RESULTS.fullmatch(stream)
    return f"{QUERY}{results[1]}" if results is not None else stream


@dataclass(slots=True)
class RightsTable:
    """All rights, and the decisions that follow from them.

    Invariant: of each entry it has the newest version that it was shown; nothing is dropped because it was not shown
    """

    entries: dict[str, RightKept] = field(default_factory=dict)
    policy: NetworkPolicy = OPEN
    _verbs: dict[Principal, list[tuple[re.Pattern[str], tuple[Verb, ...]]]] = field(default_factory=dict)
    _tokens: dict[str, _Token] = field(default_factory=dict)  # Expired ones, too.
    _expired: dict[str, None] = field(default_factory=dict)
    _decisions: dict[tuple[Principal, Verb, str], bool] = field(default_factory=dict)
    digest: bytes = b""

    # What it says.

    @property
    def is_open(self) -> bool:
        return self.policy == OPEN

    def may(self, principal: Principal, verb: Verb, thing: str) -> bool:
        """Whether somebody has a right. In an open network all have all, but clients need a grant to change rights."""
        if self.policy == OPEN:
            return verb != "admin" or principal.startswith("peer:") or self._granted(principal, verb, thing)
        decision = (principal, verb, thing)
        known = self._decisions.get(decision)
        if known is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            known = self._decisions[decision] = self._granted(principal, verb, thing)
        return known

    def _granted(self, principal: Principal, verb: Verb, thing: str) -> bool:
        kind, _, name = principal.partition(":")
        if kind == "client" and not self.is_good(name):
            return False
        names = (principal, f"{kind}:*", "*")
        return any(
            verb in verbs and (verb == "admin" or pattern.fullmatch(thing) is not None)
            for each in names
            for pattern, verbs in self._verbs.get(each, ())
        )

    def is_good(self, client: str) -> bool:
        """Whether a client has a token that has not expired."""
        return client in self._tokens and client not in self._expired

    def admits(self, client: str, secret: str) -> bool:
        token = self._tokens.get(client)
        digest = hashlib.sha256(secret.encode()).digest()
        return token is not None and hmac.compare_digest(token[0], digest) and client not in self._expired

    @property
    def has_admin(self) -> bool:
        """Whether somebody is left who can change rights."""
        for principal, grants in self._verbs.items():
            client = principal.removeprefix("client:")
            is_somebody = client == principal or (client == "*" and bool(self._tokens)) or self.is_good(client)
            if is_somebody and any("admin" in verbs for _, verbs in grants):
                return True
        return False

    def was_open(self, at: Stamp) -> bool:
        """Whether something was written before the network was closed."""
        policy = self.entries.get(POLICY)
        return policy is not None and at < policy.stamp

    def has_changed(self, principal: Principal, thing: str, since: Stamp) -> bool:
        """Whether grants that were about this have changed since then: perhaps they allowed more."""
        for each in (principal, f"{principal.partition(':')[0]}:*", "*"):
            beginning = grant_item(each, "")
            for item, kept in self.entries.items():
                is_about = item.startswith(beginning) and _compiled(item.removeprefix(beginning)).fullmatch(thing)
                if is_about and kept.stamp > since:
                    return True
        return False

    def verbs(self, principal: Principal, pattern: str) -> tuple[Verb, ...]:
        kept = self.entries.get(grant_item(principal, pattern))
        return _decoded(_grants, kept, ())

    def grants(self) -> tuple[GrantShown, ...]:
        shown = []
        for item in sorted(self.entries):
            kind, _, rest = item.partition("/")
            principal, _, pattern = rest.partition("/")
            if kind == "grant" and (verbs := self.verbs(principal, pattern)):
                shown.append(GrantShown(principal, pattern, verbs))
        return tuple(shown)

    def tokens(self) -> tuple[TokenShown, ...]:
        return tuple(TokenShown(name, made, ends) for name, (_, made, ends) in sorted(self._tokens.items()))

    # What it learns.

    def learn(self, entries: Iterable[Entry], now: Millis) -> list[RightKept]:
        """Take in what the store has; returns what is new."""
        news: list[RightKept] = []
        for entry in entries:
            kept = RightKept(item=entry.item, stamp=entry.stamp, writer=entry.writer, value=entry.value)
            if entry.key == KEY and self.put(kept):
                news.append(kept)
        if news:
            self.read_anew(now)
        return news

    def put(self, kept: RightKept) -> bool:
        """Keep the newer of two versions; read_anew() makes it count."""
        known = self.entries.get(kept.item)
        if known is not None and (known.stamp, known.writer) >= (kept.stamp, kept.writer):
            return False
        self.entries[kept.item] = kept
        return True

    def read_anew(self, now: Millis) -> None:
        """Work out from the entries what holds now. An entry that cannot be decoded grants nothing."""
        self._verbs.clear()
        self._tokens.clear()
        # A policy that cannot be read is of a later release, and stricter than none.
        kept = self.entries.get(POLICY)
        self.policy = _decoded(_policies, kept, CLOSED) if kept is not None else OPEN
        for item, each in self.entries.items():
            kind, _, rest = item.partition("/")
            if kind == "grant":
                principal, _, pattern = rest.partition("/")
                if verbs := _decoded(_grants, each, ()):
                    self._verbs.setdefault(principal, []).append((_compiled(pattern), verbs))
            elif kind == "token" and (token := _decoded(_tokens, each, None)) is not None:
                self._tokens[rest] = token
        self.digest = self._digest()
        self._expired.clear()
        self.expire(now)
        self._decisions.clear()

    def expire(self, now: Millis) -> list[str]:
        """Tokens that have just expired; what was decided for them holds no longer."""
        over = [
            name for name, (_, _, ends) in self._tokens.items() if ends and ends <= now and name not in self._expired
        ]
        self._expired |= dict.fromkeys(over)
        if over:
            self._decisions.clear()
        return over

    def _digest(self) -> bytes:
        digest = hashlib.sha256()
        for item in sorted(self.entries):
            kept = self.entries[item]
            digest.update(encode((item, kept.stamp, bytes(kept.writer))))
        return digest.digest()[:16]


def _compiled(pattern: str) -> re.Pattern[str]:
    """Atomic groups never backtrack: whoever may write a pattern must not be able to make it expensive."""
    first, *rest = map(re.escape, pattern.split("*"))
    middle = "".join(f"(?>.*?{piece})" for piece in rest[:-1])
    return re.compile(f"{first}{middle}.*{rest[-1]}" if rest else first)


def _decoded(decoder: msgspec.msgpack.Decoder[Kind], kept: RightKept | None, otherwise: Kind) -> Kind:
    found = read(decoder, kept.value) if kept is not None else None
    return found if found is not None else otherwise
