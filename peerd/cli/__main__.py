"""`python -m peerd.cli` is `peer`."""

from peerd.cli import main

main()
