"""Bugs planted into what lets another peer go on with a query."""

from __future__ import annotations

from unittest.mock import patch

import msgspec

from protocols.catalogue.events import StreamFound
from protocols.delivery.backups import Backups
from protocols.delivery.messages import Note
from protocols.delivery.mirror import Mirror
from protocols.delivery.outbox import Outbox
from protocols.effects import Effect
from protocols.execution import adopter
from protocols.execution.adopting import successor
from protocols.execution.messages import QueryInstalled
from protocols.ids import Millis
from tests.sim.bugs import Patch, bug


@bug("takeover", seeds=100)
def a_proxy_that_was_taken_over_goes_on() -> Patch:
    """Nobody asks the chain of custody: a proxy that is back looks for another backup, and tells results again."""
    found = Backups.found

    def believe(backups: Backups, outbox: Outbox, event: StreamFound, now: Millis) -> list[Effect]:
        return found(backups, outbox, msgspec.structs.replace(event, custodies=()), now)

    def name(backups: Backups, outbox: Outbox, now: Millis) -> list[Effect]:
        mirror = outbox.mirror
        return backups._name(outbox, mirror.backup, now) if mirror is not None and mirror.wants_listing else []

    return patch.multiple(Backups, found=believe, name_backup=name)


@bug("takeover", seeds=100)
def what_was_told_beyond_is_forgotten_at_a_takeover() -> Patch:
    """The next proxy knows how far the inputs are covered, but not which results were told beyond that."""

    def forget(notes: tuple[Note, ...], count: int) -> QueryInstalled | None:
        found = successor(notes, count)
        if found is None or found.base is None:
            return found
        return msgspec.structs.replace(found, base=msgspec.structs.replace(found.base, beyond=()))

    return patch.object(adopter, "successor", forget)


@bug("takeover", seeds=100)
def what_the_old_proxy_had_on_its_disk_alone_counts() -> Patch:
    """A proxy that comes back serves results that its backup never had: the next proxy has told them, too."""
    retire = Mirror.retire

    def serve_all(mirror: Mirror, upto: int, durable: int) -> None:
        retire(mirror, durable, durable)

    return patch.object(Mirror, "retire", serve_all)
