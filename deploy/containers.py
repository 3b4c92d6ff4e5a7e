"""The containers of one run of deploy/compose-test: started, asked and taken down."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PEERS: Final = ("seed", "peer1", "peer2", "peer3", "peer4")
PATIENCE_S: Final = 180.0  # With a slow machine: to look at all members once takes it seconds.
CLUSTER: Final = ("--profile", "spark-cluster")
STARTED: Final = time.monotonic()


class Failed(Exception):
    """Something did not come about; the message says what."""


class Containers:
    """The containers of one run, under a project name of their own."""

    def __init__(self, docker: str, compose: str, project: str) -> None:
        files = (ROOT / "docker-compose.yml", ROOT / "deploy" / "compose-test.yml")
        self._docker = [docker]
        self._compose = [*compose.split(), "-p", project, *(word for each in files for word in ("-f", str(each)))]
        self.network = f"{project}_peers"
        self.environ: dict[str, str] = {}  # Settings of docker-compose.yml that are taken from the shell.
        self.ids: dict[str, str] = {}
        self.peer_ids: dict[str, str] = {}

    def docker(self, *words: str, typed: str = "", timeout_s: float = 60.0) -> str:
        return run([*self._docker, *words], timeout_s, typed=typed)

    def compose(self, *words: str, timeout_s: float = 300.0) -> str:
        return run([*self._compose, *words], timeout_s, environ=self.environ)

    def up(self, *options: str) -> None:
        self.compose(*options, "up", "-d")
        self.ids = {"seed": self.compose("ps", "-q", "seed").strip(), **self.replicas("peer")}

    def replicas(self, service: str, *options: str) -> dict[str, str]:
        """The containers of a service that scales, by the name with their number."""
        number = '{{index .Config.Labels "com.docker.compose.container-number"}}'
        found = self.compose(*options, "ps", "-q", service).split()
        return {f"{service}{self.docker('inspect', '--format', number, each).strip()}": each for each in found}

    def peer(self, name: str, *command: str, typed: str = "", timeout_s: float = 120.0) -> str:
        """Type a command of `peer` in a container."""
        return self.docker("exec", "-i", self.ids[name], "peer", *command, typed=typed, timeout_s=timeout_s)

    def ask(self, name: str, *command: str) -> Any:
        """What a peer answers inside its container; None while it does not answer."""
        try:
            return json.loads(self.peer(name, *command, "-o", "json"))
        except (Failed, ValueError):
            return None

    def reading(self, name: str, *command: str) -> subprocess.Popen[str]:
        """A command of `peer` that goes on, with its output to read."""
        words = [*self._docker, "exec", self.ids[name], "peer", *command]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def learn_peer_ids(self) -> bool:
        for name in PEERS:
            if name not in self.peer_ids and (status := self.ask(name, "status")):
                self.peer_ids[name] = status["peer_id"]
        return len(self.peer_ids) == len(PEERS)

    def seen_from(self, name: str) -> dict[str, str]:
        """The status of every peer in the member list of one of them."""
        names = {peer_id: name for name, peer_id in self.peer_ids.items()}
        members = self.ask(name, "members") or []
        return {names.get(each["peer_id"], each["peer_id"]): each["status"] for each in members}

    def inspect(self, name: str, template: str) -> str:
        return self.docker("inspect", "--format", template, self.ids[name]).strip()

    def start_again(self, name: str) -> None:
        self.docker("start", self.ids[name])
        wait_until_seen(self, "alive", everyone_but(), [name])

    def down(self) -> None:
        self.compose(*CLUSTER, "down", "--volumes", "--remove-orphans", "--timeout", "10")

    def last_words(self) -> str:
        return self.compose(*CLUSTER, "logs", "--no-color", "--tail", "40")


def run(command: list[str], timeout_s: float, *, typed: str = "", environ: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            check=True,
            capture_output=True,
            input=typed,
            text=True,
            timeout=timeout_s,
            cwd=ROOT,
            env=os.environ | (environ or {}),
        )
    except subprocess.CalledProcessError as error:
        raise Failed(f"{' '.join(command)} ended with {error.returncode}\n{error.stderr[-4000:]}") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(command)} took more than {timeout_s:.0f} s") from error
    return done.stdout


def say(text: str) -> None:
    print(f"{time.monotonic() - STARTED:6.1f} s  {text}", flush=True)


def wait(what: str, holds: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait until something holds, looking again and again; say how long it took."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() > begun + patience_s:
            raise Failed(f"not within {patience_s:.0f} s: {what}")
        time.sleep(0.2)
    say(f"{what} ({time.monotonic() - begun:.1f} s)")


def wait_until_seen(run: Containers, status: str, seen: list[str], observers: list[str]) -> None:
    """Wait until each observer's member list shows each of the seen with the status."""

    def holds() -> bool:
        return all({run.seen_from(observer).get(name) for name in seen} == {status} for observer in observers)

    wait(f"{', '.join(seen)}: {status} for {', '.join(observers)}", holds)


def everyone_but(*names: str) -> list[str]:
    return [name for name in PEERS if name not in names]


@contextlib.contextmanager
def containers(docker: str, compose: str) -> Iterator[Containers]:
    """Containers that are gone at the end; after a failure their last words are printed first."""
    run = Containers(docker, compose, f"peerdtest{os.getpid()}")
    try:
        yield run
    except BaseException:
        with contextlib.suppress(Failed):
            print(run.last_words(), file=sys.stderr)
            for name in run.ids:
                print(f"{name} sees {run.seen_from(name)}", file=sys.stderr)
        raise
    finally:
        run.down()
        say("everything taken down")
