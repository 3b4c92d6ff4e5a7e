"""Sweeps of experiments on Spark, in a process of their own: they end the Spark that they find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from spark_jobs.java import NoJava, find_java
from tests.experiments.cells import CELLS, product
from tests.tidy import ROOT

PROGRAM = """
import json, sys
from pathlib import Path
from experiments import sweep
from tests.experiments.cells import CELLS, chosen, product
print(json.dumps(sweep.run("products", product, CELLS, chosen(Path(sys.argv[1]), "local[2]"))))
"""


@pytest.mark.system
def test_spark_finds_the_same(tmp_path: Path) -> None:
    try:
        find_java("")
    except NoJava as error:
        pytest.skip(str(error))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [product(**cell) for cell in CELLS]
