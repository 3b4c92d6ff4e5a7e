"""The commands of `peer`: one file per family, each imported only when it is called.

The table below is all that `peer --help` needs, so help costs no more than importing click.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Final, NamedTuple

import click

from peerd import __version__
from peerd.errors import Exit, PeerError


class _Entry(NamedTuple):
    module: str
    help: str


SECTIONS: Final[dict[str, dict[str, _Entry]]] = {
    "Start and stop": {
        "up": _Entry("up", "Start this peer, or a network of --peers N on this machine."),
        "down": _Entry("up", "Stop the peers that run here."),
        "init": _Entry("network", "Create a network and print its join token."),
        "join": _Entry("network", "Join a network with its token, and start the peer."),
        "leave": _Entry("network", "Leave the network: drain, tell everyone, stop."),
    },
    "Streams": {
        "stream": _Entry("streams", "Create, list, show and remove streams."),
        "publish": _Entry("publish", "Publish tuples to a stream: JSON, CSV, a file, stdin."),
        "subscribe": _Entry("subscribe", "Read a stream or a query's results as they come."),
        "unsubscribe": _Entry("subscribe", "Forget a subscription that has a name."),
    },
    "Queries": {
        "query": _Entry("query", "List, show, read and stop the queries of this peer."),
        "history": _Entry("history", "Run a query over what streams have kept, as one batch."),
        "explain": _Entry("explain", "Show what a query means: its types, its class, its plan."),
    },
    "Try": {
        "demo": _Entry("demo", "Play a scenario on five peers, with a crash in the middle."),
        "bench": _Entry("bench", "Measure how fast tuples go from one peer to another."),
        "simulate": _Entry("simulate", "Simulate a network with every fault we can name, from a seed."),
        "replay": _Entry("simulate", "Run a simulation again and compare it with its trace."),
    },
    "Look": {
        "status": _Entry("look", "Show how this peer is doing."),
        "members": _Entry("look", "List the peers of the network."),
        "rtt": _Entry("look", "Measure round trips to peers, or between two of them."),
        "doctor": _Entry("doctor", "Check this machine and peer, and say what to do next."),
    },
    "Manage": {
        "rights": _Entry("rights", "Say who may publish, read, create and stop what."),
        "token": _Entry("network", "Print the join token of this network."),
        "force-leave": _Entry("network", "Declare that a dead peer will not come back."),
        "expel": _Entry("network", "Shut a member out for good, and replace the network key."),
        "version": _Entry("version", "Print the version."),
    },
}
COMMANDS: Final[dict[str, _Entry]] = {name: entry for part in SECTIONS.values() for name, entry in part.items()}


class LazyGroup(click.Group):
    """A group that knows its commands by the table above and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"peerd.cli.{entry.module}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        command.short_help = entry.help
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            nearest = difflib.get_close_matches(name, COMMANDS, n=1)
            guess = f'Did you mean "peer {nearest[0]}"? ' if nearest else ""
            hint = f'{guess}"peer --help" lists the commands.'
            raise PeerError(f'there is no command "{name}"', hint=hint, exit_code=Exit.MISUSE)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(11), entry.help) for name, entry in entries.items()])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 misuse or bad input, "
    "3 daemon unreachable, 4 not found, 5 timeout.",
)
@click.option("--token", metavar="TOKEN", help="Act for the client of this token [PEER_CLIENT_TOKEN].")
@click.version_option(__version__, prog_name="peer", message="%(prog)s %(version)s")
@click.pass_context
def peer(ctx: click.Context, token: str | None) -> None:
    """Streams of tuples over a network of equal peers.

    Start a network of five peers on this machine:

    \b
        $ peer up --peers 5
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
