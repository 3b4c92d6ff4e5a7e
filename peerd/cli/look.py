"""The commands that look: `peer status`, `peer members`, `peer rtt`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from peerd.cli.common import target, target_options
from peerd.cli.output import Column, Row, output_option, show_record, show_rows
from peerd.errors import Exit, PeerError
from peerd.words import ago, clock_offset, megabytes, milliseconds, span
from peerd.words import count as counted

SHORT_ID: Final = 8
STATUSES: Final = ("alive", "suspect", "incompatible", "left", "dead", "expelled")


def _short(row: Row) -> str:
    return str(row["peer_id"])[:SHORT_ID] + (" (this peer)" if row.get("is_self") else "")


MEMBER_COLUMNS: Final = (
    Column("peer", _short),
    Column("status", lambda row: str(row["status"])),
    Column("address", lambda row: str(row["address"])),
    Column("version", lambda row: str(row["version"])),
    Column("spark", lambda row: "yes" if row["has_engine"] else "no"),
    Column("round trip", lambda row: milliseconds(row["rtt_ms"]), right=True),
    Column("since", lambda row: ago(time.time() - row["since_at"])),
)
_NOT_SHARED: Final = Column("not shared", lambda row: str(row["not_shared"]) or "-")
_RTT_COLUMNS: Final = (
    Column("peer", _short),
    Column("address", lambda row: str(row["address"])),
    Column("round trip", lambda row: milliseconds(row["rtt_ms"]), right=True),
    Column("min", lambda row: milliseconds(row["rtt_ms_min"]), right=True),
    Column("max", lambda row: milliseconds(row["rtt_ms_max"]), right=True),
    Column("lost", lambda row: f"{row['lost']}/{row['sent']}", right=True),
)
_BETWEEN_COLUMNS: Final = (
    Column("from", lambda row: str(row["from_id"])[:SHORT_ID]),
    Column("to", lambda row: str(row["peer_id"])[:SHORT_ID]),
    Column("round trip", lambda row: milliseconds(row["rtt_ms"]), right=True),
    Column("error", lambda row: milliseconds(row["error_ms"]), right=True),
    Column("kind", lambda row: str(row["kind"])),
)


def spark_sentence(spark: Row) -> str:
    """How the Spark of a peer is doing."""
    match spark["state"]:
        case "none":
            return "none: this peer runs without"
        case "off":
            if missing := spark.get("missing"):
                return f"cannot be started: {missing}"
            failure = spark.get("last_failure")
            return f"off; it failed, and is tried again: {failure}" if failure else "starts when needed"
        case "starting":
            return f"starting ({spark['waits_for']})"
    memory = f"{spark['memory_bytes'] / 2**20:,.0f} MB"
    return (
        f"{spark['spark']} on Java {spark['java']}, {spark['master']}, {counted(len(spark['runs']), 'run')}, {memory}"
    )


def capacity_facts(capacity: Row) -> list[tuple[str, str]]:
    """What this peer has room for."""
    cores = counted(capacity["cores"], "core")
    facts = [
        ("cpu", f"{_amounts(capacity['cpu'], lambda share: f'{100 * share:.1f} %')} ({cores})"),
        ("uplink", _amounts(capacity["uplink"], _kbits)),
        ("downlink", _amounts(capacity["downlink"], _kbits)),
    ]
    return facts if capacity["hosts_others"] else [("hosts", "nothing for other peers"), *facts]


def _kbits(rate: float) -> str:
    return f"{rate * 8 / 1000:,.0f} kbit/s"


def _amounts(each: Row, told: Callable[[float], str]) -> str:
    """How much of a resource is in use and reserved.

    >>> _amounts({"used": 4750.0, "limit": 125000.0, "reserved": 1000.0}, _kbits)
    '38 kbit/s of 1,000 kbit/s in use, 8 kbit/s reserved'
    >>> _amounts({"used": 4750.0, "limit": None, "reserved": 0.0}, _kbits)
    '38 kbit/s in use, no limit'
    """
    limit = f" of {told(each['limit'])}" if each["limit"] is not None else ""
    reserved = f", {told(each['reserved'])} reserved" if each["reserved"] else ""
    return f"{told(each['used'])}{limit} in use{reserved}{'' if limit else ', no limit'}"


def _key_sentence(status: Row) -> str:
    """Of which generation the network key is, once it was replaced, and who still has another one."""
    behind = status["behind"]
    if status["state"] == "expelled" or (status["generation"] == 1 and not behind):
        return ""
    also = f"; {counted(len(behind), 'member')} on another key" if behind else ""
    return f" (key generation {status['generation']}{also})"


@click.command()
@target_options
@output_option
def status(data_dir: Path | None, number: int | None, form: str | None) -> None:
    """Show how this peer is doing.

    \b
        $ peer status
        state    running
        peer     3f9a77c0b1d2…
        network  local
        …
    """
    answer: dict[str, Any] = target(data_dir, number).get("/status")
    counts = [f"{answer[each]} {each}" for each in STATUSES if answer[each]]
    facts = [
        ("state", answer["state"] + (f" ({answer['trouble']})" if answer["trouble"] else "")),
        ("peer", answer["peer_id"]),
        ("network", answer["network"] + _key_sentence(answer)),
        ("address", answer["address"]),
        ("members", ", ".join(counts)),
        ("clock", clock_offset(answer["clock_offset_ms"], answer["clock_peers"])),
        ("up for", span(time.time() - answer["started_at"])),
        ("version", answer["version"]),
        ("process", str(answer["pid"])),
        ("metrics", f"http://{answer['http']}/metrics" if answer["http"] else "off"),
        ("spark", spark_sentence(answer["spark"])),
        *capacity_facts(answer["capacity"]),
        ("data", answer["data_dir"]),
        ("journal", f"{megabytes(answer['journal_bytes'])} on disk, {megabytes(answer['journal_kept_bytes'])} kept"),
    ]
    show_record(answer, facts, form)


@click.command()
@target_options
@output_option
@click.option("--local", is_flag=True, help="Only the peers this one knows itself; asks nobody.")
def members(data_dir: Path | None, number: int | None, form: str | None, local: bool) -> None:
    """List the peers of the network: alive, suspect, left or dead; those refused as incompatible, and the expelled.

    If some peer does not share all protocols with this one, a last column names them and the versions of both.

    \b
        $ peer members
        peer                  status  address         version  spark  round trip  since
        3f9a77c0 (this peer)  alive   127.0.0.1:7400  0.2.0    yes             -  3m ago
        77c0b1d2              alive   127.0.0.1:7401  0.2.0    yes       0.31 ms  3m ago
    """
    rows = target(data_dir, number).get("/members", crawl=int(not local))
    differs = any(row["not_shared"] for row in rows)
    show_rows(rows, (*MEMBER_COLUMNS, _NOT_SHARED) if differs else MEMBER_COLUMNS, form)


@click.command()
@click.argument("peers", nargs=-1, metavar="[PEER [PEER]]")
@target_options
@output_option
@click.option("-n", "--count", type=click.IntRange(1, 100), default=3, show_default=True, help="Measurements per peer.")
def rtt(peers: tuple[str, ...], data_dir: Path | None, number: int | None, form: str | None, count: int) -> None:
    """Measure round trips to all peers or to one, or tell the distance between two others.

    A peer is named by the beginning of its id. Between two other peers nothing is sent: their network coordinates give
    an estimate, with its likely error.

    \b
        $ peer rtt 77c0 -n 10
        peer      address         round trip      min      max  lost
        77c0b1d2  127.0.0.1:7401     0.31 ms  0.25 ms  0.52 ms  0/10
    """
    if len(peers) > 2:
        raise PeerError("name at most two peers", exit_code=Exit.MISUSE)
    rows: list[dict[str, Any]] = target(data_dir, number).get("/rtt", peer=list(peers), count=count)
    between = len(peers) == 2 and all(row["sent"] == 0 for row in rows)
    if not rows:
        click.echo("no other peer is alive", err=True)
        return
    show_rows(rows, _BETWEEN_COLUMNS if between else _RTT_COLUMNS, form)
    if all(row["sent"] and row["lost"] == row["sent"] for row in rows):
        raise PeerError("no peer answered", hint='"peer members" shows who is alive.', exit_code=Exit.TIMEOUT)
