"""The `peerd` command: a peer in the foreground, for service managers and containers. This is only the way in."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from peerd.cli.daemon import peerd
        from peerd.shell import run_command
    except KeyboardInterrupt:  # A quick Ctrl-C, while modules load.
        sys.exit(130)
    run_command(peerd, "peerd")


if __name__ == "__main__":
    main()
