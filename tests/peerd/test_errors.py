"""An error keeps its words and its exit code on its way through the control socket."""

from __future__ import annotations

from peerd.errors import Exit, PeerError


def test_an_error_travels_as_json():
    sent = PeerError("no such peer", detail="Asked 3.", hint="Look.", exit_code=Exit.NOT_FOUND)
    received = PeerError.from_json(sent.to_json())
    assert str(received) == "error: no such peer\ndetail: Asked 3.\nhint: Look."
    assert received.exit_code == Exit.NOT_FOUND


def test_an_answer_of_another_version_still_becomes_an_error():
    assert PeerError.from_json({}).exit_code == Exit.FAILED
    assert PeerError.from_json({"error": "x", "code": 99, "detail": None}).exit_code == Exit.FAILED
