"""Settings that all tests share: Hypothesis without stopwatch, and the marker of everything under tests/system."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SYSTEM = Path(__file__).parent / "system"

# A busy machine makes an example slow, not wrong; a failure prints the line that repeats it.
settings.register_profile("peerd", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("peerd")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SYSTEM in item.path.parents:
            item.add_marker(pytest.mark.system)


def pytest_collection_finish() -> None:
    """Many tests look for what was left behind: they need not look through all that was imported."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write golden files anew; read the difference")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))
