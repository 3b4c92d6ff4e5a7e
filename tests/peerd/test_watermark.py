"""A reader that gets no results hears on stderr what its query waits for, once for each reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from peerd.cli import watermark
from peerd.cli.watermark import explaining, holder_of, watermark_sentence
from peerd.errors import PeerError

HOST, ONE, OTHER = "aa" * 20, "11" * 20, "22" * 20


def stream(
    watermark: str | None = "2026-05-01T12:00:41Z", lag_ms: float | None = 5.0, **changes: Any
) -> dict[str, Any]:
    """One input of a running query, as `peer query show` tells it."""
    held = {"peer": ONE, "unheard_ms": 400, "has_rows": True}
    known = {"from": "s", "watermark": watermark, "lag_ms": lag_ms, "is_idle": False, "has_finished": False}
    return known | {"held_by": held, "left_out": []} | changes


def shown(*streams: dict[str, Any], state_rows: int = 7) -> dict[str, Any]:
    subgraphs = [{"host": HOST, "state_rows": state_rows, "inputs": list(streams)}]
    return {"subgraphs": subgraphs, "watermark": holder_of(subgraphs)}


def sentence(**changes: Any) -> str:
    return watermark_sentence(holder_of(shown(stream(**changes))["subgraphs"]))


def test_it_says_who_holds_the_watermark_and_what_to_do():
    unheard = {"peer": ONE, "unheard_ms": 5000, "has_rows": True}
    assert sentence().endswith('a publisher of stream s; "peer publish s --done" there ends that')
    assert sentence(held_by=unheard).endswith("; its tuples of stream s are waited for as WITH (patience = …) says")
    assert "which is silent; its next tuple or --done lets it go on" in sentence(held_by=None)
    assert sentence(held_by=None, watermark=None).startswith("nothing has come yet of stream s")
    assert sentence(has_finished=True).startswith("all windows are closed")
    assert sentence(left_out=[OTHER]).endswith("no longer waited for: peer 22222222")
    assert watermark_sentence(None) == "-"


def test_the_stream_that_has_come_least_far_is_named():
    behind = stream(lag_ms=9.0) | {"from": "behind"}
    silent = stream(lag_ms=99.0, is_idle=True) | {"from": "silent"}
    flow = stream(lag_ms=999.0) | {"from": "subgraph 2"}
    holder = holder_of(shown(stream(), behind, silent, flow)["subgraphs"])
    assert holder is not None
    assert holder["stream"] == "behind"


async def test_a_reader_is_told_once_for_each_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(watermark, "QUIET_S", 0.001)
    other = {"peer": OTHER, "unheard_ms": 0, "has_rows": True}
    looks: list[Any] = [
        PeerError("the peer is away"),
        shown(stream(), state_rows=0),  # Nothing waits.
        shown(stream()),
        shown(stream(lag_ms=50.0)),
        shown(stream(has_finished=True)),
        shown(stream(held_by=other)),
    ]
    last_seen_twice = asyncio.Event()

    async def look() -> dict[str, Any]:
        found = looks[0]
        if len(looks) > 1:
            del looks[0]
        elif "seen" in found:
            last_seen_twice.set()
        else:
            found["seen"] = True
        if isinstance(found, PeerError):
            raise found
        record: dict[str, Any] = found
        return record

    async with explaining(look), asyncio.timeout(30):
        await last_seen_twice.wait()
    said = capsys.readouterr().err.splitlines()
    assert [each.partition(", a publisher")[0].rpartition(" ")[2] for each in said] == ["11111111", "22222222"]
    assert all(each.startswith("no result for") for each in said)
