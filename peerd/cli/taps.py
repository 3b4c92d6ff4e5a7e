"""What a query shares: with how many others its host reads a stream, and puts windows together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from peerd.words import count

if TYPE_CHECKING:
    from protocols.execution.messages import SubgraphShown

SHORT_ID: Final = 8


def tap_sentences(subgraphs: Sequence[SubgraphShown]) -> list[str]:
    """For each stream that a query reads, where it is read and who reads along."""
    from protocols.subgraphs import Indexed, StreamInput

    said: list[str] = []
    for each in subgraphs:
        others = {told.alias: told.others for told in each.status.inputs} if each.status is not None else {}
        if each.status is None or isinstance(each.subgraph.engine, Indexed):
            continue
        said += [
            f"{read.stream} at peer {each.host.hex()[:SHORT_ID]}: {tapped(read.sharing, others.get(read.alias))}"
            for read in each.subgraph.inputs
            if isinstance(read, StreamInput)
        ]
        if each.status.windows_with is not None:
            said.append(f"windows at peer {each.host.hex()[:SHORT_ID]}: {sliced(each.status.windows_with)}")
    return said


def sliced(others: int) -> str:
    """What windows are put together from, in words.

    >>> sliced(9), sliced(0)
    ('from slices shared with 9 others', 'from slices of its own')
    """
    return f"from slices shared with {count(others, 'other')}" if others else "from slices of its own"


def tapped(sharing: str, others: int | None) -> str:
    """How an input gets its stream, in words.

    >>> tapped("auto", 4), tapped("auto", 0)
    ('read once for this and 4 others', 'read once, for this alone so far')
    >>> tapped("off", None), tapped("auto", None)
    ('read for this alone, as WITH (sharing = off) says', 'read alone for now: from an earlier place, or more slowly')
    """
    if sharing == "off":
        return "read for this alone, as WITH (sharing = off) says"
    if others is None:
        return "read alone for now: from an earlier place, or more slowly"
    return f"read once for this and {count(others, 'other')}" if others else "read once, for this alone so far"
