"""`peer simulate` and `peer replay`: whole networks in virtual time, with every fault we can name, from a seed."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from peerd import __version__
from peerd.errors import Exit, PeerError

if TYPE_CHECKING:
    from overlay.sim.run import Outcome

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRESS_EVERY_S: Final = 5.0


@click.command(
    epilog="Exit codes: 0 every seed is well, 10 a peer broke one of its own rules, 11 something due did not happen in "
    "time, 12 something false was delivered or promised."
)
@click.argument("scenario")
@click.option("--seeds", "count", type=click.IntRange(1), default=1, show_default=True, help="How many seeds to run.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The first of them.")
@click.option("-j", "--jobs", type=click.IntRange(1), help="Processes to run them in [one for each processor].")
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write every step of --seed to a file.")
@click.option("--keep-going", is_flag=True, help="Run the remaining seeds after one has failed.")
@click.pass_context
def simulate(
    ctx: click.Context, scenario: str, count: int, seed: int, jobs: int | None, trace: Path | None, keep_going: bool
) -> None:
    """Simulate a network of peers: clients, crashes, broken disks and networks, then everything heals.

    SCENARIO is a TOML file, or the name of a scenario that comes with peerd. First nothing false may be delivered; once
    everything has healed, all that is due must be.

    \b
        $ peer simulate churn --seeds 1000
        seed=1 commit=1f3c9d2 replay: peer simulate churn --seed 1 --seeds 1000
        1000 seeds: 1000 ok
    """
    from overlay.sim.run import Verdict
    from overlay.sim.tracefile import TraceHead, record

    text = _load(scenario)
    many = f" --seeds {count}" if count > 1 else ""
    click.echo(_line(scenario, seed, many))
    if trace is not None:
        if count > 1:
            raise PeerError("a trace is of one seed", hint="Leave --seeds out.", exit_code=Exit.MISUSE)
        outcomes = iter([record(trace, TraceHead(scenario=text, seed=seed, commit=commit()))])
    else:
        outcomes = _outcomes(text, seed, count, jobs)
    failed: list[Outcome] = []
    tally: Counter[str] = Counter()
    started, shown_at = time.monotonic(), time.monotonic()
    for done, outcome in enumerate(outcomes, start=1):
        tally.update(verdicts=1, events=outcome.events, accepted=outcome.accepted, delivered=outcome.delivered)
        tally["virtual_ms"] += outcome.virtual_ms
        if outcome.verdict is not Verdict.OK:
            failed.append(outcome)
            _show_failure(scenario, outcome)
            if not keep_going:
                break
        if time.monotonic() - shown_at > PROGRESS_EVERY_S:
            shown_at = time.monotonic()
            click.echo(f"{done} of {count} seeds, {len(failed)} failed", err=True)
        if count == 1:
            _show_outcome(outcome)
    _show_tally(tally, failed, time.monotonic() - started)
    click.echo(_line(scenario, failed[0].seed, "") if failed else _line(scenario, seed, many))
    ctx.exit(failed[0].verdict.value if failed else Exit.DONE)


@click.command()
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--peer", "number", type=click.IntRange(0), metavar="N", help="Print the steps of peer N.")
@click.pass_context
def replay(ctx: click.Context, trace: Path, number: int | None) -> None:
    """Run the seed of a trace again and compare every step with it.

    \b
        $ peer simulate churn --seed 8137 --trace churn.trace
        $ peer replay churn.trace --peer 3
        ...
        19532 steps, each as recorded; the run ends with OK
    """
    from overlay.sim.tracefile import TraceError
    from overlay.sim.tracefile import replay as replay_trace

    mark = f" p{number} "

    def show(line: str) -> None:
        if mark in line[:40]:
            click.echo(line)

    try:
        outcome, difference = replay_trace(trace, None if number is None else show)
    except TraceError as error:
        raise PeerError(f'"{trace}" is not a trace', detail=str(error), exit_code=Exit.MISUSE) from error
    if difference is not None:
        detail = f"Recorded: {difference.recorded or 'the end'}\nnow:      {difference.now or 'the end'}"
        hint = "A trace can be replayed with the code that wrote it; its first line names the commit."
        raise PeerError(f"step {difference.number} is not as recorded", detail=detail, hint=hint)
    click.echo(f"{outcome.steps} steps, each as recorded; the run ends with {outcome.verdict.name}")
    if outcome.problem:
        click.echo(outcome.problem)
    ctx.exit(outcome.verdict.value)


@cache
def commit() -> str:
    """Which commit of the repository runs, with a + where files have been changed since; installed: which version."""
    if not (ROOT / ".git").exists():  # Else git would tell of a repository that happens to hold this installation.
        return __version__
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=7", "--match="]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _load(scenario: str) -> str:
    """The text of the scenario that an argument names, once it is sure that it can be read."""
    from overlay.sim.scenario import ScenarioError, parse_scenario, scenario_names, scenario_text

    if scenario.endswith(".toml") and (path := Path(scenario)).is_file():
        text = path.read_text(encoding="utf-8")
    elif scenario in (known := scenario_names()):
        text = scenario_text(scenario)
    else:
        hint = f"Give the path of a TOML file, or one of those that come with peerd: {', '.join(known)}."
        raise PeerError(f'there is no scenario "{scenario}"', hint=hint, exit_code=Exit.NOT_FOUND)
    try:
        parse_scenario(text)
    except ScenarioError as error:
        raise PeerError(f'scenario "{scenario}" cannot be read', detail=str(error), exit_code=Exit.MISUSE) from error
    return text


def _outcomes(text: str, seed: int, count: int, jobs: int | None) -> Iterator[Outcome]:
    from overlay.sim.run import run_many

    return run_many(text, range(seed, seed + count), min(count, jobs or os.cpu_count() or 1))


def _line(scenario: str, seed: int, many: str) -> str:
    return f"seed={seed} commit={commit()} replay: peer simulate {scenario} --seed {seed}{many}"


def _show_failure(scenario: str, outcome: Outcome) -> None:
    click.echo(f"seed {outcome.seed}: {outcome.verdict.name}: {outcome.problem}")
    for line in outcome.last_lines:
        click.echo(f"  {line}", err=True)
    click.echo(f"  {_line(scenario, outcome.seed, '')}", err=True)


def _show_outcome(outcome: Outcome) -> None:
    faults = ", ".join(f"{name} {times}" for name, times in sorted(outcome.faults.items())) or "none"
    click.echo(f"hash {outcome.trace_hash}")
    click.echo(f"{outcome.peers} peers; faults: {faults}")
    # An event is what the agenda performs: a message or a client's word arrives, a timer runs down, a disk is done,
    # somebody looks around. A step is one event in and a list of effects out, of one machine.
    took_s, memory_mib = max(outcome.took_s, 0.001), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    click.echo(
        f"{outcome.events} events, {outcome.steps} steps of machines in {took_s:.1f} s of processor time: "
        f"{outcome.events / took_s / 1000:.0f} k events/s, {outcome.virtual_ms / 1000 / took_s:.1f} x real time, "
        f"{memory_mib:.0f} MiB"
    )


def _show_tally(tally: Counter[str], failed: list[Outcome], took_s: float) -> None:
    verdicts = Counter(outcome.verdict.name.lower() for outcome in failed)
    parts = [f"{tally['verdicts'] - len(failed)} ok", *(f"{times} {name}" for name, times in sorted(verdicts.items()))]
    click.echo(f"{tally['verdicts']} seeds: {', '.join(parts)}")
    click.echo(
        f"{tally['accepted']} publishes accepted, {tally['delivered']} rows delivered, {tally['events']} events, "
        f"{tally['virtual_ms'] / 1000:.0f} s simulated in {took_s:.1f} s"
    )
