"""Which Java runs Spark: found by reading files, so that an idle daemon can look for it as often as it likes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

JAVA_MIN: Final = 17
USUAL_FOLDERS: Final = ("/usr/lib/jvm", "/usr/java", "/opt/java", "/opt/jdk", "/Library/Java/JavaVirtualMachines")
OWN_JAVA: Final = Path(sys.prefix) / "java"  # Where deploy/java-home puts one if the machine has none.
RELEASE: Final = "release"  # The file in the home of a Java that tells its version.
_ASK_S: Final = 30.0


class NoJava(Exception):
    """There is no Java that Spark can use; says why."""


def find_java(home: str) -> tuple[Path, str]:
    """The home and version of a Java that is new enough; raises NoJava."""
    found = ""
    for each in _java_homes(home):
        version = java_version(each)
        if version and int(version.split(".")[0]) >= JAVA_MIN:
            return each, version
        found = found or (f'Java {version} at "{each}" is too old' if version else "")
    raise NoJava(f"{found or 'no Java was found'}: Spark needs {JAVA_MIN} or newer; set JAVA_HOME to its home")


def _java_homes(home: str) -> Iterator[Path]:
    if home:
        yield Path(home)
        return
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    if on_path := shutil.which("java"):
        yield _home_of(Path(on_path))
    for folder in map(Path, USUAL_FOLDERS):
        yield folder
        yield from sorted(folder.glob("*"), reverse=True)
        yield from sorted(folder.glob("*/Contents/Home"), reverse=True)
    yield OWN_JAVA


def _home_of(program: Path) -> Path:
    """The home of a Java on PATH. It may be a wrapper far from its home, but it knows where that is."""
    likely = program.resolve().parent.parent
    if (likely / RELEASE).is_file():
        return likely
    told = re.search(r"java\.home = (.+)", _ask(program, "-XshowSettings:properties", "-version"))
    return Path(told[1]) if told else likely


def java_version(home: Path) -> str:
    """The version of this Java; empty if there is none that could run."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return ""
    try:
        version = re.search(r'^JAVA_VERSION="([0-9.]+)', (home / RELEASE).read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        version = None
    version = version or re.search(r'version "([0-9.]+)', _ask(program, "-version"))
    return version[1] if version else ""


def _ask(program: Path, *words: str) -> str:
    """What a Java without a release file says of itself. It is asked once, unless it changes."""
    try:
        return _said(program, words, program.stat().st_mtime_ns)
    except OSError:
        return ""


@lru_cache(maxsize=64)
def _said(program: Path, words: tuple[str, ...], _changed_at: int) -> str:
    try:
        return subprocess.run([program, *words], check=True, capture_output=True, text=True, timeout=_ASK_S).stderr
    except (OSError, subprocess.SubprocessError):
        return ""
