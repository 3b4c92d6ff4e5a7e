"""The keyring beside the join token: whatever a crash leaves, the newest key that was written counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.identity import Identity, JoinToken, Network, write_secret
from overlay.keyring import Keyring, Outcast
from peerd.admission import admit, keep_ring, ring_for, store_token, stored_ring, stored_token
from peerd.config import Config
from peerd.datadir import DataDir
from peerd.errors import PeerError

SEEDS = (("127.0.0.1", 7400),)
OLD = JoinToken(Network("plant", b"k" * 32), SEEDS)
RING = Keyring.of(OLD.network).rolled_over(Identity.generate(), b"n" * 32, (Outcast(bytes(20)),), 1)


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path)
    store_token(data, OLD)
    return data


def test_after_a_roll_over_the_token_is_the_new_one_and_the_seed_rewrites_the_token_file(data: DataDir):
    config = Config(found=True, token_file=data.path / "shared" / "token")
    keep_ring(config, data, RING, SEEDS)
    token = JoinToken.parse(data.network_file.read_text())
    assert token == stored_token(data) == JoinToken.parse(config.token_file.read_text())
    assert (token.network, token.seeds) == (RING.current, SEEDS)
    assert token.network.id == OLD.network.id
    for file in (data.keyring_file, data.network_file, config.token_file):
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_crash_between_both_files_loses_neither_key(data: DataDir):
    write_secret(data.keyring_file, RING.encode())
    assert stored_token(data) == JoinToken(RING.current, SEEDS)
    data.keyring_file.with_name("keyring.new").write_bytes(RING.encode()[:50])
    assert stored_token(data) == JoinToken(RING.current, SEEDS)


def test_a_newer_token_brings_its_key_and_an_older_one_brings_nothing(data: DataDir):
    write_secret(data.keyring_file, RING.encode())
    assert ring_for(data, OLD).current == RING.current
    newer = Network("plant", b"x" * 32, 5, RING.network_id)
    ring = ring_for(data, JoinToken(newer, SEEDS))
    assert (ring.current, ring.wants_a_key) == (newer, False)
    assert ring.expelled == RING.expelled
    assert ring_for(data, JoinToken(Network("else", b"e" * 32), SEEDS)).current.name == "else"


async def test_a_token_file_that_was_not_rewritten_yet_does_not_take_a_member_back(data: DataDir):
    write_secret(data.keyring_file, RING.encode())
    file = data.path / "token"
    write_secret(file, f"{OLD}\n".encode())
    assert (await admit(Config(token_file=file), data)).network == RING.current
    assert (await admit(Config(found=True, token_file=file), data)).network == RING.current
    assert JoinToken.parse(file.read_text()).network == RING.current


def test_a_damaged_keyring_says_what_to_do(data: DataDir):
    write_secret(data.keyring_file, RING.encode()[:-3])
    with pytest.raises(PeerError, match="it is damaged") as refused:
        stored_ring(data)
    assert "peer join TOKEN" in str(refused.value.hint)
