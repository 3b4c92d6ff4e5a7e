"""`peer doctor`: looks at everything a peer needs, and says what to do about what is wrong."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import click

import peerd
from peerd.cli.common import chosen_dir, target_options
from peerd.cli.look import spark_sentence
from peerd.cli.output import Column, chosen_form, output_option, show_rows
from peerd.control_client import ControlClient
from peerd.datadir import DataDir
from peerd.errors import PeerError
from peerd.options import settings
from peerd.words import clock_offset
from peerd.words import count as counted
from protocols.clock import OFFSET_MAX_MS, PEERS_MIN

if TYPE_CHECKING:
    from overlay.identity import Address, JoinToken
    from peerd.config import Config

DISK_FREE_LOW: Final = 1 << 30
DISK_FREE_NONE: Final = 64 << 20
OPEN_FILES_LOW: Final = 1024
SEED_TIMEOUT_S: Final = 2.0
_MARKS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


class Finding(NamedTuple):
    """What one check found."""

    check: str
    status: Literal["ok", "warn", "fail"]
    finding: str
    next_step: str = ""


@click.command()
@target_options
@output_option
def doctor(data_dir: Path | None, number: int | None, form: str | None) -> None:
    """Check this machine and peer, and say what to do about what is wrong.

    Exit code 1 if something is broken; warnings leave it at 0.

    \b
        $ peer doctor
        ok    Python          3.11.7
        warn  network         this peer belongs to none yet
                              -> "peer init" creates one, "peer join TOKEN" joins one
        …
    """
    findings = []
    data = chosen_dir(data_dir, number)
    embedded = data.embedded_running()
    if embedded and number is None and not data.network_file.exists():
        data = data.embedded(embedded[0])
    for finding in _examine(data):
        findings.append(finding)
        if chosen_form(form) == "table":
            _show(finding)
    if chosen_form(form) != "table":
        columns = [Column(name, lambda row, name=name: str(row[name])) for name in Finding._fields]  # type: ignore[misc]
        show_rows([finding._asdict() for finding in findings], columns, form)
    broken = [finding.check for finding in findings if finding.status == "fail"]
    if broken:
        raise PeerError(f"{len(broken)} of {len(findings)} checks failed: {', '.join(broken)}")


def _show(finding: Finding) -> None:
    mark = click.style(finding.status.ljust(4), fg=_MARKS[finding.status])
    click.echo(f"{mark}  {finding.check:<14}  {finding.finding}")
    if finding.next_step:
        click.echo(f"{'':<20}  -> {finding.next_step}")


def _examine(data: DataDir) -> Iterator[Finding]:
    yield _python()
    yield _data_directory(data)
    yield _disk_space(data)
    config, finding = _settings(data)
    yield finding
    yield from _misspelt()
    token, finding = _network(data)
    yield finding
    running = data.is_held()
    yield _daemon(data, running)
    if config is not None:
        yield _port(data, config, running)
        if token is not None:
            yield from _seeds(data, config, token, running)
    yield from _versions(data, running)
    yield from _network_key(data, running)
    yield _clock(data, running)
    yield _open_files()
    if config is not None:
        yield from _spark(data, config, running)


def _python() -> Finding:
    return Finding("Python", "ok", f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}")


def _data_directory(data: DataDir) -> Finding:
    check = "data directory"
    if not data.path.exists():
        parent = _existing_parent(data.path)
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            return Finding(check, "fail", f"{data.path} cannot be made in {parent}", "give another with --data-dir")
        return Finding(check, "ok", f"{data.path} (will be made at the first start)")
    if not data.path.is_dir() or not os.access(data.path, os.R_OK | os.W_OK | os.X_OK):
        return Finding(
            check, "fail", f"{data.path} cannot be written", "give another with --data-dir, or mend its rights"
        )
    mode = data.path.stat().st_mode & 0o777
    if mode & 0o077:
        return Finding(check, "warn", f"{data.path} is open to others (mode {mode:o})", f"chmod 700 {data.path}")
    return Finding(check, "ok", str(data.path))


def _disk_space(data: DataDir) -> Finding:
    usage = shutil.disk_usage(_existing_parent(data.path))
    finding = f"{usage.free / (1 << 30):.1f} GiB free, {100 * usage.used / usage.total:.0f} % used"
    if usage.free < DISK_FREE_NONE:
        return Finding("disk space", "fail", finding, "make room: a peer must be able to write its files")
    if usage.free < DISK_FREE_LOW or usage.used > 0.9 * usage.total:
        return Finding("disk space", "warn", finding, "make room: a peer refuses new data on a disk that is 90 % full")
    return Finding("disk space", "ok", finding)


def _settings(data: DataDir) -> tuple[Config | None, Finding]:
    try:
        config = settings(data, {})
    except PeerError as error:
        return None, Finding("settings", "fail", error.error, error.hint or "mend that setting")
    given = ", ".join(f"{key} from {origin}" for key, origin in config.origins.items())
    return config, Finding("settings", "ok", given or "defaults")


def _misspelt() -> Iterator[Finding]:
    from peerd.config import unknown_variables

    for sentence in unknown_variables(os.environ):
        yield Finding("environment", "warn", sentence, "rename or unset it")


def _network(data: DataDir) -> tuple[JoinToken | None, Finding]:
    from peerd.admission import stored_token

    try:
        token = stored_token(data)
    except PeerError as error:
        return None, Finding("network", "fail", error.error, error.hint or "mend or remove that file")
    if token is None:
        step = '"peer init" creates one, "peer join TOKEN" joins one'
        return None, Finding("network", "warn", "this peer belongs to none yet", step)
    return token, Finding("network", "ok", f'"{token.network.name}"')


def _daemon(data: DataDir, running: bool) -> Finding:
    if not running:
        left = data.left()
        what = f'not running: it left the network "{left[0]}"' if left else "not running"
        return Finding("daemon", "warn", what, '"peer up" starts it')
    try:
        status = ControlClient(data).get("/status", timeout_s=5)
    except PeerError as error:
        return Finding(
            "daemon", "fail", f"process {data.pid()} holds the directory but does not answer", error.hint or ""
        )
    if status["state"] == "expelled":
        step = "only another member knows why; a member that expels cannot take it back"
        return Finding("daemon", "fail", f"this peer was expelled from the network {status['trouble']}", step)
    if status["state"] == "joining":
        step = "compare the clocks, the token and the firewalls (UDP and TCP) of this peer and the seeds"
        step = "upgrade the older of both peers" if status["refused"] else step
        return Finding("daemon", "fail", f"up, but no member yet: {status['trouble'] or 'joining'}", step)
    finding = f"process {status['pid']}, {status['state']}, sees {status['alive']} alive"
    return Finding("daemon", "ok", finding)


def _port(data: DataDir, config: Config, running: bool) -> Finding:
    from peerd.addresses import cannot_listen

    if running:
        return Finding("port", "ok", "held by the daemon of this directory")
    if config.port == 0:
        return Finding("port", "ok", "any free one")
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            family, _, _, _, place = socket.getaddrinfo(config.host, config.port, type=kind)[0]
            with socket.socket(family, kind) as probe:
                if kind == socket.SOCK_STREAM:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
        except OSError as error:
            refusal = cannot_listen(error, config.host, config.port, key="port", origin=config.origin("port"))
            return Finding("port", "fail", refusal.error, refusal.hint or "choose another with --port")
    return Finding("port", "ok", f"{config.port} is free for UDP and TCP on {config.host}")


def _seeds(data: DataDir, config: Config, token: JoinToken, running: bool) -> Iterator[Finding]:
    """Whether the seeds can be found; and while our daemon does not run, whether they are of our network."""
    from overlay.identity import format_address
    from peerd.addresses import own_seed

    others = [seed for seed in dict.fromkeys([*config.seeds, *token.seeds]) if seed != own_seed(config)]
    if not others:
        yield Finding("seeds", "ok", "this peer is the seed")
    for seed in others:
        where = format_address(seed)
        try:
            socket.getaddrinfo(*seed)
        except OSError:
            yield Finding("seed", "fail", f"{where} does not resolve", "check the name, or name another with --seed")
            continue
        if running:
            yield Finding("seed", "ok", f"{where} resolves")
        else:
            yield _seed_answers(data, token, seed, where)


def _seed_answers(data: DataDir, token: JoinToken, seed: Address, where: str) -> Finding:
    from overlay.tls import LinkCredentials
    from peerd.admission import load_identity

    context = LinkCredentials(load_identity(data), token.network).client
    try:
        with socket.create_connection(seed, timeout=SEED_TIMEOUT_S) as plain, context.wrap_socket(plain):
            return Finding("seed", "ok", f"{where} answers on TCP and is of this network; UDP is tried at the start")
    except ssl.SSLError:
        return Finding("seed", "fail", f"{where} is not of this network", "compare the tokens: did the network change?")
    except OSError as error:
        reason = "does not answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
        step = "is that peer up, and does a firewall let UDP and TCP through?"
        return Finding("seed", "warn", f"{where}: {reason}", step)


def _versions(data: DataDir, running: bool) -> Iterator[Finding]:
    """Whether this peer and the others understand each other; a peer that was refused is no member for this one."""
    try:
        members = ControlClient(data).get("/members", timeout_s=5) if running else []
    except PeerError:
        members = []  # The check of the daemon tells.
    gone = ("left", "dead", "expelled")
    others = [member for member in members if not member["is_self"] and member["status"] not in gone]
    for member in others:
        if member["not_shared"]:
            status: Literal["fail", "warn"] = "fail" if member["status"] == "incompatible" else "warn"
            who = f"peer {member['peer_id'][:8]} (release {member['version'] or 'unknown'}) at {member['address']}"
            found = f"{who} does not share {member['not_shared']}: {member['means']}"
            yield Finding("versions", status, found, member["advice"])
    if others and not any(member["not_shared"] for member in others):
        yield Finding("versions", "ok", f"shared with all {len(others)} peers that this one knows")


def _network_key(data: DataDir, running: bool) -> Iterator[Finding]:
    """Whether all live members have the key that this one has."""
    try:
        status = ControlClient(data).get("/status", timeout_s=5) if running else None
    except PeerError:
        status = None  # The check of the daemon tells.
    if status is None or status["state"] != "running":
        return
    found = f"generation {status['generation']}"
    if not status["behind"]:
        yield Finding("network key", "ok", f"{found}, at all members that this peer hears")
        return
    who = ", ".join(peer[:8] for peer in status["behind"][:5])
    step = 'they get it within seconds; a peer of an older release needs an upgrade, and "peer join" with a new token'
    yield Finding("network key", "warn", f"{found}; {counted(len(status['behind']), 'member')} without it: {who}", step)


def _clock(data: DataDir, running: bool) -> Finding:
    """A clock that is behind the files it has written, or this program's own, is wrong for certain; so is one that
    most other peers contradict."""
    now_s = time.time()
    files = [Path(peerd.__file__), data.key_file, data.network_file, data.contacts_file]
    newest_s = max(file.stat().st_mtime for file in files if file.exists())
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if now_s < newest_s - 60:
        return Finding("clock", "fail", f"{shown}, which is before files here were written", "set the clock; use NTP")
    try:
        status = ControlClient(data).get("/status", timeout_s=5) if running else {}
    except PeerError:
        status = {}  # The check of the daemon tells.
    if not status:
        return Finding("clock", "ok", f"{shown}; members must agree within 60 s, and {OFFSET_MAX_MS} ms to publish")
    found = clock_offset(status["clock_offset_ms"], status["clock_peers"])
    if abs(status["clock_offset_ms"]) <= OFFSET_MAX_MS:
        return Finding("clock", "ok", f"{shown}; {found}")
    if status["clock_peers"] < PEERS_MIN:
        return Finding("clock", "warn", f"{shown}; {found}: one of both is wrong", "set both clocks; use NTP")
    step = "set the clock; use NTP. Until then this peer takes no publishes"
    return Finding("clock", "fail", f"{shown}; {found}, more than {OFFSET_MAX_MS} ms", step)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES_LOW:
        return Finding("open files", "warn", f"at most {soft}", f"ulimit -n {min(hard, 4 * OPEN_FILES_LOW)}")
    return Finding("open files", "ok", f"at most {soft}")


def _spark(data: DataDir, config: Config, running: bool) -> Iterator[Finding]:
    """What Spark needs to start; one that is up has it. The daemon may have looked with another environment."""
    from spark_jobs.prospects import prospects
    from spark_jobs.session import SessionSettings

    if config.spark == "off":
        yield Finding("Spark", "ok", "off; queries with windows run at other peers")
        return
    try:
        spark = ControlClient(data).get("/status", timeout_s=5)["spark"] if running else {"state": "off"}
    except PeerError:
        spark = {"state": "off"}  # The check of the daemon tells.
    if spark["state"] in ("starting", "ready"):
        yield Finding("Spark", "ok", spark_sentence(spark))
        return
    found = prospects(SessionSettings(config.spark_master, config.spark_memory))
    for each in found.findings:
        if each.reason:
            yield Finding(each.what, "warn", each.reason, f"{each.step}. Only queries with windows need Spark")
        else:
            yield Finding(each.what, "ok", each.found)
    said = spark.get("missing") or spark.get("last_failure")
    if said and not found.reason:
        yield Finding("Spark", "warn", f"the daemon says: {said}", "it tries again by itself; or restart the peer")


def _existing_parent(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
