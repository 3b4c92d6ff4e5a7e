"""`peer up` and `peer down`: one peer or an embedded network, in the foreground or left running."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from peerd.cli.common import base_dir, chosen_dir, read_span, target_options
from peerd.cli.look import MEMBER_COLUMNS
from peerd.cli.output import output_option, show_rows
from peerd.cli.start import start_detached
from peerd.datadir import DataDir
from peerd.errors import Exit, PeerError
from peerd.options import settings, settings_options
from peerd.words import count as counted

if TYPE_CHECKING:
    from overlay.sim.topology import TopologyName
    from peerd.cluster import Cluster

_PEERS_MAX = 64
_PEER_START_S = 15.0
_FLAGS_OF_ONE_PEER = ("host", "advertise", "http_host", "http_port", "seeds", "host_nothing")
_FLAGS_OF_ALL_PEERS = (
    *("log_level", "log_format", "spark", "spark_master", "spark_memory"),
    *("cpu_share", "uplink", "downlink"),
)
_WATCH_S = 0.25


@click.command()
@target_options
@click.option(
    "--peers", type=click.IntRange(1, _PEERS_MAX), metavar="N", help="Start a network of N peers on this machine."
)
@click.option("-d", "--detach", is_flag=True, help="Leave the peers running in the background.")
@click.option(
    "--for", "for_s", callback=read_span, metavar="TIME", help="With --peers: stop after this long, like 10s."
)
@click.option(
    "--topology",
    type=click.Choice(["lan", "uniform", "transit-stub"]),
    help="With --peers: hold messages back as if the peers were apart, in a network of this kind.",
)
@click.option("--name", metavar="NAME", help="With --peers: name of a new network [local].")
@settings_options
@output_option
def up(
    data_dir: Path | None,
    number: int | None,
    peers: int | None,
    detach: bool,
    for_s: float | None,
    topology: TopologyName | None,
    config_file: Path | None,
    form: str | None,
    **flags: object,
) -> None:
    """Start the peer of this data directory, or with --peers a whole network on this machine.

    Ctrl-C stops what was started; with --detach it goes on running, and "peer down" stops it.

    \b
        $ peer up --peers 5
        5 peers up in 2.4 s, network "local"
        peer                  status  address         version  spark  round trip  since
        3f9a77c0 (this peer)  alive   127.0.0.1:7400  0.2.0    yes             -  2s ago
        …
    """
    if peers is None:
        if for_s is not None or topology is not None:
            option = "--for" if for_s is not None else "--topology"
            raise PeerError(f"{option} goes with --peers", exit_code=Exit.MISUSE)
        flags.pop("name")
        _up_one(chosen_dir(data_dir, number), detach, config_file, flags)
        return
    wrong = [key for key in _FLAGS_OF_ONE_PEER if flags[key]] + (["config"] if config_file else [])
    if wrong or number is not None or (for_s is not None and detach):
        pair = ("--detach", "--for") if for_s is not None and detach else ("--peers", f"--{(wrong or ['peer'])[0]}")
        raise PeerError(f"{pair[0]} and {pair[1].replace('_', '-')} do not go together", exit_code=Exit.MISUSE)
    _up_many(base_dir(data_dir), peers, detach, for_s, form, flags, topology)


def _up_one(data: DataDir, detach: bool, config_file: Path | None, flags: Mapping[str, object]) -> None:
    config = settings(data, flags, config_file)
    if data.is_stood_by():
        from peerd.standby import call_back

        click.echo("the daemon that stands by runs this peer again, with the settings it was started with", err=True)
        _say_up(call_back(data, _PEER_START_S))
        return
    if not detach:
        from peerd.service import run_daemon

        run_daemon(config, data)
        return
    if data.is_held():
        raise PeerError(
            f'a daemon already runs in "{data.path}"', detail=f"Process {data.pid()}.", hint='"peer status" shows it.'
        )
    _say_up(start_detached(data, flags, config_file, _PEER_START_S))


def _say_up(status: Mapping[str, Any]) -> None:
    line = f'peer {status["peer_id"][:8]} up at {status["address"]}, network "{status["network"]}"'
    if status["state"] != "running":
        line += f"; not a member yet, still trying ({status['trouble'] or 'the seeds have not answered'})"
    click.echo(line, err=True)


def _up_many(
    base: DataDir,
    count: int,
    detach: bool,
    for_s: float | None,
    form: str | None,
    flags: Mapping[str, object],
    topology: TopologyName | None,
) -> None:
    from peerd.cluster import Cluster
    from peerd.config import DEFAULT_PORT

    config = settings(DataDir(base.path / "up"), {key: flags[key] for key in ("port", "name", *_FLAGS_OF_ALL_PEERS)})
    shared = {key: str(flags[key]) for key in _FLAGS_OF_ALL_PEERS if flags[key]}
    cluster = Cluster(base)
    is_up = False
    with interruptible():
        try:
            started_at = time.monotonic()
            first_port = config.port or DEFAULT_PORT
            cluster.start(
                count, name=config.name, first_port=first_port, detached=detach, settings=shared, topology=topology
            )
            with _progress(cluster) as on_up:
                cluster.wait_until_up(on_up)
            is_up = True
            rows: list[dict[str, Any]] = cluster.client(1).get("/members")
            network = cluster.client(1).get("/status")["network"]
            took_s = time.monotonic() - started_at
            click.echo(f'{counted(count, "peer")} up in {took_s:.1f} s, network "{network}"', err=True)
            show_rows([row for row in rows if row["status"] in ("alive", "suspect")], MEMBER_COLUMNS, form)
            sys.stdout.flush()
            if detach:
                click.echo('left running; "peer down" stops them', err=True)
                return
            _watch(cluster, for_s)
        except KeyboardInterrupt:
            if not is_up:
                raise
        finally:
            if not (detach and is_up):
                _stop(cluster)


def _watch(cluster: Cluster, for_s: float | None) -> None:
    """Stay until the time is up or Ctrl-C; say so when a peer goes."""
    if for_s is None:
        click.echo('Ctrl-C stops them; in another terminal try "peer members" or "peer rtt -p 2"', err=True)
    deadline_at = None if for_s is None else time.monotonic() + for_s
    gone: set[int] = set()
    while deadline_at is None or time.monotonic() < deadline_at:
        for peer in cluster.peers:
            code = peer.daemon.process.poll()
            if code is not None and peer.number not in gone:
                gone.add(peer.number)
                how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                click.echo(f"peer {peer.number} at {peer.address} has gone ({how})", err=True)
        if len(gone) == len(cluster.peers):
            return
        time.sleep(_WATCH_S)


def _stop(cluster: Cluster) -> None:
    running = [peer for peer in cluster.peers if peer.daemon.process.poll() is None]
    if not running:
        return
    click.echo(f"stopping {counted(len(running), 'peer')} …", err=True)
    killed = cluster.stop()
    click.echo(
        f"stopped {counted(len(running), 'peer')}" + (f", {killed} of them by force" if killed else ""), err=True
    )


def _is_looping() -> bool:
    """Whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a closed terminal or a service manager end this command the way Ctrl-C does; asked again, at once."""
    is_ending = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_ending
        if is_ending:
            os._exit(128 + number)
        is_ending = True
        as_usual = signal.getsignal(signal.SIGINT)  # In an event loop, it ends the main task in good order.
        if not callable(as_usual):
            raise KeyboardInterrupt
        try:
            as_usual(signal.SIGINT, frame)
        except KeyboardInterrupt:
            if not _is_looping():
                raise  # Otherwise the main task is over, and the loop, which is about to be closed, must not break off.

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(cluster: Cluster) -> Iterator[Any]:
    """Show the peers come up: live on a terminal, a line each elsewhere."""
    if not sys.stderr.isatty():
        yield lambda peer: click.echo(
            f"peer {peer.number} up at {peer.address} after {peer.up_after_s:.1f} s", err=True
        )
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(finished_text="[green]✓"), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks = {
            peer.number: progress.add_task(f"peer {peer.number}  {peer.address}  starting", total=1)
            for peer in cluster.peers
        }

        def on_up(peer: Any) -> None:
            text = f"peer {peer.number}  {peer.address}  up after {peer.up_after_s:.1f} s"
            progress.update(tasks[peer.number], completed=1, description=text)

        yield on_up


@click.command()
@target_options
def down(data_dir: Path | None, number: int | None) -> None:
    """Stop the peers that run here: the embedded ones, and the peer of this data directory.

    The others are told, so they list these peers as left. With -p only that embedded peer is stopped.

    \b
        $ peer down
        stopped 5 peers
    """
    from peerd.process import stop_daemons

    base = base_dir(data_dir)
    if number is not None:
        candidates = [base.embedded(number)]
    else:
        candidates = [base, *(base.embedded(each) for each in base.embedded_numbers())]
    running = [data for data in candidates if data.is_held()]
    if not running:
        click.echo(f"nothing runs in {base.path}", err=True)
        return
    killed = stop_daemons(running)
    click.echo(
        f"stopped {counted(len(running), 'peer')}" + (f", {killed} of them by force" if killed else ""), err=True
    )
