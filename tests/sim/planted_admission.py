"""Bugs planted into who is let in at a host."""

from __future__ import annotations

from unittest.mock import patch

from protocols.execution.admission import Admission
from tests.sim.bugs import Patch, bug


@bug("admission", seeds=20)
def what_ends_keeps_its_room() -> Patch:
    """A host does not release what it has reserved for a subgraph that is over."""
    return patch.object(Admission, "end", lambda *_: None)
