"""Releases that understand each other: fields may be added, and whatever else changes raises a family's version."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from overlay import datagrams, frames, identity, router
from overlay.coordinates import DIMENSIONS
from peerd import __version__
from protocols.versions import FAMILIES, VERSIONS, Span, differences, in_words, refusal
from protocols.wire import FAMILY_OF, MESSAGES, RECORDS
from tests.overlay.datagram_things import one_of_each
from tests.protocols import spoken
from tests.protocols.things import make

SPOKEN = Path(__file__).parent / "golden" / f"spoken-{__version__}.txt"
ALL = (*FAMILIES, "journal")
LINK_THINGS = (
    *(
        datagrams.Envelope(1, b"record", datagrams.WireCoordinate([0.0] * DIMENSIONS, 1.0, 1.0), message)
        for message in one_of_each(0.0)
    ),
    frames.Hello("127.0.0.1", 7400, dict(VERSIONS), "0.2.0"),
    frames.OpenChannel("batches", 1 << 16),
    identity.RecordBody(bytes(32), "127.0.0.1", 7400, 7, 7, "0.2.0", False, True, dict(VERSIONS)),
    identity.TokenBody("plant", bytes(32), [("127.0.0.1", 7400)]),
    router.Deliver(b"bootboot", 7, [(b"", b"payload")]),
    router.Receipt(b"bootboot", 7, [None, datagrams.Hint(bytes(20), bytes(4), 9, 1)]),
)
THINGS = (
    *LINK_THINGS,
    *(
        make(shape, luck)
        for family in ALL
        for shape in (spoken.shapes_of(family) if family != "link" else ())
        if shape.__module__.startswith("protocols.")
        for luck in (None, random.Random(7))
    ),
)
ENCODER = msgspec.msgpack.Encoder(enc_hook=bytes)


def name_of(thing: msgspec.Struct) -> str:
    return spoken.name_of(type(thing))


def decoded(shape: type[msgspec.Struct], raw: bytes) -> msgspec.Struct:
    return msgspec.msgpack.decode(raw, type=shape, dec_hook=lambda kind, raw: kind(raw))


@pytest.mark.parametrize("thing", THINGS, ids=name_of)
def test_a_field_that_a_newer_peer_has_added_is_ignored(thing: msgspec.Struct) -> None:
    """Wherever it is added: in the thing itself, or in anything inside it."""
    assert decoded(type(thing), ENCODER.encode(spoken.newer(thing))) == thing


@pytest.mark.parametrize("thing", THINGS, ids=name_of)
def test_a_field_that_an_older_peer_lacks_has_its_default(thing: msgspec.Struct) -> None:
    written, read = spoken.without_defaults(thing)
    assert decoded(type(thing), ENCODER.encode(written)) == read


def test_every_shape_of_the_link_is_tried() -> None:
    tried = {type(thing) for thing in LINK_THINGS} | {type(message) for message in one_of_each(0.0)}
    inside = {datagrams.Hint, datagrams.WireCoordinate, Span}
    assert set(spoken.shapes_of("link")) == tried | inside


def test_a_change_that_older_peers_cannot_read_raises_the_version_of_its_family(rewrite: bool) -> None:
    """Compared with what this release spoke when it came out; for a new release --rewrite writes the page once.

    What lies in journals has no version: a journal of an earlier release is always read.
    """
    if rewrite and not SPOKEN.exists():
        SPOKEN.write_text(spoken.page(ALL))
    problems = []
    for family, (version, shapes) in spoken.read_page(SPOKEN.read_text()).items():
        if family in VERSIONS and VERSIONS[family].newest > version:
            continue
        now = {spoken.name_of(shape): spoken.described(shape) for shape in spoken.shapes_of(family)}
        for name, fields in shapes.items():
            if name not in now:
                problems.append(f"{family}: {name} is gone")
            elif now[name][: len(fields)] != fields:
                problems.append(f"{family}: {name} is not what it was: {fields} has become {now[name]}")
            elif any(not each.endswith("=") for each in now[name][len(fields) :]):
                problems.append(f"{family}: {name} has a new field without a default: {now[name][len(fields) :]}")
    advice = "Add fields at the end, with defaults; or raise the family in protocols/versions.py."
    renamed = f"If only a class has a new name, its bytes are the same: change the name in {SPOKEN.name}."
    assert not problems, "\n".join((*problems, advice, renamed))


def test_every_family_has_a_version_and_every_message_a_family() -> None:
    assert set(VERSIONS) == set(FAMILIES)
    assert set(FAMILY_OF) == set(MESSAGES.kinds)
    assert {family for family in FAMILIES if family not in FAMILY_OF.values()} == {"link"}
    assert all(1 <= span.oldest <= span.newest for span in VERSIONS.values())


def test_peers_share_a_family_where_their_spans_meet() -> None:
    ours = {"link": Span(2, 3), "store": Span(1, 1), "execution": Span(2, 2)}
    assert (
        differences(ours, {"link": Span(3, 4), "store": Span(1, 1), "execution": Span(1, 2), "new": Span(1, 1)}) == ()
    )
    older = differences(ours, {"link": Span(1, 2), "store": Span(1, 1), "execution": Span(1, 1)})
    assert in_words(older) == "execution (2 here, 1 there)"
    assert not older[0].is_older_here
    assert refusal(older) == ()
    newer = differences(ours, {"link": Span(4, 5), "store": Span(1, 1)})
    assert in_words(newer) == "link (2 to 3 here, 4 to 5 there), execution (2 here, none there)"
    assert newer[0].is_older_here
    assert [each.family for each in refusal(newer)] == ["link"]


def test_records_that_earlier_releases_wrote_are_read() -> None:
    """Each line is a record as a release wrote it: its kind, and its bytes."""
    pages = sorted(SPOKEN.parent.glob("records-*.txt"))
    assert [page.name for page in pages][:1] == ["records-0.1.0.txt"]
    for page in pages:
        for line in page.read_text().splitlines():
            kind, raw = line.split()
            assert spoken.name_of(type(RECORDS.decode(bytes.fromhex(raw)))) == kind
