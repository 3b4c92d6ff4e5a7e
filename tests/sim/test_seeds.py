"""Seeds of every scenario: those that failed once, and a window that rotates with the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from overlay.sim.run import Verdict
from overlay.sim.scenario import scenario_names
from tests.sim.series import KNOWN, SERIES, Played, Series, play

CHUNK = 10  # Seeds of one test.

pytestmark = pytest.mark.slow


def played(series: Series, seeds: Sequence[int]) -> list[Played]:
    """Play seeds of which none may fail.

    The oracle refuses a row that is delivered twice or was never published, as it arrives. In the end it finds what
    was acknowledged and due, and never delivered; and counters that do not balance.
    """
    found = []
    for seed in seeds:
        found.append(play(series.name, seed))
        assert found[-1].verdict is Verdict.OK, f"{series.command(seed)}: {found[-1].problem}"
    return found


def windows() -> Iterator[object]:
    """The window of each series, cut into tests; but whole where its mean matters."""
    for series in SERIES.values():
        window = series.window()
        size = len(window) if series.moves_least or series.joins_apart_least or series.refused_least else CHUNK
        for place in range(0, len(window), size or 1):
            yield pytest.param(series, window[place : place + size], id=f"{series.name}, from {place}")


def test_every_scenario_has_its_seeds():
    assert {each.scenario or each.name for each in SERIES.values()} >= set(scenario_names())


@pytest.mark.parametrize("scenario", KNOWN["scenarios"])
def test_what_failed_once_does_not_fail_again(scenario: str):
    played(SERIES[scenario], KNOWN["scenarios"][scenario])


@pytest.mark.parametrize(("series", "seeds"), list(windows()))
def test_nothing_is_lost_repeated_or_invented(
    series: Series, seeds: range, record_property: Callable[[str, object], None]
):
    """Peers crash, come and go, disks fail, the network breaks; and then everything due has come, once and exact."""
    found = played(series, seeds)
    few = len(seeds) / 2  # A window may have bad luck: half of what the soak asks for.
    assert sum(each.moves for each in found) >= series.moves_least * few
    assert sum(each.joins_apart for each in found) >= series.joins_apart_least * few
    assert sum(each.refused for each in found) >= series.refused_least * few
    accepted, delivered = sum(each.accepted for each in found), sum(each.delivered for each in found)
    record_property("played", [series.name, len(seeds), accepted, delivered])
