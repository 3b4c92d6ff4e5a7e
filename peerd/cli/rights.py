"""The commands about who may do what: `peer rights show`, `closed`, `open`, `grant`, `revoke`, `token`, `log`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from peerd.cli.common import client_for, read_span, target_options
from peerd.cli.output import Column, chosen_form, output_option, show_record, show_rows
from peerd.errors import Exit, PeerError
from peerd.words import ago, span

if TYPE_CHECKING:
    from peerd.client import Client
    from protocols.messages import Done
    from protocols.rights.messages import RightsShown

VERBS: Final = ("publish", "read", "create", "stop", "admin")
ALL: Final = "all"  # All of them but admin.
FOUND_MAX: Final = 5

_GRANT_COLUMNS: Final = (
    Column("who", lambda row: str(row["principal"])),
    Column("may", lambda row: ", ".join(row["verbs"])),
    Column("what", lambda row: str(row["pattern"])),
)
_TOKEN_COLUMNS: Final = (
    Column("client", lambda row: str(row["client"])),
    Column("made", lambda row: ago(time.time() - row["created_at"])),
    Column("expires", lambda row: _expiry(row["expires_at"])),
)
_AUDIT_COLUMNS: Final = (
    Column("when", lambda row: ago(time.time() - row["at"])),
    Column("event", lambda row: str(row["what"])),
    Column("who", lambda row: _shortened(row["principal"])),
    Column("what", lambda row: str(row["action"])),
    Column("by", lambda row: str(row["via"])),
    Column("times", lambda row: str(row["count"]), right=True),
)


@click.group()
def rights() -> None:
    """Say who may publish, read, create and stop what in this network.

    In a new network every member may do everything. "peer rights closed" turns that around: only what is granted is
    allowed. Grants name a peer (peer:ID), a client token (client:NAME), or all (peer:*, client:*, *), and a stream, a
    query (query:NAME), or the beginning of a name with a star.

    \b
        $ peer rights token create sensor-7
        $ peer rights grant client:sensor-7 publish flights
        $ peer rights grant 'peer:*' all 'plant.*'
        $ peer rights closed
    """


@rights.command()
@target_options
@output_option
def show(data_dir: Path | None, number: int | None, form: str | None) -> None:
    """Show the policy and all grants.

    \b
        $ peer rights show
    """

    async def work() -> RightsShown:
        async with client_for(data_dir, number) as client:
            return await client.rights()

    shown = asyncio.run(work())
    grants = [
        {"principal": each.principal, "verbs": list(each.verbs), "pattern": each.pattern} for each in shown.grants
    ]
    if chosen_form(form) != "table":
        show_record({"policy": shown.policy, "peer_id": shown.peer.hex(), "grants": grants}, (), form)
        return
    means = {"open": "open: every member may do everything", "closed": "closed: only what is granted is allowed"}
    facts = [("policy", means[shown.policy]), ("this peer", f"peer:{shown.peer.hex()}")]
    if shown.client:
        facts.append(("asked for", f"client:{shown.client}"))
    show_record({}, facts, "table")
    if grants:
        click.echo()
        show_rows(grants, _GRANT_COLUMNS, "table")


@rights.command(name="closed")
@target_options
def close(data_dir: Path | None, number: int | None) -> None:
    """Allow only what is granted. This peer may change rights from then on.

    \b
        $ peer rights closed
    """

    async def work(client: Client) -> Done:
        return await client.set_policy("closed")

    done = _do(data_dir, number, work)
    click.echo(f"the network is closed: only what is granted is allowed; {_kept(done)}", err=True)
    hint = 'make a second peer admin ("peer rights grant peer:ID admin"), in case this one is lost'
    click.echo(f"note: {hint}", err=True)


@rights.command(name="open")
@target_options
def open_(data_dir: Path | None, number: int | None) -> None:
    """Allow every member everything again; grants stay as they are.

    \b
        $ peer rights open
    """

    async def work(client: Client) -> Done:
        return await client.set_policy("open")

    done = _do(data_dir, number, work)
    click.echo(f"the network is open: every member may do everything; {_kept(done)}", err=True)


@rights.command()
@click.argument("principal", metavar="WHO")
@click.argument("verbs", metavar="VERB[,VERB]")
@click.argument("pattern", metavar="[WHAT]", default="*")
@target_options
def grant(principal: str, verbs: str, pattern: str, data_dir: Path | None, number: int | None) -> None:
    """Allow somebody something: publish, read, create, stop, all of these (all), or admin.

    WHO is peer:ID (the beginning of it), client:NAME, peer:*, client:* or *. WHAT is a stream, query:NAME, or the
    beginning of either with a star [*].

    \b
        $ peer rights grant client:sensor-7 publish flights
        $ peer rights grant peer:3f9a77 create,read,stop 'query:*'
    """
    wanted = _verbs(verbs)

    async def work(client: Client) -> Done:
        return await client.grant(await _whole(client, data_dir, number, principal), wanted, pattern)

    done = _do(data_dir, number, work)
    click.echo(f'granted: {principal} may {", ".join(wanted)} "{pattern}"; {_kept(done)}', err=True)


@rights.command()
@click.argument("principal", metavar="WHO")
@click.argument("verbs", metavar="[VERB[,VERB]]", default="")
@click.argument("pattern", metavar="[WHAT]", default="*")
@target_options
def revoke(principal: str, verbs: str, pattern: str, data_dir: Path | None, number: int | None) -> None:
    """Take a grant back, as "peer rights show" names it.

    \b
        $ peer rights revoke client:sensor-7 publish flights
    """
    wanted = _verbs(verbs) if verbs else ()

    async def work(client: Client) -> Done:
        return await client.revoke(await _whole(client, data_dir, number, principal), wanted, pattern)

    done = _do(data_dir, number, work)
    click.echo(f'taken back: {principal}, {", ".join(wanted) or "everything"} "{pattern}"; {_kept(done)}', err=True)


@rights.command(name="log")
@target_options
@output_option
def log_(data_dir: Path | None, number: int | None, form: str | None) -> None:
    """Show what was refused, changed or exhausted at this peer lately; its log has the same as lines "audit".

    \b
        $ peer rights log -o jsonl
    """

    async def work() -> list[dict[str, Any]]:
        import msgspec

        async with client_for(data_dir, number) as client:
            return [{**msgspec.structs.asdict(each), "at": each.at / 1000} for each in await client.audit()]

    show_rows(asyncio.run(work()), _AUDIT_COLUMNS, form)


@rights.group()
def token() -> None:
    """Make, list and remove the tokens of clients.

    \b
        $ peer rights token create sensor-7 --for 30d
        $ PEER_CLIENT_TOKEN=sensor-7.… peer publish flights '{"id": 1}'
    """


@token.command()
@click.argument("name")
@click.option("--for", "for_s", callback=read_span, metavar="TIME", help="It expires after this time [never].")
@click.option(
    "--to", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write it to a file that only you can read."
)
@target_options
def create(name: str, for_s: float | None, file: Path | None, data_dir: Path | None, number: int | None) -> None:
    """Make a token and print it, once: the network keeps only a digest.

    \b
        $ peer rights token create sensor-7 --for 30d
        sensor-7.k6VwbGFudMQg…
    """
    expires_at = int((time.time() + for_s) * 1000) if for_s else 0
    # Before the token exists: a file that cannot be written would lose it.
    out = _new_file(file) if file is not None else None

    async def work() -> str:
        async with client_for(data_dir, number) as client:
            return await client.create_token(name, expires_at=expires_at)

    try:
        made = asyncio.run(work())
    except BaseException:
        if file is not None and out is not None:
            os.close(out)
            file.unlink()
        raise
    if out is None:
        click.echo(made)
    else:
        with os.fdopen(out, "w") as written:
            written.write(made + "\n")
    click.echo(f'token of client "{name}" made; it can do nothing until it is granted something', err=True)


@token.command()
@target_options
@output_option
def ls(data_dir: Path | None, number: int | None, form: str | None) -> None:
    """List the tokens there are, without their secrets.

    \b
        $ peer rights token ls
    """

    async def work() -> RightsShown:
        async with client_for(data_dir, number) as client:
            return await client.rights()

    tokens = [
        {"client": each.client, "created_at": each.created_at / 1000, "expires_at": each.expires_at / 1000 or None}
        for each in asyncio.run(work()).tokens
    ]
    show_rows(tokens, _TOKEN_COLUMNS, form)


@token.command()
@click.argument("name")
@target_options
def rm(name: str, data_dir: Path | None, number: int | None) -> None:
    """Make a token worth nothing, also for connections that have presented it.

    \b
        $ peer rights token rm sensor-7
    """

    async def work(client: Client) -> Done:
        return await client.remove_token(name)

    done = _do(data_dir, number, work)
    click.echo(f'token of client "{name}" removed; {_kept(done)}', err=True)


def _new_file(file: Path) -> int:
    try:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        hint = "Name a file that is not there yet, in a folder that is."
        raise PeerError(f'cannot make the file "{file}": {error.strerror}', hint=hint, exit_code=Exit.MISUSE) from error


def _do(data_dir: Path | None, number: int | None, work: Any) -> Done:
    async def connected() -> Done:
        async with client_for(data_dir, number) as client:
            done: Coroutine[Any, Any, Done] = work(client)
            return await done

    return asyncio.run(connected())


def _kept(done: Done) -> str:
    return f"kept by {done.replicas} peer{'' if done.replicas == 1 else 's'}"


def _verbs(text: str) -> tuple[Any, ...]:
    wanted = tuple(dict.fromkeys(verb.strip() for verb in text.split(",")))
    if ALL in wanted:
        wanted = tuple(dict.fromkeys((*VERBS[:-1], *(verb for verb in wanted if verb != ALL))))
    for verb in wanted:
        if verb not in VERBS:
            hint = f"Rights are {', '.join(VERBS)}; all is all of them but admin."
            raise PeerError(f'"{verb}" is no right', hint=hint, exit_code=Exit.MISUSE)
    return wanted


async def _whole(client: Client, data_dir: Path | None, number: int | None, principal: str) -> str:
    """The principal with the whole id of its peer, where the beginning is given."""
    kind, _, beginning = principal.partition(":")
    if kind != "peer" or beginning == "*" or len(beginning) == len((await client.rights()).peer.hex()):
        return principal
    from peerd.cli.common import target

    members = target(data_dir, number).get("/members")
    found = [each["peer_id"] for each in members if beginning and each["peer_id"].startswith(beginning.lower())]
    if len(found) != 1:
        named = ", ".join(each[:12] for each in found[:FOUND_MAX])
        raise PeerError(
            f'"{beginning}" is the beginning of {len(found) or "no"} peer id{"" if len(found) == 1 else "s"}',
            detail=f"They are {named}." if found else None,
            hint='"peer members" lists the peers; a peer that is away is named by its whole id.',
            exit_code=Exit.NOT_FOUND,
        )
    return f"peer:{found[0]}"


def _expiry(at: float | None) -> str:
    if at is None:
        return "never"
    left = at - time.time()
    return f"in {span(left)}" if left > 0 else "has expired"


def _shortened(principal: str) -> str:
    kind, _, name = principal.partition(":")
    return f"peer:{name[:8]}" if kind == "peer" else principal
