"""The refusals of a peer that does not take a client's tuples."""

from __future__ import annotations

from typing import Final

from protocols.catalogue.streams import Reads, StreamDefinition
from protocols.delivery.cursor import Cursor
from protocols.delivery.messages import SUBSCRIPTION_NAME_MAX, OpenSubscription, Publish
from protocols.ids import Millis, StreamName
from protocols.limits import Limits
from protocols.messages import Refused
from queries.schema import RowError

BUSY_RETRY_MS: Final = 50


def unavailable(name: StreamName, reason: str) -> Refused:
    """The catalogue does not answer for the stream now."""
    return Refused(
        code="unavailable",
        error=f'stream "{name}" cannot be looked up now',
        detail=reason,
        hint="Try again; the network may be healing.",
        retry_after_ms=1000,
    )


def another_stream(name: StreamName) -> Refused:
    """The answer to a client that means an earlier stream of this name."""
    return Refused(
        code="unknown",
        error=f'stream "{name}" was removed, and another has its name',
        hint=f'"peer stream show {name}" shows its columns. Begin again.',
    )


def of_results(definition: StreamDefinition) -> Refused:
    """A client may not publish to the results of a query."""
    return Refused(
        code="invalid",
        error=f'stream "{definition.name}" is for the results of query "{definition.query}" alone',
        hint="Make a stream of your own: peer stream create.",
    )


def too_many(name: StreamName, most: int) -> Refused:
    """This peer already publishes to as many streams as it may."""
    return Refused(
        code="full",
        error=f'stream "{name}" takes no tuples here: this peer publishes to {most} streams, its limit',
        hint="Publish at another peer.",
    )


def invalid(name: StreamName, what: str, detail: str) -> Refused:
    """The rows that were published are not valid."""
    return Refused(code="invalid", error=f'stream "{name}": {what}', detail=detail)


def of_rows(definition: StreamDefinition, command: Publish, limits: Limits) -> Refused | None:
    """What is wrong with the rows of a publish."""
    name, size, count = command.stream, len(command.rows), command.count
    if size > limits.publish_bytes_max:
        most = limits.publish_bytes_max
        return invalid(name, f"a publish of {size} bytes is too large", f"At most {most} bytes at once.")
    if count > limits.publish_rows_max:
        most = limits.publish_rows_max
        return invalid(name, f"a publish of {count} rows is too large", f"At most {most} rows at once.")
    try:
        came = definition.current.check(command.rows)
    except RowError as error:
        return invalid(name, str(error), "No row of this publish was accepted.")
    return invalid(name, f"{count} rows were announced and {came} came", "") if came != count else None


def taken_over(name: StreamName) -> Refused:
    """Another peer publishes the results of the query now."""
    return Refused(code="unavailable", error=f'stream "{name}" was taken over by another peer')


def busy(name: StreamName, detail: str) -> Refused:
    """The peer cannot take more for now."""
    return Refused(
        code="busy", error=f'stream "{name}" is busy', detail=detail.capitalize() + ".", retry_after_ms=BUSY_RETRY_MS
    )


def without_event_time(name: StreamName) -> Refused:
    """There is no event time that a publisher could be finished with."""
    return Refused(
        code="invalid",
        error=f'stream "{name}" has no event time',
        detail="Its windows close by the time of publication, also while nobody publishes.",
        hint="There is nothing to do.",
    )


def reads_another(known: Cursor, command: OpenSubscription) -> Refused:
    """The answer for a subscription that a client names, but for another stream or share than it has."""
    has, wants = f"share {known.share}", f"{command.share}"
    if known.stream != command.stream:
        has, wants = f'stream "{known.stream}"', f'"{command.stream}"'
    error = f'subscription "{known.subscription}" reads {has}, not {wants}'
    return Refused(code="exists", error=error, hint="Choose another name for it.")


def being_removed(known: Cursor) -> Refused:
    """The answer for a subscription that a client has asked to remove."""
    error = f'subscription "{known.subscription}" is being removed'
    return Refused(code="busy", error=error, hint="Try again.", retry_after_ms=BUSY_RETRY_MS)


def disk_is_low(stream: StreamName, retry_after_ms: Millis) -> Refused:
    return Refused(
        code="full",
        error=f'stream "{stream}" takes no tuples: the disk of its ingress peer is almost full',
        hint="Free some space there, or publish at another peer.",
        retry_after_ms=retry_after_ms,
    )


def unsound(command: OpenSubscription) -> Refused | None:
    """Why there can be no such subscription. Its name goes with every message to it."""
    length = len(command.subscription)
    if length > SUBSCRIPTION_NAME_MAX:
        error = f"a subscription cannot have a name of {length} characters"
        return Refused(code="invalid", error=error, hint=f"At most {SUBSCRIPTION_NAME_MAX}.")
    if not command.share.is_sound:
        return Refused(code="invalid", error=f"there is no share {command.share}")
    return None


def lost_columns(definition: StreamDefinition, reads: Reads) -> Refused | None:
    """The answer for a reader that was planned before a column was dropped; None if it does not need any such."""
    gone = definition.dropped_since(reads.version) if reads.version else ()
    needed = [name for name in gone if reads.columns is None or name in reads.columns]
    if not needed:
        return None
    return Refused(
        code="invalid",
        error=f'stream "{definition.name}" no longer has the column "{needed[0]}"',
        detail=f"It was dropped after version {reads.version}, which this reader was made for.",
        hint=f'"peer stream show {definition.name}" shows the columns there are.',
    )


def of_opening(known: Cursor | None, command: OpenSubscription, limits: Limits, *, is_full: bool) -> Refused | None:
    """Why a subscription cannot be opened, or not by this client."""
    if known is not None and (known.stream, known.share) != (command.stream, command.share):
        return reads_another(known, command)
    if refusal := unsound(command):
        return refusal
    if known is not None:
        return being_removed(known) if known.closers else None
    if is_full:
        error = f"this peer has {limits.subscriptions_max} subscriptions, its limit"
        return Refused(code="full", error=error, hint="Close some, or ask another peer.")
    return None
