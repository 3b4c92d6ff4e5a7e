"""`peer simulate` and `peer replay` as people call them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from peerd.cli.simulate import replay, simulate
from peerd.errors import Exit, PeerError

QUIET = (
    "peers = 4\nfor_s = 3\nfaults = []\nworkload = { name = 'streams', streams = 1, publishers = 1, subscribers = 1 }\n"
)
BROKEN = QUIET.replace("faults = []", "heal_s = 0\nfaults = [{ name = 'crash', share = 1.0, at_s = 0.5, for_s = 60 }]")


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "quiet.toml"
    path.write_text(QUIET)
    return path


def test_a_run_begins_and_ends_with_the_line_that_repeats_it(scenario: Path):
    result = CliRunner().invoke(simulate, [str(scenario), "--seed", "5", "--seeds", "2", "-j", "1"])
    assert result.exit_code == Exit.DONE, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == lines[-1]
    assert lines[0].startswith("seed=5 commit=")
    assert lines[0].endswith(f"replay: peer simulate {scenario} --seed 5 --seeds 2")
    assert "2 seeds: 2 ok" in lines


def test_a_failure_has_its_own_exit_code_and_names_its_seed(tmp_path: Path):
    path = tmp_path / "broken.toml"
    path.write_text(BROKEN)
    result = CliRunner().invoke(simulate, [str(path), "--seed", "3", "-j", "1"])
    assert result.exit_code == 11, result.output
    assert "seed 3: LIVENESS" in result.stdout
    assert result.stdout.splitlines()[-1].endswith(f"peer simulate {path} --seed 3")


def test_a_trace_is_written_and_replayed(scenario: Path, tmp_path: Path):
    trace = tmp_path / "quiet.trace"
    assert CliRunner().invoke(simulate, [str(scenario), "--trace", str(trace)]).exit_code == Exit.DONE
    result = CliRunner().invoke(replay, [str(trace), "--peer", "2"])
    assert result.exit_code == Exit.DONE, result.output
    assert " p2 Started()" in result.stdout
    assert "each as recorded" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "code", "error"),
    [(None, Exit.NOT_FOUND, "there is no scenario"), ("peers = 0x", Exit.MISUSE, "cannot be read")],
)
def test_a_scenario_that_is_not_there_or_not_one(tmp_path: Path, text: str | None, code: Exit, error: str):
    path = tmp_path / "odd.toml"
    if text is not None:
        path.write_text(text)
    result = CliRunner().invoke(simulate, [str(path)])
    assert isinstance(result.exception, PeerError)
    assert result.exception.exit_code == code
    assert error in result.exception.error
