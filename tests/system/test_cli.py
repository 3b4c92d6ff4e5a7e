"""The command line with real daemons: networks that come up, lose peers, let peers leave and join, and stop."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from overlay.identity import JoinToken, Network
from peerd.cluster import free_ports
from peerd.datadir import DataDir
from peerd.errors import Exit
from peerd.process import stop_daemons
from tests.system.ports import PORTS

DEADLINE_S = 60.0  # A busy machine makes a test slow, not wrong.


class Machine:
    """A place with data directories, where commands are typed and whatever was started is stopped in the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes: list[subprocess.Popen[str]] = []
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("PEER_")}

    def data(self, name: str = "data") -> DataDir:
        return DataDir(self.path / name)

    def start(self, *arguments: str, name: str = "data", module: str = "cli", **environ: str) -> subprocess.Popen[str]:
        """Start `peer` or `peerd` and leave it running."""
        process = subprocess.Popen(
            [sys.executable, "-m", f"peerd.{module}", *arguments],
            env={**self.environ, "PEER_DATA_DIR": str(self.path / name), **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def run(
        self, *arguments: str, name: str = "data", code: int = 0, typed: str = ""
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "peerd.cli", *arguments],
            env={**self.environ, "PEER_DATA_DIR": str(self.path / name)},
            input=typed,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert "Traceback" not in done.stderr
        assert done.returncode == code, done.stderr
        return done

    def rows(self, *arguments: str, name: str = "data") -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*arguments, name=name).stdout.splitlines()]

    def statuses(self, *arguments: str, name: str = "data") -> dict[str, str]:
        """The members as one peer lists them: address -> status."""
        return {row["address"]: row["status"] for row in self.rows("members", *arguments, name=name)}

    def state(self, name: str) -> str | None:
        done = subprocess.run(
            [sys.executable, "-m", "peerd.cli", "status"],
            env={**self.environ, "PEER_DATA_DIR": str(self.path / name)},
            capture_output=True,
            text=True,
            check=False,
        )
        return json.loads(done.stdout)["state"] if done.returncode == 0 else None

    def close(self) -> None:
        held = [directory.parent for directory in self.path.rglob("lock")]
        stop_daemons([DataDir(path) for path in held if DataDir(path).is_held()])
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Three embedded peers for the tests that only look."""
    machine = Machine(tmp_path_factory.mktemp("network"))
    machine.run("up", "--peers", "3", "-d", "--port", str(next(PORTS)))
    yield machine
    machine.close()


def port() -> int:
    return free_ports(1, next(PORTS))[0]


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    deadline_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_at, f"{what}: not within {DEADLINE_S:g} s"
        time.sleep(0.05)


def http_get(address: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=DEADLINE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


# Looking at a network.


def test_two_peers_list_the_same_members(network: Machine):
    first, second = (network.rows("members", "-p", number) for number in ("1", "2"))
    assert len(first) == 3
    assert [row["peer_id"] for row in first] == [row["peer_id"] for row in second]
    assert {row["status"] for row in first + second} == {"alive"}
    assert [row["peer_id"] for row in first if row["is_self"]] != [row["peer_id"] for row in second if row["is_self"]]


def test_the_formats_agree_with_each_other(network: Machine):
    peers = [row["peer_id"] for row in network.rows("members", "--local")]
    assert [row["peer_id"] for row in json.loads(network.run("members", "-o", "json").stdout)] == peers
    header, *lines = network.run("members", "-o", "csv").stdout.splitlines()
    measured, unshared = "rtt_ms,sent_bytes,since_at,is_self", "not_shared,means,advice"
    assert header == f"peer_id,status,address,version,has_engine,{measured},{unshared}"
    assert [line.split(",")[0] for line in lines] == peers
    title, *lines = network.run("members", "-o", "table").stdout.splitlines()
    assert title.split() == ["peer", "status", "address", "version", "spark", "round", "trip", "since"]
    assert [line[:8] for line in lines] == [peer[:8] for peer in peers]
    assert sum("(this peer)" in line for line in lines) == 1


def test_round_trips_are_measured_to_all_to_one_and_told_between_two(network: Machine):
    everyone = network.rows("rtt", "-n", "2")
    assert len(everyone) == 2
    assert all((row["sent"], row["lost"], row["kind"]) == (2, 0, "measured") for row in everyone)
    one, two = (row["peer_id"] for row in everyone)
    assert [row["peer_id"] for row in network.rows("rtt", one[:10])] == [one]
    (between,) = network.rows("rtt", one, two)
    assert (between["from_id"], between["peer_id"], between["sent"]) == (one, two, 0)
    assert between["kind"] in ("estimated", "unknown")


def test_a_peer_that_is_not_there_is_exit_code_4(network: Machine):
    peers = [row["peer_id"] for row in network.rows("members")]
    missing = next(
        digits for number in range(4096) if not any(peer.startswith(digits := f"{number:03x}") for peer in peers)
    )
    for command in ("rtt", "force-leave"):
        assert f'starts with "{missing}"' in network.run(command, missing, code=Exit.NOT_FOUND).stderr
    assert "not the beginning of a peer id" in network.run("rtt", "xyz", code=Exit.MISUSE).stderr


def test_a_live_peer_cannot_be_forced_to_leave(network: Machine):
    other = next(row["peer_id"] for row in network.rows("members") if not row["is_self"])
    done = network.run("force-leave", other[:12], code=Exit.FAILED)
    assert f"peer {other[:8]} is alive" in done.stderr
    assert set(network.statuses().values()) == {"alive"}


def test_health_and_metrics_are_served_over_http(network: Machine):
    (status,) = network.rows("status")
    code, body = http_get(status["http"], "/healthz")
    assert (code, json.loads(body)["state"]) == (200, "running")
    code, body = http_get(status["http"], "/metrics")
    assert code == 200
    assert 'peerd_members{status="alive"} 3.0' in body
    assert "peerd_datagrams_in_total " in body
    assert "process_resident_memory_bytes " in body
    assert f"peerd_journal_kept_bytes {float(status['journal_kept_bytes'])}" in body


def test_status_tells_what_the_journal_takes_of_the_disk(network: Machine):
    (status,) = network.rows("status")
    assert status["journal_bytes"] >= status["journal_kept_bytes"] >= 0
    assert " MB on disk, " in network.run("status", "-o", "table").stdout


def test_doctor_is_content_with_a_running_peer(network: Machine):
    findings = {row["check"]: row["status"] for row in network.rows("doctor", "-p", "2")}
    assert {findings[check] for check in ("daemon", "port", "network", "seed")} == {"ok"}


def test_a_second_network_in_the_same_directory_is_refused(network: Machine):
    assert "3 embedded peers already run here" in network.run("up", "--peers", "2", code=Exit.FAILED).stderr
    pid = network.data().embedded(1).pid()
    assert f"in use by process {pid}" in network.run("up", "-p", "1", code=Exit.FAILED).stderr


def test_the_control_socket_is_for_its_owner_alone_and_logs_hide_the_token(network: Machine):
    data = network.data().embedded(1)
    assert data.socket_path.stat().st_mode & 0o777 == 0o600
    token = network.run("token").stdout.strip()
    assert len(JoinToken.parse(token).seeds) == 3
    assert "peer1-" not in data.log_file.read_text()


# Peers that come and go.


def test_a_killed_peer_is_dead_and_one_that_leaves_has_left(machine: Machine):
    machine.run("up", "--peers", "3", "-d", "--port", str(next(PORTS)))
    victim = machine.data().embedded(3)
    (row,) = machine.rows("status", "-p", "3")
    address, pid = row["address"], victim.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    for number in ("1", "2"):
        eventually(lambda number=number: machine.statuses("-p", number)[address] == "dead", "the killed peer is dead")
    machine.run("force-leave", row["peer_id"][:10])
    for number in ("1", "2"):
        eventually(lambda number=number: machine.statuses("-p", number)[address] == "left", "everyone lists it as left")

    leaver = machine.rows("status", "-p", "2")[0]["address"]
    assert 'left "local"' in machine.run("leave", "-p", "2").stderr
    assert machine.statuses("-p", "1")[leaver] == "left"
    assert 'this peer left the network "local"' in machine.run("status", "-p", "2", code=Exit.UNREACHABLE).stderr

    machine.run("up", "-p", "3", "-d")  # A killed peer comes back as itself, stale files and all.
    assert machine.statuses("-p", "1")[address] == "alive"
    assert machine.run("down").stderr == "stopped 2 peers\n"
    for number in (1, 2, 3):
        data = machine.data().embedded(number)
        assert not data.pid_file.exists()
        assert not data.socket_path.exists()
    assert "nothing runs" in machine.run("down").stderr
    assert "are not running" in machine.run("members", code=Exit.UNREACHABLE).stderr


def test_ctrl_c_stops_the_whole_network(machine: Machine):
    process = machine.start("up", "--peers", "2", "--port", str(next(PORTS)))
    assert process.stderr is not None
    shown = list(itertools.takewhile(lambda line: "Ctrl-C" not in line, process.stderr))
    assert any("peer 2 up at" in line for line in shown)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert [json.loads(line)["status"] for line in stdout.splitlines()] == ["alive", "alive"]
    assert stderr.endswith("stopped 2 peers\n")
    assert machine.data().embedded_running() == []


def test_peers_do_not_outlive_the_command_that_started_them(machine: Machine):
    process = machine.start("up", "--peers", "2", "--port", str(next(PORTS)))
    assert process.stderr is not None
    assert any("Ctrl-C" in line for line in process.stderr)
    assert machine.data().embedded_running() == [1, 2]
    process.kill()
    eventually(lambda: machine.data().embedded_running() == [], "the peers have stopped by themselves")


def test_a_network_for_a_while(machine: Machine):
    done = machine.run("up", "--peers", "2", "--for", "500ms", "-o", "table", "--port", str(next(PORTS)))
    assert done.stdout.count("alive") == 2
    assert "stopped 2 peers" in done.stderr


def test_a_peer_that_dies_at_the_start_is_reported_and_the_others_stop(machine: Machine):
    broken = machine.data().embedded(2)
    machine.data().prepare()
    broken.prepare()
    broken.key_file.write_bytes(b"short")
    broken.key_file.chmod(0o600)
    done = machine.run("up", "--peers", "2", "--port", str(next(PORTS)), code=Exit.FAILED)
    assert "embedded peer 2 did not start: cannot read the key of this peer" in done.stderr
    assert machine.data().embedded_running() == []


def test_init_up_join_leave(machine: Machine):
    machine.run("init", "--name", "plant", "--port", str(port()), name="one")
    machine.run("up", "-d", name="one")
    token = machine.run("token", name="one").stdout

    done = machine.run("join", "-", "--port", str(port()), "-d", name="two", typed=token)
    assert 'joined "plant"' in done.stderr
    assert list(machine.statuses(name="one").values()) == ["alive", "alive"]

    process = machine.start("join", token.strip(), "--port", str(port()), name="three")
    eventually(lambda: machine.state("three") == "running", "the third peer is a member")
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert "stopped" in log
    assert sorted(machine.statuses(name="two").values()) == ["alive", "alive", "left"]
    assert not machine.data("three").pid_file.exists()
    assert not machine.data("three").socket_path.exists()


@pytest.mark.parametrize("arguments", [[], ["-d"]])
def test_a_token_that_leads_nowhere_is_exit_code_5_and_is_not_kept(machine: Machine, arguments: list[str]):
    seed = port()
    machine.run("init", "--port", str(seed), name="one")
    machine.run("up", "-d", name="one")
    stranger = str(JoinToken(Network.create("local"), (("127.0.0.1", seed),)))
    options = ["--port", str(port()), "--timeout", "3s", *arguments]
    done = machine.run("join", stranger, *options, name="two", code=Exit.TIMEOUT)
    assert 'could not join the network "local" within 3 s' in done.stderr
    # By datagram nobody answers; once it has dialled the seed, it knows more.
    assert re.search(f"(no answer from|is not known at) 127.0.0.1:{seed}", done.stderr)
    for word in ("token", "firewall", "UDP", "clocks"):
        assert word in done.stderr
    assert not machine.data("two").network_file.exists()
    assert not machine.data("two").is_held()
    assert list(machine.statuses(name="one").values()) == ["alive"]


def test_a_daemon_whose_seed_is_away_keeps_trying(machine: Machine):
    machine.run("init", "--port", str(port()), name="one")
    machine.run("up", "-d", name="one")
    machine.run("join", machine.run("token", name="one").stdout, "--port", str(port()), "-d", name="two")
    machine.run("down", name="one")
    machine.run("down", name="two")

    process = machine.start(name="two", module="daemon")
    eventually(lambda: machine.state("two") == "joining", "the second peer waits for its seed")
    (status,) = machine.rows("status", name="two")
    assert http_get(status["http"], "/healthz")[0] == 503
    machine.run("up", "-d", name="one")
    eventually(lambda: machine.state("two") == "running", "the second peer has joined")
    assert list(machine.statuses(name="one").values()) == ["alive", "alive"]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0


def test_a_founder_that_crashed_finds_back_through_members_it_met(machine: Machine):
    machine.run("init", "--port", str(port()), name="one")
    machine.run("up", "-d", name="one")
    machine.run("join", machine.run("token", name="one").stdout, "--port", str(port()), "-d", name="two")
    founder = machine.data("one")
    eventually(lambda: founder.read_contacts() != [], "the founder has written down whom it met")
    pid = founder.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not founder.is_held(), "the founder is gone")
    machine.run("up", "-d", name="one")
    eventually(lambda: list(machine.statuses(name="one").values()) == ["alive", "alive"], "the founder sees the other")


def test_daemons_that_start_together_meet_through_a_token_file(machine: Machine):
    file = machine.path / "shared" / "token"
    seed = port()
    joiner = machine.start(
        name="two", module="daemon", PEER_TOKEN_FILE=str(file), PEER_PORT=str(port()), PEER_LOG_FORMAT="json"
    )
    assert joiner.stderr is not None
    assert json.loads(joiner.stderr.readline())["event"] == "waiting for the join token"
    machine.start(
        name="one",
        module="daemon",
        PEER_TOKEN_FILE=str(file),
        PEER_FOUND="1",
        PEER_NAME="plant",
        PEER_PORT=str(seed),
        PEER_ADVERTISE_SEED=f"localhost:{seed}",
    )
    eventually(lambda: machine.state("two") == "running", "the second peer has joined")
    assert file.stat().st_mode & 0o777 == 0o600
    token = JoinToken.parse(file.read_text())
    assert (token.network.name, token.seeds) == ("plant", (("localhost", seed),))
    assert set(machine.statuses(name="two").values()) == {"alive"}


def test_a_ctrl_c_while_the_peers_start_leaves_nothing_behind(machine: Machine):
    process = machine.start("up", "--peers", "2", "--port", str(next(PORTS)))
    eventually(machine.data().embedded(2).log_file.exists, "the daemons are being started")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert machine.data().embedded_running() == []


@pytest.mark.parametrize("command", ["join", "up"])
def test_a_peer_in_the_foreground_does_not_load_rich(machine: Machine, tmp_path: Path, command: str):
    token = machine.run("init", "--port", str(port())).stdout.strip()
    data, loading = machine.data("second" if command == "join" else "data"), tmp_path / "loading"
    arguments = ["join", token, "--port", str(port())] if command == "join" else ["up"]
    with loading.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "peerd.cli", *arguments],
            env={**machine.environ, "PEER_DATA_DIR": str(data.path)},
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    eventually(lambda: "peer ready" in loading.read_text(), "the peer is ready")
    process.terminate()
    process.wait(DEADLINE_S)
    loaded = re.findall(r"^import time:.*\| +([\w.]+)$", loading.read_text(), flags=re.MULTILINE)
    assert "peerd.service" in loaded
    assert "rich.console" not in loaded, "rich itself is listed because structlog asks for it in vain"


def test_a_daemon_outlives_its_log_and_still_stops_when_told(machine: Machine):
    machine.run("init", "--port", str(port()))
    terminal, stderr = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "peerd.daemon"],
        env={**machine.environ, "PEER_DATA_DIR": str(machine.data().path)},
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    )
    os.close(stderr)
    eventually(lambda: machine.state("data") == "running", "the peer runs")
    os.close(terminal)
    process.send_signal(signal.SIGHUP)
    process.wait(DEADLINE_S)
    assert not machine.data().is_held()
    assert not machine.data().pid_file.exists()


def test_a_daemon_that_waits_for_a_token_stops_when_told(machine: Machine):
    process = machine.start(module="daemon", PEER_TOKEN_FILE=str(machine.path / "never"), PEER_LOG_FORMAT="json")
    assert process.stderr is not None
    assert "waiting" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert not machine.data().pid_file.exists()


def test_a_data_directory_with_a_long_path_works(machine: Machine):
    name = "long" * 30
    machine.run("init", "--port", "0", name=name)
    machine.run("up", "-d", name=name)
    data = machine.data(name)
    assert data.socket_path.parent != data.path
    assert machine.state(name) == "running"
    machine.run("down", name=name)
    assert not data.socket_path.exists()
