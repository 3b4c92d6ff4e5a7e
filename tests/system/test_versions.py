"""Daemons of this release, and peers of another one that want to be in their network."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from overlay.identity import Identity, JoinToken
from overlay.overlay import JoinError, Overlay
from peerd.cluster import Cluster
from protocols.versions import VERSIONS, Span, Versions
from tests.overlay.networks import until

NEWER = Span(7, 8)


def peer(network: Cluster, *arguments: str, code: int = 0) -> str:
    """What `peer` prints at the first daemon."""
    environ = {**os.environ, "PEER_DATA_DIR": str(network.client(1).data.path)}
    command = [sys.executable, "-m", "peerd.cli", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


def versions_found(network: Cluster, code: int = 0) -> list[dict[str, Any]]:
    """What `peer doctor` has found about versions."""
    return [
        each for each in json.loads(peer(network, "doctor", "-o", "json", code=code)) if each["check"] == "versions"
    ]


@contextlib.asynccontextmanager
async def visitor(network: Cluster, versions: Versions) -> AsyncIterator[Overlay]:
    token = JoinToken.parse(network.client(1).get("/token")["token"])
    overlay = Overlay(Identity.generate(), token.network, port=0, version="9.9", versions=versions, seeds=token.seeds)
    await overlay.start()
    yield overlay
    await overlay.leave()


async def test_a_newer_peer_is_a_member_and_members_and_doctor_say_what_is_not_shared(network: Cluster):
    assert [each["status"] for each in versions_found(network)] == ["ok"]
    assert "not shared" not in peer(network, "members", "-o", "table")
    async with visitor(network, {**VERSIONS, "execution": NEWER}) as newer:
        assert await newer.join() == 3
        here = VERSIONS["execution"]
        (row,) = [row for row in network.client(1).get("/members") if row["peer_id"] == newer.peer_id.hex()]
        assert (row["status"], row["not_shared"]) == ("alive", f"execution ({here} here, 7 to 8 there)")
        table = peer(network, "members", "-o", "table")
        assert "not shared" in table
        assert f"execution ({here} here, 7 to 8 there)" in table
        (found,) = versions_found(network)
        assert (found["status"], found["next_step"]) == ("warn", "upgrade this peer")
        assert "neither runs parts of the other's queries" in found["finding"]


async def test_a_peer_without_a_common_link_is_refused_and_everybody_says_so(network: Cluster):
    async with visitor(network, {**VERSIONS, "link": NEWER}) as newer:
        with pytest.raises(JoinError, match="speaks other versions"):
            await newer.join(timeout_s=3)

        def refused() -> list[dict[str, Any]]:
            return [row for row in network.client(1).get("/members") if row["status"] == "incompatible"]

        await until(refused, "the daemon lists it")
        assert [row["peer_id"] for row in refused()] == [newer.peer_id.hex()]
        (found,) = [each for each in versions_found(network, code=1) if each["status"] == "fail"]
        assert newer.peer_id.short in found["finding"]
        log = network.client(1).data.log_file.read_text()
        assert log.count("peer refused: no common version") == 1
        assert {row["status"] for row in network.client(2).get("/members", crawl=0)} >= {"alive"}
