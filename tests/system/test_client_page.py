"""docs/client.md is true: its programs run in order against one network and print what the page shows.

`pytest --rewrite` writes the output anew; read the difference.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from peerd.cluster import Cluster

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "client.md"

pytestmark = pytest.mark.system


def output_of(network: Cluster, *arguments: str, program: str = "") -> str:
    """What a program prints that speaks to the first peer of the network."""
    environment = os.environ | {"PEER_DATA_DIR": str(network.base.path), "PYTHONPATH": str(DOCS.parent)}
    done = subprocess.run(
        [sys.executable, *arguments],
        input=program,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{program}\n{done.stderr}"
    return done.stdout


def test_every_program_prints_what_stands_below_it(network: Cluster, rewrite: bool):
    blocks = re.findall(r"```python\n(.*?)```\n\n```output\n(.*?)```\n", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == PAGE.read_text().count("```python")
    for program, shown in blocks:
        printed = output_of(network, "-", program=program)
        if rewrite:
            before = f"{program}```\n\n```output\n"
            PAGE.write_text(PAGE.read_text().replace(f"{before}{shown}```\n", f"{before}{printed}```\n"))
        else:
            assert printed == shown


def test_the_example_prints_the_late_flights(network: Cluster):
    printed = output_of(network, str(DOCS / "examples" / "delays.py"))
    assert sorted(printed.splitlines()) == ["AF1 is 31 minutes late", "BA702 is 45 minutes late"]
