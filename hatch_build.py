"""How the wheel is laid out: everything of ours below one name, peerd.

In the repository overlay/, protocols/, queries/ and spark_jobs/ stand beside peerd/. Installed under these names they
would clash with other people's packages. So the wheel has peerd.overlay, peerd.protocols, peerd.queries and
peerd.spark_jobs, and this build hook writes the imports accordingly. An editable install uses the repository as it is.
"""

from __future__ import annotations

import ast
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HOME = "peerd"
GUESTS = ("overlay", "protocols", "queries", "spark_jobs")


class WheelLayout(BuildHookInterface[Any]):
    """Hands hatchling a copy of the packages in which the guests live at home."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._copy = tempfile.TemporaryDirectory(prefix="peerd-wheel-")
        home = Path(self._copy.name) / HOME
        lay_out(Path(self.root), home)
        build_data["force_include"][str(home)] = HOME

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._copy.cleanup()


def lay_out(root: Path, home: Path) -> None:
    """Copy the packages of a repository as the wheel has them."""
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / HOME, home, ignore=unwanted)
    for guest in GUESTS:
        shutil.copytree(root / guest, home / guest, ignore=unwanted)
    for path in home.rglob("*.py"):
        path.write_text(at_home(path.read_text(encoding="utf-8"), path.relative_to(home).as_posix()), encoding="utf-8")


def at_home(text: str, where: str) -> str:
    """The text of a module with its imports of guests written as the wheel has them.

    >>> at_home("from queries.plan import Operator", "x.py")
    'from peerd.queries.plan import Operator'
    """
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text, where)):
        match node:
            case ast.ImportFrom(level=0, module=str(module)) if module.split(".")[0] in GUESTS:
                line = lines[node.lineno - 1]
                begin = len(line.encode()[: node.col_offset].decode())
                lines[node.lineno - 1] = line[:begin] + line[begin:].replace(module, f"{HOME}.{module}", 1)
            case ast.Import(names=names) if any(alias.name.split(".")[0] in GUESTS for alias in names):
                raise SyntaxError(f"{where}:{node.lineno}: write `from package import module`; the wheel renames it")
    return "".join(lines)
