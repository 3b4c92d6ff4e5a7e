"""The command line without a network: help, output formats, and every wrong input answered with its exit code."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from overlay.identity import JoinToken, Network
from peerd.cli.group import COMMANDS, peer
from peerd.errors import Exit
from tests.system.ports import PORTS

HEAVY = (
    "aiohttp",
    "rich",
    "cryptography",
    "uvloop",
    "structlog",
    "msgspec",
    "prometheus_client",
    "asyncio",
    "kademlia",
)


def run(*arguments: str, data: Path | None = None, environ: dict[str, str] | None = None, code: int = 0, module="cli"):
    """Run `peer` (or `peerd`) and check its exit code; no answer of a command is ever a traceback."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PEER_")}
    if data is not None:
        own["PEER_DATA_DIR"] = str(data)
    done = subprocess.run(
        [sys.executable, "-m", f"peerd.{module}", *arguments],
        capture_output=True,
        text=True,
        env={**own, **(environ or {})},
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    return done


def test_help_imports_nothing_but_click():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "peerd.cli", "--help"], capture_output=True, text=True, check=True
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "click" in imported
    assert not imported & set(HEAVY)
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself_with_an_example(name: str):
    context = click.Context(peer, info_name="peer")
    command = peer.get_command(context, name)
    assert command is not None
    assert f"$ peer {name}" in command.get_help(click.Context(command, parent=context, info_name=name))


def test_without_a_command_the_help_is_shown():
    assert run().stdout == run("--help").stdout


def test_version_speaks_every_format():
    record = json.loads(run("version").stdout)
    assert json.loads(run("version", "-o", "json").stdout) == record
    assert run("version", "-o", "csv").stdout.splitlines()[0] == "version,python,system"
    assert run("version", "-o", "table").stdout.splitlines()[0] == f"version  {record['version']}"
    assert run("--version").stdout == f"peer {record['version']}\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["membrs"], 'Did you mean "peer members"?'),
        (["members", "--nope"], "no such option"),
        (["members", "-o", "xml"], "is not one of"),
        (["join"], "missing argument 'TOKEN'"),
        (["join", "garbage"], 'a token starts with "peer1-"'),
        (["up", "--port", "http"], "--port: it must be a port"),
        (["up", "--for", "3s"], "--for goes with --peers"),
        (["up", "--peers", "0"], "is not in the range"),
        (["up", "--peers", "2", "--host", "::1"], "--peers and --host do not go together"),
        (["up", "--peers", "2", "-d", "--for", "1"], "--detach and --for do not go together"),
        (["up", "--peers", "2", "--for", "soon"], "is not a duration"),
        (["rtt", "a", "b", "c"], "at most two peers"),
    ],
)
def test_misuse_is_exit_code_2_and_says_what_is_wrong(tmp_path: Path, arguments: list[str], told: str):
    done = run(*arguments, data=tmp_path / "data", code=Exit.MISUSE)
    assert done.stderr.startswith("error: ")
    assert told in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_a_damaged_token_is_exit_code_2(tmp_path: Path):
    token = str(JoinToken(Network.create("plant"), (("127.0.0.1", 1),)))
    middle = len(token) // 2
    altered = token[:middle] + ("A" if token[middle] != "A" else "B") + token[middle + 1 :]
    for text in (altered, token[:-1], token + "=x"):
        assert "join token" in run("join", text, data=tmp_path / "data", code=Exit.MISUSE).stderr
    assert not (tmp_path / "data" / "network").exists()


@pytest.mark.parametrize("command", ["status", "members", "rtt", "leave", "token"])
def test_an_unreachable_daemon_is_exit_code_3(tmp_path: Path, command: str):
    done = run(command, data=tmp_path / "data", code=Exit.UNREACHABLE)
    assert "there is no peer here" in done.stderr
    assert "hint: " in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_stale_socket_is_an_unreachable_daemon(tmp_path: Path):
    run("init", data=tmp_path)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "peer.sock"))
    assert "is not running" in run("status", data=tmp_path, code=Exit.UNREACHABLE).stderr


@pytest.mark.slow
def test_a_taken_port_is_exit_code_1_and_names_the_port(tmp_path: Path):
    run("init", data=tmp_path)
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as other:
            other.bind(("127.0.0.1", 0))
            if kind == socket.SOCK_STREAM:
                other.listen()
            port = str(other.getsockname()[1])
            for arguments in (["up", "--port", port], ["up", "--port", port, "--detach"]):
                done = run(*arguments, data=tmp_path, code=Exit.FAILED)
                assert f"error: port {port} on 127.0.0.1 is taken" in done.stderr
                assert "The port comes from --port" in done.stderr
    assert not (tmp_path / "peer.pid").exists()
    assert not (tmp_path / "peer.sock").exists()


@pytest.mark.slow
def test_a_taken_http_port_is_exit_code_1_and_names_the_port(tmp_path: Path):
    run("init", data=tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = run("up", "--port", "0", "--http-port", port, data=tmp_path, code=Exit.FAILED)
    assert f"error: port {port} on 127.0.0.1 is taken" in done.stderr
    assert "--http-port 0" in done.stderr


@pytest.mark.parametrize("arguments", [["up"], ["up", "--detach"], ["up", "--peers", "2"], ["init"]])
def test_an_unwritable_data_directory_is_exit_code_1(tmp_path: Path, arguments: list[str]):
    (tmp_path / "file").touch()
    done = run(*arguments, data=tmp_path / "file" / "data", code=Exit.FAILED)
    assert "cannot use the data directory" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("module", ["cli", "daemon"])
def test_a_malformed_configuration_is_exit_code_2_with_file_line_and_key(tmp_path: Path, module: str):
    tmp_path.chmod(0o700)
    file = tmp_path / "peerd.toml"
    arguments = ["up"] if module == "cli" else []
    for text, line, key in (
        ("\nprot = 1\n", 2, "prot"),
        ('port = "x"\n', 1, "port"),
        ("port = 1\nhost =\n", 2, "host"),
    ):
        file.write_text(text)
        done = run(*arguments, data=tmp_path, code=Exit.MISUSE, module=module)
        assert f'{file}, line {line}, key "{key}"' in done.stderr
    done = run(*arguments, "--config", str(tmp_path / "none.toml"), data=tmp_path, code=Exit.MISUSE, module=module)
    assert "there is no configuration file" in done.stderr
    done = run(*arguments, data=tmp_path / "new", environ={"PEER_PORT": "x"}, code=Exit.MISUSE, module=module)
    assert "PEER_PORT: it must be a port" in done.stderr


def test_an_embedded_peer_that_is_not_there_is_exit_code_4(tmp_path: Path):
    done = run("status", "-p", "3", data=tmp_path, code=Exit.NOT_FOUND)
    assert "there is no embedded peer 3" in done.stderr


@pytest.mark.slow
def test_a_peer_without_a_network_says_how_to_get_one(tmp_path: Path):
    for arguments in (["up"], ["up", "--detach"]):
        done = run(*arguments, data=tmp_path / "data", code=Exit.FAILED)
        assert 'peer init" creates one' in done.stderr


def test_init_prints_a_token_keeps_its_flags_and_is_done_once(tmp_path: Path):
    data = tmp_path / "data"
    done = run("init", "--name", "plant", "--port", "7450", data=data)
    token = JoinToken.parse(done.stdout)
    assert (token.network.name, token.seeds) == ("plant", (("127.0.0.1", 7450),))
    assert "this machine only" in done.stderr
    assert run("token", data=data).stdout == done.stdout
    assert "port = 7450" in (data / "peerd.toml").read_text()
    for secret in ("peer.key", "network"):
        assert (data / secret).stat().st_mode & 0o777 == 0o600
    assert 'already belongs to the network "plant"' in run("init", data=data, code=Exit.FAILED).stderr


@pytest.mark.slow
def test_a_directory_of_one_network_does_not_join_another(tmp_path: Path):
    run("init", data=tmp_path)
    other = JoinToken(Network.create("other"), (("127.0.0.1", 1),))
    done = run("join", str(other), data=tmp_path, code=Exit.FAILED)
    assert 'already belongs to the network "local"' in done.stderr


def test_doctor_finds_what_is_wrong_and_says_what_to_do(tmp_path: Path):
    tmp_path.chmod(0o700)
    # Another test, or a peer of this machine, may have the default port.
    done = run("doctor", "--data-dir", str(tmp_path / "new"), environ={"PEER_PORT": str(next(PORTS))})
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    assert {finding["check"] for finding in findings} > {
        "Python",
        "data directory",
        "disk space",
        "port",
        "clock",
        "Java",
    }
    assert all(finding["next_step"] for finding in findings if finding["status"] != "ok")
    (tmp_path / "peerd.toml").write_text("prot = 1\n")
    done = run("doctor", "-o", "table", data=tmp_path, environ={"PEER_PROT": "1"}, code=Exit.FAILED)
    assert "line 1" in done.stdout
    assert "did you mean PEER_PORT?" in done.stdout
    assert "checks failed: settings" in done.stderr


def test_a_reader_that_goes_away_is_no_crash(tmp_path: Path):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "peerd.cli", "doctor", "--data-dir", str(tmp_path / "data")],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (Exit.FAILED, "")
