"""The commands about belonging to a network: `peer init`, `join`, `leave`, `force-leave`, `expel`, `token`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from peerd.cli.common import chosen_dir, read_span, target, target_options
from peerd.cli.output import output_option, show_record
from peerd.cli.start import start_detached
from peerd.datadir import DataDir
from peerd.errors import Exit, PeerError
from peerd.options import network_options, settings, settings_options

if TYPE_CHECKING:
    from overlay.identity import JoinToken
    from peerd.config import Config
    from peerd.control_client import ControlClient

_POLL_S: Final = 0.1
_FLAGS_KEPT = ("host", "port", "advertise", "http_host", "http_port")


@click.command()
@target_options
@click.option("--name", metavar="NAME", help="Name of the network [local].")
@network_options
def init(data_dir: Path | None, number: int | None, **flags: object) -> None:
    """Create a network and print its join token.

    The token is the key to the network: whoever has it can become a member. Flags about the address are kept in
    peerd.toml. Start the peer with "peer up", then join others with the token.

    \b
        $ peer init --name plant --host 0.0.0.0
        peer1-k6VwbGFudMQg…
    """
    from peerd.addresses import is_loopback, local_address
    from peerd.admission import found_network, load_identity, stored_token

    data = chosen_dir(data_dir, number)
    config = settings(data, flags)
    data.prepare()
    if (before := stored_token(data)) is not None:
        raise PeerError(
            f'this data directory already belongs to the network "{before.network.name}"',
            detail=f'Data directory "{data.path}".',
            hint='"peer token" prints its token; for another network give another --data-dir.',
        )
    load_identity(data)
    _keep_flags(data, config, flags)
    token = found_network(config, data)
    click.echo(str(token))
    click.echo(f'network "{config.name}" created in {data.path}; start its first peer with: peer up', err=True)
    if not token.seeds:
        click.echo('note: the port is chosen at the start; print the token again with "peer token" then', err=True)
    elif is_loopback(token.seeds[0][0]):
        example = local_address() or "ADDRESS"
        click.echo(
            f"note: this token works on this machine only; for others create the network with --host {example}",
            err=True,
        )


@click.command()
@target_options
def token(data_dir: Path | None, number: int | None) -> None:
    """Print the join token of this network.

    It is a secret: whoever has it can become a member.

    \b
        $ peer token | ssh plant2 peer join - --detach
    """
    client = target(data_dir, number)
    try:
        click.echo(client.get("/token")["token"])
        return
    except PeerError as error:
        if error.exit_code != Exit.UNREACHABLE or not client.data.network_file.exists():
            raise
    # The stored token serves as well; a running daemon only adds the members it knows now.
    from peerd.admission import stored_token

    click.echo(str(stored_token(client.data)))


@click.command()
@click.argument("token_text", metavar="TOKEN")
@target_options
@click.option("-d", "--detach", is_flag=True, help="Leave the peer running in the background.")
@click.option(
    "--timeout",
    "timeout_s",
    callback=read_span,
    default="15s",
    show_default=True,
    help="How long to wait to be let in.",
)
@settings_options
def join(
    token_text: str,
    data_dir: Path | None,
    number: int | None,
    detach: bool,
    timeout_s: float,
    config_file: Path | None,
    **flags: object,
) -> None:
    """Join a network with its token, and start the peer.

    With "-" as TOKEN it is read from stdin, which keeps it out of the list of processes. Later starts need only
    "peer up".

    \b
        $ peer join peer1-k6VwbGFudMQg… --port 7401 --detach
        peer 77c0b1d2 joined "plant" at 10.0.0.6:7401
    """
    if not detach:  # The daemon runs in this process, so its libraries are loaded as it loads them.
        from peerd import lean  # noqa: F401
    from peerd.admission import check_not_expelled, parse_token, store_token, stored_token

    new = parse_token(sys.stdin.read() if token_text == "-" else token_text, source="the join token")
    data = chosen_dir(data_dir, number)
    config = settings(data, flags, config_file)
    data.prepare()
    before = stored_token(data)
    if before is not None and before.network.id != new.network.id:
        raise PeerError(
            f'this data directory already belongs to the network "{before.network.name}"',
            detail=f'Data directory "{data.path}"; the token is of the network "{new.network.name}".',
            hint="Give another --data-dir: one peer is a member of one network.",
        )
    if before is not None and new.network.generation < before.network.generation:
        raise PeerError(
            f'the join token is void: the key of the network "{new.network.name}" was replaced since',
            detail=f"The token is of generation {new.network.generation}, this peer has {before.network.generation}.",
            hint='"peer token" on a member prints the present one.',
            exit_code=Exit.MISUSE,
        )
    if data.is_held():
        raise PeerError(
            f'a daemon already runs in "{data.path}"', detail=f"Process {data.pid()}.", hint='"peer status" shows it.'
        )
    check_not_expelled(data, new)
    store_token(data, new)
    keeps_flags = _keep_flags(data, config, flags)
    try:
        _start_member(new, data, config, detach, timeout_s, config_file, flags)
    except PeerError:
        # What led nowhere is not kept: the next token may be of another network.
        if before is None:
            data.network_file.unlink(missing_ok=True)
        else:
            store_token(data, before)
        if keeps_flags:
            data.config_file.unlink()
        raise


def _start_member(
    token: JoinToken,
    data: DataDir,
    config: Config,
    detach: bool,
    timeout_s: float,
    config_file: Path | None,
    flags: Mapping[str, object],
) -> None:
    if not detach:
        from peerd.service import run_daemon

        run_daemon(config, data, join_within_s=timeout_s)
        return
    status = start_detached(data, flags, config_file, timeout_s, only_member=True)
    if status["state"] != "running":
        from peerd.admission import not_joined

        raise not_joined(token, timeout_s, status["refused"])
    click.echo(f'peer {status["peer_id"][:8]} joined "{status["network"]}" at {status["address"]}', err=True)


def _keep_flags(data: DataDir, config: Config, flags: Mapping[str, object]) -> bool:
    """Keep the flags about the address for later starts, unless the user already keeps a file of settings."""
    from peerd.config import write_settings

    given = {key: getattr(config, key) for key in _FLAGS_KEPT if flags.get(key) is not None}
    if given and data.config_file.exists():
        click.echo(f"note: {data.config_file} is left as it is; the flags given hold for this start only", err=True)
    elif given:
        write_settings(data.config_file, given)
        return True
    return False


@click.command()
@target_options
@click.option("--timeout", "timeout_s", callback=read_span, default="45s", show_default=True, help="How long to wait.")
def leave(data_dir: Path | None, number: int | None, timeout_s: float) -> None:
    """Leave the network: hand over what this peer holds for others, tell everyone, stop.

    The others list this peer as left. "peer up" brings it back. Tuples published here that somebody has not read stay
    on its disk until then, or with the backup of a replicated stream; the command says of which streams.

    \b
        $ peer leave
        peer 3f9a77c0 left "plant"
    """
    from peerd.process import wait_until_gone

    client = target(data_dir, number)
    answer = client.post("/leave")
    started_at = time.monotonic()
    _follow_handover(client, started_at + timeout_s)
    if wait_until_gone([client.data], timeout_s):
        raise PeerError(
            f"the peer is still leaving after {time.monotonic() - started_at:.0f} s",
            hint=f'Process {client.data.pid()} goes on; its log is "{client.data.log_file}".',
            exit_code=Exit.TIMEOUT,
        )
    click.echo(f'peer {answer["peer_id"][:8]} left "{answer["network"]}"', err=True)


def _follow_handover(client: ControlClient, deadline_at: float) -> None:
    """Show how a peer hands over, and what it cannot."""
    shown = None
    while time.monotonic() < deadline_at:
        try:
            news = client.get("/leave")
        except PeerError as error:
            if error.exit_code == Exit.UNREACHABLE:  # It has gone already.
                return
            raise
        if (news["entries"], news["left"]) != shown:
            shown = (news["entries"], news["left"])
            if news["entries"]:
                click.echo(f"handed over {news['entries'] - news['left']} of {news['entries']} entries", err=True)
        if news["is_over"]:
            break
    else:
        return
    if news["left"]:
        click.echo(
            f"warning: {news['left']} entries are not with all their new owners; they are on this disk", err=True
        )
    for kept in news["kept"]:
        where = (
            f"backup {kept['backup'][:8]} serves them" if kept["backup"] else "they wait here until this peer is back"
        )
        click.echo(f'{kept["pending"]} tuples of "{kept["stream"]}" are not read by all: {where}', err=True)


@click.command()
@click.argument("peer")
@target_options
@output_option
def force_leave(peer: str, data_dir: Path | None, number: int | None, form: str | None) -> None:
    """Declare that a dead PEER will not come back: every member lists it as left and stops asking for it.

    PEER is the beginning of its id. A peer that is alive is refused: stop it with "peer leave" where it runs.

    \b
        $ peer force-leave 77c0
    """
    answer = target(data_dir, number).post("/force-leave", {"peer": peer})
    show_record(answer, [("peer", answer["peer_id"]), ("status", "left")], form)


@click.command()
@click.argument("peer")
@target_options
@click.option(
    "--timeout",
    "timeout_s",
    callback=read_span,
    default="15s",
    show_default=True,
    help="How long to wait until all members have the new key.",
)
@output_option
def expel(peer: str, data_dir: Path | None, number: int | None, timeout_s: float, form: str | None) -> None:
    """Shut PEER out for good: all other members get a new network key, and take no word from it any more.

    PEER is the beginning of its id, alive or dead. Join tokens made before are void; "peer token" prints the new one.
    Members that are down get the key when they are back. This cannot be undone.

    \b
        $ peer expel 77c0
        3 of 3 members have the new key
        peer        77c0b1d2…
        status      expelled
        generation  2
    """
    client = target(data_dir, number)
    answer = client.post("/expel", {"peer": peer}, timeout_s=timeout_s + 30)
    news = _follow_key(client, answer["peer_id"], time.monotonic() + timeout_s)
    if not news["is_expelled"]:
        raise PeerError(
            f"peer {answer['peer_id'][:8]} is not expelled yet: the new key is not on the disk of this peer",
            hint='Its log tells why; it goes on trying, and "peer members" shows when it is done.',
            exit_code=Exit.TIMEOUT,
        )
    row = {**answer, "status": "expelled", **{key: news[key] for key in ("generation", "has", "of", "waiting")}}
    shown = (("peer", answer["peer_id"]), ("status", "expelled"), ("generation", str(news["generation"])))
    show_record(row, list(shown), form)
    if news["waiting"]:
        raise PeerError(
            f"{len(news['waiting'])} of {news['of']} members do not have the new key yet",
            detail=f"They are {', '.join(each[:8] for each in news['waiting'])}.",
            hint='They get it once they can be reached; "peer doctor" shows who lacks it.',
            exit_code=Exit.TIMEOUT,
        )


def _follow_key(client: ControlClient, peer_id: str, deadline_at: float) -> dict[str, Any]:
    """Show how many members have the new key, until all have it or the time is up."""
    shown = None
    while True:
        news: dict[str, Any] = client.get("/expel", peer=peer_id)
        if news["is_expelled"] and (news["has"], news["of"]) != shown:
            shown = (news["has"], news["of"])
            click.echo(f"{news['has']} of {news['of']} members have the new key", err=True)
        if (news["is_expelled"] and not news["waiting"]) or time.monotonic() > deadline_at:
            return news
        time.sleep(_POLL_S)
