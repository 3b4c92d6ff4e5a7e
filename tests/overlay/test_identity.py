"""Keys, tokens and signed records: what is made can be read back, and nothing else can."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.identity import (
    Identity,
    IdentityError,
    JoinToken,
    Network,
    PeerRecord,
    format_address,
    parse_address,
)
from protocols.ids import PeerId

NOW = 1_800_000_000.0
ALICE, BOB = Identity.from_seed(b"a" * 32), Identity.from_seed(b"b" * 32)


def record(identity: Identity = ALICE, **changes: int) -> PeerRecord:
    return PeerRecord.sign(identity, ("127.0.0.1", 7400), incarnation=7, now_s=NOW, version="1.2", **changes)


def test_a_peer_keeps_its_key_between_runs_and_hides_it_from_others(tmp_path: Path) -> None:
    path = tmp_path / "peer.key"
    first = Identity.load(path)
    assert Identity.load(path).peer_id == first.peer_id == PeerId.of_public_key(first.public_key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_that_others_can_read_is_refused_with_the_command_that_mends_it(tmp_path: Path) -> None:
    path = tmp_path / "peer.key"
    Identity.load(path)
    path.chmod(0o644)
    with pytest.raises(IdentityError, match="chmod 600"):
        Identity.load(path)


def test_a_token_survives_line_breaks_but_no_other_damage() -> None:
    token = JoinToken(Network("plant", b"k" * 32), (("peer1", 7400), ("::1", 7401)))
    text = str(token)
    assert JoinToken.parse(f"  {text[:20]}\n{text[20:]} ") == token
    with pytest.raises(IdentityError, match="cut when copied"):
        JoinToken.parse(text[:-6])
    with pytest.raises(IdentityError, match="starts with"):
        JoinToken.parse("hello")


@given(st.text(max_size=200))
def test_no_text_makes_the_token_parser_fail_otherwise_than_it_says(text: str) -> None:
    for candidate in (text, "peer1-" + text):
        try:
            JoinToken.parse(candidate)
        except IdentityError:
            continue


def test_a_network_does_not_show_its_key() -> None:
    assert "6b6b" not in repr(Network("plant", b"k" * 32))
    assert "kkk" not in repr(Network("plant", b"k" * 32))


def test_a_record_is_believed_as_it_was_signed() -> None:
    signed = record()
    assert PeerRecord.verify(signed.raw, NOW) == signed
    assert signed.peer_id == ALICE.peer_id


@given(st.integers(min_value=0, max_value=len(record().raw) - 1), st.integers(min_value=1, max_value=255))
def test_a_record_altered_in_any_byte_is_refused(place: int, flip: int) -> None:
    raw = bytearray(record().raw)
    raw[place] ^= flip
    with pytest.raises(IdentityError):
        PeerRecord.verify(bytes(raw), NOW)


@given(st.binary(max_size=300))
def test_bytes_that_are_no_record_are_refused(raw: bytes) -> None:
    with pytest.raises(IdentityError):
        PeerRecord.verify(raw, NOW)


def test_nobody_can_sign_for_another_id() -> None:
    mine, others = record(ALICE).raw, record(BOB).raw
    with pytest.raises(IdentityError):
        PeerRecord.verify(others[:-64] + mine[-64:], NOW)


def test_a_record_expires_and_one_from_the_future_is_refused() -> None:
    signed = record()
    assert PeerRecord.verify(signed.raw, NOW + 3600)
    for now in (NOW + 3700, NOW - 3600):
        with pytest.raises(IdentityError, match="expired"):
            PeerRecord.verify(signed.raw, now)


@pytest.mark.parametrize("incarnation", [-1, int(NOW * 1000) + 3_600_000, 2**63])
def test_a_record_numbered_ahead_of_its_time_is_refused(incarnation: int) -> None:
    signed = PeerRecord.sign(ALICE, ("127.0.0.1", 7400), incarnation=incarnation, now_s=NOW, version="1.2")
    with pytest.raises(IdentityError, match="ahead of its time"):
        PeerRecord.verify(signed.raw, NOW)


@pytest.mark.parametrize("text", ["127.0.0.1:7401", "[::1]:7401", "peer1:7401"])
def test_an_address_is_written_as_it_is_read(text: str) -> None:
    assert format_address(parse_address(text, 7400)) == text


@pytest.mark.parametrize("text", ["", ":7400", "peer1:", "peer1:port", "peer1:70000", "peer1:0", "[::1]:x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(IdentityError, match="not an address"):
        parse_address(text, 7400)
