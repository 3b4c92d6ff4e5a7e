"""The house rules that no linter knows: import arrows, purity, determinism, and what a file of ours never holds.

A rule looks at one file and yields problems, printed as `file:line: message`. test_tidy.py runs them over the
repository and shows each of them a bad example.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("experiments", "overlay", "peerd", "protocols", "queries", "spark_jobs")
CODE = (*PACKAGES, "tests", "deploy", "hatch_build.py")

# Who may import what of ours, most particular folder first; a folder that is not named here may import anything.
ARROWS: dict[str, tuple[str, ...]] = {
    "queries": (),
    "protocols": ("queries",),
    "overlay/sim": ("overlay", "protocols", "queries"),
    "overlay": ("protocols.ids", "protocols.events", "protocols.effects", "protocols.versions"),
    "spark_jobs": ("queries",),
    "peerd/client": (
        "peerd.control_client",
        "peerd.datadir",
        "peerd.errors",
        "peerd.exchange",
        "peerd.parameters",
        "peerd.rows",
        "protocols",
        "queries",
    ),
    "experiments": ("overlay", "protocols", "queries", "spark_jobs"),
}

# Inside protocols/: which other protocols a protocol may import. The files beside them are for all, but for those that
# know every protocol.
PROTOCOL_ARROWS: dict[str, tuple[str, ...]] = {
    "journal": (),
    "store": (),
    "placement": (),
    "planning": ("placement",),
    "catalogue": ("store",),
    "delivery": ("catalogue", "store"),
    "join_index": ("catalogue", "delivery"),
    "sharing": ("catalogue", "delivery", "join_index"),
    "execution": ("catalogue", "delivery", "join_index", "placement", "sharing", "store"),
    "rights": ("catalogue", "delivery", "execution", "join_index", "sharing", "store"),
}
KNOWS_ALL = ("peer", "wire")

# What runs in the simulator as well as in the daemon: a function of its arguments, the same on every run.
PURE = re.compile(
    r"protocols/|queries/|overlay/(table|lookup|coordinates|keyring|rollover)\.py"
    r"|experiments/cqdht/(?!e\d\.py)"  # e1 to e5 print.
    r"|experiments/streamglobe/(capacity|match|residual|shapes|trees|windows)\.py"  # What peers will run.
)
WORLDLY_MODULES = (
    "asyncio aiohttp concurrent http io multiprocessing os pathlib secrets select selectors shutil signal socket ssl"
    " subprocess sys tempfile threading time urllib uuid uvloop"
).split()
WORLDLY_BUILTINS = {
    "hash": "its answer changes from run to run; use Key.of",
    "id": "its answer changes from run to run",
    "input": "ask the caller for an argument",
    "open": "files belong to the driver",
    "print": "return it, or leave it to the trace",
}
DANGEROUS_MODULES = ("pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle")
DANGEROUS_BUILTINS = ("eval", "exec", "compile", "__import__")

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60

# Written in pieces, or this file would break the rule it states.
REGISTRY_HOSTS = re.compile(
    "|".join((r"pypi\." + "org", "python" + r"hosted\.org", r"npmjs\." + "org", r"pkg\." + "dev", r"docker\." + "io/"))
)
MACHINE_PATHS = re.compile(r"(?<![\w.~$})-])/(?:root|work|Users|home/\w+)/\w")

TEST_MODULES = re.compile(r"\b(?:from|import) tests\.(?:\w+\.)*test_\w+")
LOST_SEEDS = re.compile(r"(?<![\w.])random\.(?:SystemRandom|randrange|seed)\(")


class Problem(NamedTuple):
    """Something at one line of one file that the rules do not allow."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def tracked_files() -> list[Path]:
    """The files of the repository, new ones included; in a copy without git, all but what the tools leave behind."""
    try:
        command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
        return sorted(path for name in listed if name and (path := ROOT / name).is_file())
    except (OSError, subprocess.CalledProcessError):
        kept = (path for path in ROOT.rglob("*") if path.is_file())
        return sorted(path for path in kept if not _left_behind(path.relative_to(ROOT)))


def _left_behind(path: Path) -> bool:
    return any(part in {".git", ".venv", "__pycache__", "dist"} or part.endswith("_cache") for part in path.parts)


def is_python(path: str, text: str) -> bool:
    return path.endswith(".py") or re.match(r"#!.*\bpython", text) is not None


def problems_in(path: str, text: str) -> Iterator[Problem]:
    """Every problem in one file, given by its path from the root."""
    yield from _text_problems(path, text)
    if path.startswith(CODE) and is_python(path, text):
        tree = ast.parse(text, path)
        if not ast.get_docstring(tree):
            yield Problem(path, 1, "has no docstring; its first sentence says what the file is")
        yield from _length_problems(path, text, tree)
        yield from _arrow_problems(path, tree)
        if path.startswith("protocols/"):
            yield from _protocol_arrow_problems(path, tree)
        yield from _dangerous_problems(path, tree)
        if PURE.match(path):
            yield from _purity_problems(path, tree)
            yield from _SetOrder(path).problems_in(tree)


@functools.lru_cache(maxsize=1)
def _walk(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a file; every rule asks for them, and finding them takes longer than the rules."""
    return tuple(ast.walk(tree))


def _text_problems(path: str, text: str) -> Iterator[Problem]:
    for number, line in enumerate(text.splitlines(), start=1):
        if found := REGISTRY_HOSTS.search(line):
            yield Problem(path, number, f"names the package registry {found[0]}; leave the choice to the machine")
        if found := MACHINE_PATHS.search(line):
            yield Problem(path, number, f"holds {found[0]}..., a path of one machine")
        if found := TEST_MODULES.search(line):
            yield Problem(path, number, f"{found[0]}: what tests share stands in a helper module, not in a test")
        if path.startswith("tests/") and (found := LOST_SEEDS.search(line)):
            yield Problem(path, number, f"{found[0]}: nobody can give this seed back; use tests.seeds.draw_seed")
        if path.endswith(".lock") and re.match(r"\s*(-i|-f|--\w*index\S*|--find-links)\b", line):
            yield Problem(path, number, "names a package index; leave the choice to the machine")


def _length_problems(path: str, text: str, tree: ast.AST) -> Iterator[Problem]:
    count = len(text.splitlines())
    lengths = {path: (count, count, FILE_LINES_MAX)}
    for node in _walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            lengths[f"{path}:{node.name}"] = (node.end_lineno, length, FUNCTION_LINES_MAX)
    for name, (line, length, most) in lengths.items():
        if length > most:
            yield Problem(path, line, f"{name.rpartition(':')[2]} has {length} lines; {most} are enough: find its seam")


def _imports(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything imported; `from a import b` counts as a.b."""
    package = path.removesuffix(".py").split("/")[:-1]
    for node in _walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                near = package[: len(package) - level + 1] if level else []
                base = ".".join([*near, *([module] if module else [])])
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in names)


def _arrow_problems(path: str, tree: ast.AST) -> Iterator[Problem]:
    folder = next((folder for folder in ARROWS if path.startswith(folder + "/")), None)
    if folder is None:
        return
    allowed = (folder.replace("/", "."), *ARROWS[folder])
    for line, name in _imports(path, tree):
        if name.split(".")[0] in PACKAGES and not any(f"{name}.".startswith(f"{prefix}.") for prefix in allowed):
            only = ", ".join(ARROWS[folder]) or "nothing"
            yield Problem(path, line, f"imports {name}; of ours, {folder} may import {only}")


def _protocol_arrow_problems(path: str, tree: ast.AST) -> Iterator[Problem]:
    _, protocol, *inside = path.split("/")
    if not inside or protocol not in PROTOCOL_ARROWS:
        return
    closed = {*PROTOCOL_ARROWS, *KNOWS_ALL} - {protocol, *PROTOCOL_ARROWS[protocol]}
    for line, name in _imports(path, tree):
        if name.startswith("protocols.") and name.split(".")[1] in closed:
            only = ", ".join(PROTOCOL_ARROWS[protocol]) or "none of them"
            yield Problem(path, line, f"imports {name}; of other protocols, {protocol} may import {only}")


def _dangerous_problems(path: str, tree: ast.AST) -> Iterator[Problem]:
    for line, name in _imports(path, tree):
        if name.split(".")[0] in DANGEROUS_MODULES:
            yield Problem(path, line, f"imports {name}; what it reads can run code, so use msgspec")
    for call in _calls(tree):
        if isinstance(call.func, ast.Name) and call.func.id in DANGEROUS_BUILTINS:
            yield Problem(path, call.lineno, f"calls {call.func.id}(); text never becomes code here")


def _purity_problems(path: str, tree: ast.AST) -> Iterator[Problem]:
    for line, name in _imports(path, tree):
        module, _, rest = name.partition(".")
        if module in WORLDLY_MODULES:
            yield Problem(
                path, line, f"imports {name}; a pure module takes what it needs as arguments and returns effects"
            )
        elif module == "random" and rest not in {"", "Random"}:
            yield Problem(path, line, f"imports {name}; take a random.Random as an argument")
    aliases = {
        alias.asname or alias.name: alias.name
        for node in _walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    for node in _walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if aliases.get(name) == "random":
                if attribute != "Random":
                    yield Problem(path, node.lineno, f"uses random.{attribute}; take a random.Random as an argument")
            case ast.Call(func=ast.Attribute(attr="Random") | ast.Name(id="Random"), args=[], keywords=[]):
                yield Problem(path, node.lineno, "makes a random.Random without a seed; take one as an argument")
            case ast.Call(func=ast.Attribute(attr="now" | "utcnow" | "today", value=value)) if _is_date(value):
                yield Problem(path, node.lineno, "reads the clock; take now as an argument")
            case ast.Call(func=ast.Name(id=name)) if name in WORLDLY_BUILTINS:
                yield Problem(path, node.lineno, f"calls {name}(); {WORLDLY_BUILTINS[name]}")


def _is_date(node: ast.expr) -> bool:
    return ast.unparse(node).split(".")[-1] in {"date", "datetime"}


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in _walk(tree) if isinstance(node, ast.Call))


@dataclass(slots=True)
class _SetOrder:
    """Finds places where the order of a set, which follows PYTHONHASHSEED, could reach the outside.

    It knows sets by sight (literals, set(), set operators on them) and by name: variables of the same function and
    attributes of the same module that are annotated as sets or assigned one.
    """

    path: str
    attributes: set[str] = field(default_factory=set)

    def problems_in(self, tree: ast.Module) -> Iterator[Problem]:
        self.attributes = {target.attr for target in self._targets(tree, set()) if isinstance(target, ast.Attribute)}
        for scope in _walk(tree):
            if isinstance(scope, ast.ClassDef):
                self.attributes |= self._names(scope.body)
        yield from self._in_scope(tree, set())

    def _in_scope(self, scope: ast.AST, outer: set[str]) -> Iterator[Problem]:
        names = outer | self._names(_own_nodes(scope))
        for node in _own_nodes(scope):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
                yield from self._in_scope(node, names)
            for iterated in _iterated(node):
                if self._is_set(iterated, names):
                    message = f"iterates the set {ast.unparse(iterated)}; use a dict, or sort it"
                    yield Problem(self.path, iterated.lineno, message)

    def _names(self, nodes: Iterable[ast.AST]) -> set[str]:
        names: set[str] = set()
        for node in nodes:
            names |= {target.id for target in self._targets(node, names) if isinstance(target, ast.Name)}
        return names

    def _targets(self, root: ast.AST, names: set[str]) -> Iterator[ast.expr]:
        """What is annotated as a set or assigned one in a statement, or anywhere below a module."""
        for node in _walk(root) if isinstance(root, ast.Module) else [root]:
            match node:
                case ast.AnnAssign(target=target, annotation=annotation) if _says_set(annotation):
                    yield target
                case ast.Assign(targets=targets, value=value) if self._is_set(value, names):
                    yield from targets
                case ast.arg(arg=name, annotation=annotation) if annotation is not None and _says_set(annotation):
                    yield ast.Name(id=name)

    def _is_set(self, node: ast.expr, names: set[str]) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Call(func=ast.Name(id="set" | "frozenset")):
                return True
            case ast.Call(func=ast.Attribute(attr="union" | "intersection" | "difference", value=value)):
                return self._is_set(value, names)
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
                return self._is_set(left, names) or self._is_set(right, names)
            case ast.Name(id=name):
                return name in names
            case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
                return attribute in self.attributes
        return False


def _says_set(annotation: ast.expr) -> bool:
    return re.match(r"(set|frozenset|AbstractSet)\b", ast.unparse(annotation).removeprefix("typing.")) is not None


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """What lies in a scope, in order; the scopes inside it are named, not entered."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _own_nodes(child)


def _iterated(node: ast.AST) -> Iterator[ast.expr]:
    """What is taken in order at this node: by a loop, a comprehension, a list or tuple, an unpacking, or pop()."""
    match node:
        case ast.For(iter=iterated) | ast.AsyncFor(iter=iterated):
            yield iterated
        case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
            yield from (generator.iter for generator in node.generators)
        case ast.Call(
            func=ast.Name(id="list" | "tuple" | "iter" | "enumerate" | "zip" | "map" | "dict"), args=arguments
        ):
            yield from arguments
        case ast.Call(func=ast.Attribute(attr="join" | "extend"), args=arguments):
            yield from arguments
        case ast.Call(func=ast.Attribute(attr="pop", value=value), args=[]):
            yield value
        case ast.Starred(value=value):
            yield value
