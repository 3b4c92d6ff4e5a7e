"""The repository keeps the house rules of tidy.py, and each rule catches what it is there for."""

from __future__ import annotations

import pytest

from tests.tidy import ROOT, problems_in, tracked_files

DOC = '"""A module."""\n'


def test_the_repository_is_tidy():
    problems = []
    for path in tracked_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:  # An image or another binary file has no rules to keep.
            continue
        problems += problems_in(path.relative_to(ROOT).as_posix(), text)
    assert not problems, "\n" + "\n".join(map(str, problems))


@pytest.mark.parametrize(
    ("path", "code", "expected"),
    [
        # Arrows.
        ("queries/plan.py", "import protocols.ids", "imports protocols.ids; of ours, queries may import nothing"),
        (
            "protocols/peer.py",
            "from overlay import link",
            "imports overlay.link; of ours, protocols may import queries",
        ),
        ("protocols/eddy/policy.py", "from ...overlay.dht import Dht", "imports overlay.dht.Dht; of ours,"),
        (
            "overlay/dht.py",
            "from protocols.wire import pack",
            "imports protocols.wire.pack; of ours, overlay may import",
        ),
        ("overlay/dht.py", "def f():\n    import peerd", "imports peerd; of ours, overlay may import"),
        ("overlay/sim/world.py", "import peerd", "imports peerd; of ours, overlay/sim may import overlay, protocols"),
        (
            "peerd/client/client.py",
            "from peerd.driver import Driver",
            "imports peerd.driver.Driver; of ours, peerd/client",
        ),
        ("peerd/client/session.py", "import overlay.dht", "imports overlay.dht; of ours, peerd/client may import"),
        ("spark_jobs/runner.py", "from protocols import ids", "imports protocols.ids; of ours, spark_jobs may"),
        ("experiments/fig1.py", "from peerd.cluster import up", "imports peerd.cluster.up; of ours, experiments may"),
        (
            "protocols/join_index/reader.py",
            "from protocols.execution.cut import Cut",
            "imports protocols.execution.cut.Cut; of other protocols, join_index may import catalogue, delivery",
        ),
        ("protocols/store/table.py", "from protocols import wire", "imports protocols.wire; of other protocols, store"),
        # Tests.
        ("tests/sim/x.py", "from tests.sim." + "test_world import churn", "what tests share stands in a helper module"),
        ("tests/sim/x.py", "code = 'import tests." + "test_tidy'", "what tests share stands in a helper module"),
        ("tests/sim/x.py", "seed = random." + "randrange(1 << 32)", "use tests.seeds.draw_seed"),
        ("tests/sim/x.py", "rng = random." + "SystemRandom()", "use tests.seeds.draw_seed"),
        # Lengths.
        ("tests/sim/x.py", "x = 1\n" * 600, "tests/sim/x.py has 601 lines; 600 are enough"),
        ("peerd/x.py", "def f():\n" + "    x = 1\n" * 60, "f has 61 lines; 60 are enough"),
        # The world outside a pure module.
        ("protocols/eddy/policy.py", "from random import randint", "imports random.randint; take a random.Random as"),
        ("protocols/eddy/policy.py", "import random as r\nr.choice([1])", "uses random.choice; take a random.Random"),
        ("protocols/peer.py", "import random\nrng = random.Random()", "makes a random.Random without a seed"),
        ("protocols/peer.py", "import time", "imports time; a pure module"),
        ("experiments/cqdht/rewriter.py", "import time", "imports time; a pure module"),
        ("protocols/peer.py", "from os import path", "imports os.path; a pure module"),
        ("protocols/peer.py", "import asyncio", "imports asyncio; a pure module"),
        ("overlay/table.py", "import socket", "imports socket; a pure module"),
        ("protocols/peer.py", "import datetime\ndatetime.datetime.now()", "reads the clock; take now as an argument"),
        ("queries/sql.py", "text = open('q.sql').read()", "calls open(); files belong to the driver"),
        ("protocols/peer.py", "key = hash('R.b')", "calls hash(); its answer changes from run to run"),
        # The order of sets.
        ("protocols/peer.py", "for x in {1, 2}: x", "iterates the set {1, 2}; use a dict, or sort it"),
        ("protocols/peer.py", "a = [x for x in set(range(9))]", "iterates the set set(range(9)); use a dict"),
        ("protocols/peer.py", "def f(a, b):\n    c = set(a) | b\n    return list(c)", "iterates the set c; use a dict"),
        ("protocols/peer.py", "def f(seen: set[int]):\n    yield from (x for x in seen)", "iterates the set seen"),
        ("protocols/peer.py", "def f(seen: set[int]):\n    return seen.pop()", "iterates the set seen"),
        (
            "protocols/peer.py",
            "class A:\n    seen: set[int]\n    def f(self):\n        for x in self.seen: x",
            "iterates the set self.seen; use a dict",
        ),
        # Text that would become code.
        ("peerd/config.py", "eval('1')", "calls eval(); text never becomes code here"),
        ("tests/test_x.py", "import pickle", "imports pickle; what it reads can run code"),
        ("experiments/x.py", "from marshal import loads", "imports marshal.loads; what it reads can run code"),
        # What no file holds.
        ("peerd/config.py", f"URL = 'https://pypi.{'org'}/simple'", "names the package registry pypi."),
        ("peerd/config.py", f"DATA = '/{'root'}/data'", "a path of one machine"),
        ("requirements.lock", "--index-url somewhere", "names a package index"),
    ],
)
def test_a_bad_example_is_found_at_its_line(path: str, code: str, expected: str):
    """The examples put the culprit on their last line."""
    text = code if path.endswith(".lock") else DOC + code
    found = list(problems_in(path, text))
    assert [problem.line for problem in found] == [len(text.splitlines())], found
    assert str(found[0]).startswith(f"{path}:{found[0].line}: ")
    assert expected in str(found[0])


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("overlay/dht.py", "from protocols.ids import Key\nfrom protocols import events\nimport time, socket"),
        ("overlay/dht.py", "for x in {1, 2}: x"),
        ("overlay/sim/world.py", "from protocols.peer import Peer"),
        ("peerd/driver.py", "import overlay.dht, protocols.peer, asyncio"),
        ("protocols/peer.py", "import random\ndef f(rng: random.Random): return rng.choice([1])"),
        ("protocols/peer.py", "import random\nrng = random.Random(7)"),
        ("protocols/peer.py", "for x in sorted({1, 2}): x\nok = 1 in {1, 2}\nn = len(set([1]))"),
        ("protocols/peer.py", "def f():\n    a = set()\n    a.add(1)\ndef g(a: list[int]):\n    return list(a)"),
        ("protocols/peer.py", "import datetime\ndef f(s): return datetime.datetime.fromisoformat(s)"),
        ("docs/guide.md", "The peer listens on ~/.local/share/peerd and /network/token."),
    ],
)
def test_a_good_example_passes(path: str, code: str):
    assert list(problems_in(path, DOC + code)) == []


def test_a_module_without_a_docstring_is_found():
    assert [str(problem) for problem in problems_in("peerd/x.py", "import os\n")] == [
        "peerd/x.py:1: has no docstring; its first sentence says what the file is"
    ]
