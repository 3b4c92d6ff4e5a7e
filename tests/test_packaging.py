"""What is shipped fits together: the locks, the version, the wheel, and the script that finds Java."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import peerd
from tests.tidy import PACKAGES

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = sorted(ROOT.glob("requirements*.lock"))


def locked(name: str) -> dict[str, str]:
    """Package and version of each line of a lock file."""
    text = (ROOT / name).read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", text, flags=re.MULTILINE))


def names(requirements: list[str | dict[str, str]]) -> set[str]:
    return {re.split(r"[<>=!~ ;]", each)[0] for each in requirements if isinstance(each, str)}


def test_what_the_project_needs_is_locked():
    groups = PROJECT["dependency-groups"]
    assert names(PROJECT["project"]["dependencies"]) <= locked("requirements.lock").keys()
    assert names(groups["dev"]) <= locked("requirements-dev.lock").keys()
    assert names(groups["build"]) <= locked("requirements-build.lock").keys()
    assert names(groups["java"]) == locked("requirements-java.lock").keys()
    assert names(groups["bench"]) <= locked("requirements-bench.lock").keys()


def test_what_the_project_needs_is_used():
    code = "".join(path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    imported = {name.replace("_", "-") for name in re.findall(r"^\s*(?:import|from) (\w+)", code, flags=re.MULTILINE)}
    assert names(PROJECT["project"]["dependencies"]) <= imported


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-build.lock"])
def test_tests_run_with_the_versions_that_are_shipped(name: str):
    assert locked(name).items() <= locked("requirements-dev.lock").items()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_locked_package_has_hashes(lock: Path):
    for package in re.split(r"\n(?=\S)", lock.read_text()):
        assert package.startswith("#") or "--hash=sha256:" in package, package


def test_the_installed_version_is_the_one_in_the_code():
    assert metadata.version("peerd") == peerd.__version__


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel in it, beside packages of strangers that have the names of our folders."""
    wheels, folder = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    assert {path.name for path in folder.iterdir()} == {"bin", "peerd", f"peerd-{peerd.__version__}.dist-info"}
    for name in set(PACKAGES) - {"peerd"}:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('a stranger wrote this package')\n")
    return folder


def from_wheel(installed: Path, *command: str) -> str:
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, env=environ, cwd=installed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_command_of_the_wheel_works_beside_packages_of_strangers(installed: Path, tmp_path: Path):
    peer = str(installed / "bin" / "peer")
    assert from_wheel(installed, peer, "--help").startswith("Usage: peer ")
    explain = ["explain", "--stream", "flights: num int, delay float"]
    assert "Select f.delay > 30" in from_wheel(installed, peer, *explain, "SELECT num FROM flights f WHERE delay > 30")
    wxquery = '<r>{ for $p in stream("photons")/photons/photon return $p }</r>'  # Its grammar is a file of the package.
    assert "Source photons" in from_wheel(installed, peer, "explain", "--stream", "photons: en float", wxquery)
    scenario = tmp_path / "tiny.toml"
    scenario.write_text(
        "peers = 3\nfor_s = 2\nfaults = []\n"
        "workload = { name = 'streams', streams = 1, publishers = 1, subscribers = 1 }\n"
    )
    said = from_wheel(installed, peer, "simulate", str(scenario), "-j", "1")
    assert "1 seeds: 1 ok" in said
    assert f"commit={peerd.__version__} " in said, "there is no commit to name"
    ours = subprocess.run(
        [sys.executable, "-m", "peerd.cli", "simulate", str(scenario), "-j", "1"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    hashes = [re.findall(r"^hash \w+$", each, flags=re.MULTILINE) for each in (said, ours.stdout)]
    assert hashes[0] == hashes[1] != [], "the code does the same under another name"


@pytest.mark.slow
def test_every_module_of_the_wheel_finds_what_it_imports(installed: Path):
    """And so do scenarios and Spark's worker, which are found by name."""
    script = """
import importlib, importlib.util, pkgutil, peerd
from peerd.overlay.sim.scenario import scenario_names
from peerd.spark_jobs import engine, room, session
found = [each.name for each in pkgutil.walk_packages(peerd.__path__, "peerd.") if not each.name.endswith("__main__")]
for name in found:
    importlib.import_module(name)
print(len(found), "churn" in scenario_names(), room.WORKER, session.BRIDGE.is_file(), engine.ROOT)
"""
    count, *rest = from_wheel(installed, sys.executable, "-c", script).split()
    assert int(count) > 200
    assert rest == ["True", "peerd.spark_jobs.worker", "True", str(installed)]


def test_an_import_that_the_wheel_cannot_rename_stops_the_build():
    layout = runpy.run_path(str(ROOT / "hatch_build.py"))
    assert layout["at_home"]("if x:\n    from queries import sql as s\n", "a.py") == (
        "if x:\n    from peerd.queries import sql as s\n"
    )
    for kept in (
        "from queries2 import x\n",
        "from . import queries\n",
        "from peerd.queries import x\n",
        "import peerd\n",
    ):
        assert layout["at_home"](kept, "a.py") == kept
    with pytest.raises(SyntaxError, match=r"a\.py:2: write `from package import module`"):
        layout["at_home"]("x = 1\nimport queries.plan\n", "a.py")


def fake_java(home: Path, version: str) -> Path:
    """A java that tells its version and repeats its arguments, one a line."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"""#!/bin/sh\n[ "$1" = -version ] && echo 'openjdk version "{version}"' >&2\nprintf '%s\\n' "$@"\n"""
    )
    java.chmod(0o755)
    return home


def java_home(**environ: str) -> str:
    command = [sys.executable, ROOT / "deploy" / "java-home"]
    done = subprocess.run(command, env={**os.environ, **environ}, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_java_of_the_user_is_taken_if_it_is_new_enough(tmp_path: Path):
    home = fake_java(tmp_path / "jdk-17", "17.0.15")
    assert java_home(JAVA_HOME=str(home)) == str(home)


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.2"])
def test_an_old_java_of_the_user_is_passed_over(tmp_path: Path, version: str):
    newer = fake_java(tmp_path / "jdk-21", "21.0.8")
    on_path = newer / "bin" / "java"
    on_path.write_text(on_path.read_text() + f"""echo "    java.home = {newer}" >&2\n""")
    old = fake_java(tmp_path / "jdk-old", version)
    assert java_home(JAVA_HOME=str(old), PATH=f"{newer}/bin:{os.environ['PATH']}") == str(newer)


def test_our_java_drops_the_one_module_it_lacks_and_nothing_else(tmp_path: Path):
    script = (ROOT / "deploy" / "java-home").read_text()
    shim = re.search(r'SHIM = """\\\n(.*?)"""', script, flags=re.DOTALL)
    assert shim
    java = tmp_path / "java"
    java.write_text(shim[1].format(java=fake_java(tmp_path / "jdk", "21.0.8") / "bin" / "java"))
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dname=a b", "Main", ""]
    answer = subprocess.run(["sh", java, *arguments], check=True, capture_output=True, text=True)
    assert answer.stdout.split("\n")[:-1] == ["-Xmx1g", "-Dname=a b", "Main", ""]
