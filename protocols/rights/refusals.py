"""What people hear when they lack a right, present a bad token, or have reached a quota."""

from __future__ import annotations

from protocols.ids import Millis, PeerId
from protocols.messages import Refused
from protocols.rights.messages import Principal, Verb
from protocols.rights.table import QUERY

UNKNOWN_RETRY_MS: Millis = 300


def who(principal: Principal) -> str:
    """A principal as people read it.

    >>> who("client:sensor-7"), who("peer:3f9a77c0" + 32 * "0")
    ('client "sensor-7"', 'peer 3f9a77c0')
    """
    kind, _, name = principal.partition(":")
    return f'client "{name}"' if kind == "client" else f"peer {name[:8]}"


def what(verb: Verb, thing: str) -> str:
    """A right as people read it.

    >>> what("publish", "flights"), what("stop", "query:delays"), what("admin", "*")
    ('publish to stream "flights"', 'stop query "delays"', 'change rights')
    """
    if verb == "admin":
        return "change rights"
    is_query = thing.startswith(QUERY)
    named = f'query "{thing.removeprefix(QUERY)}"' if is_query else f'stream "{thing}"'
    does = {"publish": "publish to", "read": "read the results of" if is_query else "read"}.get(verb, verb)
    return f"{does} {named}"


def may_not(principal: Principal, verb: Verb, thing: str) -> str:
    return f"{who(principal)} may not {what(verb, thing)}"


def forbidden(principal: Principal, verb: Verb, thing: str, by: PeerId) -> Refused:
    """Somebody lacks a right."""
    pattern = "" if verb == "admin" else f" {thing}"
    return Refused(
        code="forbidden",
        error=may_not(principal, verb, thing),
        detail=f"Said by peer {by.short}: in this network only what is granted is allowed.",
        hint=f'Somebody with the right "admin" can allow it: peer rights grant {principal} {verb}{pattern}',
    )


def not_known(by: PeerId) -> Refused:
    """The peer has just joined, and has not read the rights yet."""
    return Refused(
        code="unavailable",
        error="this peer does not know yet who may do what in its network",
        detail=f"Peer {by.short} has not reached the peers that keep the rights.",
        hint="Try again; the network may be healing.",
        retry_after_ms=UNKNOWN_RETRY_MS,
    )


def not_kept(reason: str) -> Refused:
    """The owners of the rights do not answer."""
    return Refused(
        code="unavailable",
        error="the peers that keep the rights did not answer in time",
        detail=reason,
        hint="Try again; the network may be healing.",
        retry_after_ms=1000,
    )


def bad_token(client: str, by: PeerId) -> Refused:
    """The token is unknown, removed or expired, or its secret is wrong: nobody learns which."""
    return Refused(
        code="forbidden",
        error=f'the token of client "{client}" is not good',
        detail=f"Peer {by.short} knows no such token, or it has expired.",
        hint='"peer rights token ls" shows the tokens there are; "peer rights token create" makes one.',
    )


def not_a_name(kind: str, text: str, rule: str) -> Refused:
    return Refused(code="invalid", error=f'"{text}" is no {kind}', hint=rule)


def last_admin() -> Refused:
    return Refused(
        code="invalid",
        error="nobody would be left who can change rights",
        hint="Grant admin to somebody else first: peer rights grant peer:ID admin",
    )


def over_quota(principal: Principal, quota: str, limit: int, used: int, unit: str, retry_ms: Millis = 0) -> Refused:
    """A client has reached a quota of this peer: which, how much it is, how much is used."""
    return Refused(
        code="busy" if retry_ms else "quota",
        error=f"{who(principal)} has reached its quota of {unit} at this peer",
        detail=f"{quota} = {limit}; {used} in use.",
        hint="" if retry_ms else f"Give some back, or raise {quota} in peerd.toml of this peer.",
        retry_after_ms=retry_ms,
    )
