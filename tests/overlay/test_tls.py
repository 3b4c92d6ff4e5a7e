"""The link handshake: members get through, each learns the other's true id, nobody else gets anywhere."""

from __future__ import annotations

import ssl

import pytest

from overlay.identity import Identity, Network
from overlay.tls import LinkCredentials, peer_id_of

NETWORK = Network("plant", b"k" * 32)
ALICE, BOB = Identity.from_seed(b"a" * 32), Identity.from_seed(b"b" * 32)


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Run a handshake in memory; the client's last word reaches the server too."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialler = client.wrap_bio(to_client, to_server)
    acceptor = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (dialler, acceptor):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return dialler, acceptor


def test_two_members_learn_each_others_id_over_tls_1_3() -> None:
    dialler, acceptor = shake_hands(LinkCredentials(ALICE, NETWORK).client, LinkCredentials(BOB, NETWORK).server)
    assert (peer_id_of(dialler), peer_id_of(acceptor)) == (BOB.peer_id, ALICE.peer_id)
    assert dialler.version() == "TLSv1.3"


@pytest.mark.parametrize("stranger_dials", [True, False])
def test_a_member_of_another_network_gets_no_handshake(stranger_dials: bool) -> None:
    stranger = LinkCredentials(ALICE, Network("plant", b"x" * 32))
    member = LinkCredentials(BOB, NETWORK)
    pair = (stranger.client, member.server) if stranger_dials else (member.client, stranger.server)
    with pytest.raises(ssl.SSLError):
        shake_hands(*pair)


def test_a_client_without_a_certificate_is_refused() -> None:
    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.check_hostname, anonymous.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLError):
        shake_hands(anonymous, LinkCredentials(BOB, NETWORK).server)
