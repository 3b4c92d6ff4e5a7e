"""Known bugs by name: what the simulator must be able to find.

A bug is a function that returns a patch of the real code, for as long as a `with` lasts. Its docstring says what is
wrong; the decorator says which scenario finds it, and within how many seeds. The product has no switch for any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

Patch = AbstractContextManager[Any]


@dataclass(frozen=True, slots=True)
class Bug:
    """One mistake somebody could make."""

    name: str
    what: str
    plant: Callable[[], Patch]
    scenario: str
    seeds: int


BUGS: dict[str, Bug] = {}


def bug(scenario: str, seeds: int) -> Callable[[Callable[[], Patch]], Callable[[], Patch]]:
    def enter(plant: Callable[[], Patch]) -> Callable[[], Patch]:
        assert plant.__doc__
        BUGS[plant.__name__] = Bug(plant.__name__, plant.__doc__, plant, scenario, seeds)
        return plant

    return enter
