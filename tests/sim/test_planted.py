"""The simulator finds what it is there for: each known bug, planted into the real code, fails an early seed.

A bug is tried at the seed that found it last (seeds.toml, "planted"). Where the code has changed so much that this
seed no longer finds it, the hunt begins at seed 1, and the test says which seed to write down instead.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.bugs import BUGS
from tests.sim.hunt import hunt
from tests.sim.series import KNOWN

PLANTED: dict[str, int] = KNOWN["planted"]


def test_there_are_enough_of_them():
    assert len(BUGS) >= 20
    assert PLANTED.keys() <= BUGS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, record_property: Callable[[str, object], None]):
    bug = BUGS[name]
    found = hunt(name, [PLANTED[name]] if name in PLANTED else [])
    assert found is not None, f"{name} is not found in {bug.seeds} seeds of {bug.scenario}: {bug.what}"
    print(f"{name}: {found.verdict.name.lower()} at seed {found.seed} of {bug.scenario}, {found.took_s:.1f} s")
    if found.seed != PLANTED.get(name):
        record_property("note", f"tests/sim/seeds.toml, [planted]: {name} = {found.seed}")
