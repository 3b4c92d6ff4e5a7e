"""What is shipped fits together: the locks, the version, the licence, and the script that finds Java."""

from __future__ import annotations

import os
import re
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
