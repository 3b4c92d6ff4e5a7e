"""The `peer` command. Its commands are in group.py; this is only the way in."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from peerd.cli.group import peer
        from peerd.shell import run_command
    except KeyboardInterrupt:  # A quick Ctrl-C, while modules load.
        sys.exit(130)
    run_command(peer, "peer")
