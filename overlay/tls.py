"""TLS 1.3 for links: only members get through the handshake, and each side learns the other's true peer id.

Every member can sign certificates with a key derived from the network key, so it signs one for its own Ed25519 key.
Both sides require a certificate of that authority, which proves membership. The key in it gives the peer id, and only
the holder of that key can finish the handshake, which proves identity. A stranger never reaches the frame parser.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

from overlay.identity import Identity, Network
from protocols.ids import PeerId

ALPN: Final = "peerd/1"
# Certificates do not expire: membership ends with the network key. In X.509, 9999-12-31 means "no end".
_NOT_BEFORE: Final = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER: Final = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


class NotAMember(PermissionError):
    """The other side of a connection is not the expected peer, or not a member at all."""


class Proof(NamedTuple):
    """What a finished handshake proves of the other side: its id, and the tag of the network key it was shown with."""

    peer: PeerId
    tag: bytes


class LinkCredentials:
    """The TLS contexts of one peer in one network: one pair for each key of the network that is still accepted.

    The other side is believed under any of these keys. A dialler names in the handshake (SNI) the key that it wants to
    see a certificate under; it shows one under the key that it takes the other side to know.
    """

    def __init__(self, identity: Identity, *networks: Network) -> None:
        self.peer_id = identity.peer_id
        authorities = [_Authority(network) for network in networks]
        trusted = b"".join(each.certificate.public_bytes(serialization.Encoding.DER) for each in authorities)
        self._clients: dict[bytes, ssl.SSLContext] = {}
        self._servers: dict[bytes, ssl.SSLContext] = {}
        self._tags = {each.common_name: each.tag for each in authorities}
        for each in authorities:
            own = each.sign(identity)
            self._clients[each.tag] = _context(ssl.PROTOCOL_TLS_CLIENT, identity, own, trusted)
            self._servers[each.tag] = _context(ssl.PROTOCOL_TLS_SERVER, identity, own, trusted)
        self.tags = [each.tag for each in authorities]  # The present key's first.
        self.client = self._clients[self.tags[0]]
        self.server = self._servers[self.tags[0]]
        if len(networks) > 1:
            self.server.sni_callback = partial(_show, self._servers)

    def client_for(self, tag: bytes) -> ssl.SSLContext:
        """To dial a peer that knows this key."""
        return self._clients[tag]

    def proof(self, connection: ssl.SSLObject | ssl.SSLSocket) -> Proof:
        """What a finished handshake proved of the other side."""
        certificate = _certificate_of(connection)
        issuer = certificate.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
        tag = self._tags.get(str(issuer[0].value)) if issuer else None
        if tag is None:
            raise NotAMember("the other side's certificate is of another network")
        return Proof(_peer_id_in(certificate), tag)


def server_name(tag: bytes) -> str:
    """How a dialler names the key that it knows."""
    return f"k{tag.hex()}"


def _show(servers: Mapping[bytes, ssl.SSLContext], connection: ssl.SSLObject, name: str | None, _: object) -> None:
    """Answer with a certificate under the key that the dialler knows, if we have it."""
    for tag, context in servers.items():
        if name == server_name(tag):
            connection.context = context


class _Authority:
    """The certificate authority that follows from one network key."""

    def __init__(self, network: Network) -> None:
        self.tag = network.tag
        self.common_name = network.derive("peerd ca name").hex()[:32]
        self._key = Ed25519PrivateKey.from_private_bytes(network.derive("peerd ca"))
        name = _name(self.common_name)
        self.certificate = _certificate(name, self._key.public_key(), name, self._key, ca=True)

    def sign(self, identity: Identity) -> x509.Certificate:
        subject = _name(identity.peer_id.hex())
        return _certificate(subject, identity.private_key.public_key(), _name(self.common_name), self._key, ca=False)


def peer_id_of(connection: ssl.SSLObject | ssl.SSLSocket) -> PeerId:
    """The peer id proved by the other side of a finished handshake."""
    return _peer_id_in(_certificate_of(connection))


def _certificate_of(connection: ssl.SSLObject | ssl.SSLSocket) -> x509.Certificate:
    raw = connection.getpeercert(binary_form=True)
    if raw is None:
        raise NotAMember("the other side showed no certificate")
    try:
        return x509.load_der_x509_certificate(raw)
    except (ValueError, x509.InvalidVersion) as error:
        raise NotAMember("the other side's certificate cannot be read") from error


def _peer_id_in(certificate: x509.Certificate) -> PeerId:
    try:
        key = certificate.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise NotAMember("the other side's certificate cannot be read") from error
    if not isinstance(key, Ed25519PublicKey):
        raise NotAMember("the other side's certificate is not over an Ed25519 key")
    return PeerId.of_public_key(key.public_bytes_raw())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _certificate(
    subject: x509.Name, key: Ed25519PublicKey, issuer: x509.Name, issuer_key: Ed25519PrivateKey, *, ca: bool
) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    return builder.sign(issuer_key, None)


def _context(protocol: ssl._SSLMethod, identity: Identity, own: x509.Certificate, trusted: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # A peer's name is its id, which the caller checks.
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=trusted)
    context.set_alpn_protocols([ALPN])
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    # The ssl module reads keys only from files; this one exists for a moment in a private folder (mode 0700).
    with tempfile.TemporaryDirectory(prefix="peerd-") as folder:
        path = Path(folder) / "link.pem"
        path.touch(mode=0o600)
        key_pem = identity.private_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.write_bytes(key_pem + own.public_bytes(serialization.Encoding.PEM))
        context.load_cert_chain(path)
    return context
