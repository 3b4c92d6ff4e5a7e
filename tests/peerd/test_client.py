"""What a program that uses the Python client does not load."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import peerd.client
print(*sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)))
print(*(name in sys.modules for name in ("peerd.service", "peerd.driver", "peerd.gateway", "peerd.cli")))
"""


def test_the_client_loads_neither_daemon_nor_overlay_nor_spark():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    packages, parts = done.stdout.splitlines()
    loaded = set(packages.split()) - {"__main__", "typing_extensions"}
    assert {name for name in loaded if not name.startswith("_")} <= {"msgspec", "peerd", "protocols", "queries"}
    assert parts == "False False False False"
