"""The jar in the package is what the Java files beside it build."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.session import BRIDGE

pytest.importorskip("pyspark")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("javac") is None, reason="there is no Java compiler here")
def test_the_jar_is_what_its_sources_build(tmp_path: Path) -> None:
    version = subprocess.run(["javac", "-version"], check=True, capture_output=True, text=True).stdout
    if not version.startswith("javac 17."):
        pytest.skip(f"the jar was built by Java 17, here is {version.strip()}: another compiler writes other bytes")
    subprocess.run([sys.executable, BRIDGE.with_name("build"), tmp_path / "bridge.jar"], check=True)
    assert (tmp_path / "bridge.jar").read_bytes() == BRIDGE.read_bytes()
