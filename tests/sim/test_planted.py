"""The simulator finds what it is there for: each known bug, planted into the real code, fails an early seed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor

import pytest

from tests.sim.bugs import BUGS
from tests.sim.hunt import Found, hunt

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def hunts() -> Iterator[dict[str, Future[Found | None]]]:
    """All hunts, on two processors."""
    pool = ProcessPoolExecutor(2)
    yield {name: pool.submit(hunt, name) for name in BUGS}
    pool.shutdown(cancel_futures=True)


def test_there_are_enough_of_them():
    assert len(BUGS) >= 20


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, hunts: dict[str, Future[Found | None]], capsys: pytest.CaptureFixture[str]):
    bug, found = BUGS[name], hunts[name].result()
    assert found is not None, f"{name} is not found in {bug.seeds} seeds of {bug.scenario}: {bug.what}"
    with capsys.disabled():
        kind = found.verdict.name.lower()
        print(f"\n{name}: {kind} at seed {found.seed} of {bug.scenario}, {found.took_s:.1f} s", end="")
