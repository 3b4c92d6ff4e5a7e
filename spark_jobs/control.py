"""Messages between the daemon and its worker: length-prefixed frames of msgpack over a pipe."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from queries.plan import Operator
from spark_jobs.stages import Mode

LENGTH: Final = struct.Struct("<I")


class _Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """The base of all frames."""


class StartQuery(_Frame, frozen=True, kw_only=True, tag="start"):
    """Run a plan: rows come through the spools in the folder, results go to the socket under the name of the run.

    An earlier run has told the results of old rows that were due by `closed_until_us`.
    """

    run: str
    plan: Operator
    mode: Mode
    closed_until_us: int | None
    folder: str
    socket: str


class StopQuery(_Frame, frozen=True, kw_only=True, tag="stop"):
    """End a run. Answered with QueryEnded."""

    run: str


class AskStatus(_Frame, frozen=True, kw_only=True, tag="ask"):
    """How is the session? Answered with SessionStatus."""


class Waiting(_Frame, frozen=True, kw_only=True, tag="waiting"):
    """The session is being started; says what it waits for."""

    what: str


class Ready(_Frame, frozen=True, kw_only=True, tag="ready"):
    """The session runs."""

    spark: str
    java: str
    java_pid: int
    master: str


class SessionFailed(_Frame, frozen=True, kw_only=True, tag="session_failed"):
    """There is no session, or no longer one; the worker ends."""

    reason: str


class QueryStarted(_Frame, frozen=True, kw_only=True, tag="started"):
    """The run takes rows."""

    run: str


class QueryEnded(_Frame, frozen=True, kw_only=True, tag="ended"):
    """Nothing of the run is left in Spark. Without a reason it was stopped; otherwise it failed."""

    run: str
    reason: str = ""


class SessionStatus(_Frame, frozen=True, kw_only=True, tag="status"):
    """Memory of the processes, and what state each run keeps."""

    java_bytes: int
    worker_bytes: int
    state_rows: dict[str, int]


Command = StartQuery | StopQuery | AskStatus
Report = Waiting | Ready | SessionFailed | QueryStarted | QueryEnded | SessionStatus

COMMANDS: Final = msgspec.msgpack.Decoder(Command)
REPORTS: Final = msgspec.msgpack.Decoder(Report)


def frame(message: Command | Report) -> bytes:
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body
