"""The log: one JSON object per line where asked for, libraries included, and never a token."""

from __future__ import annotations

import json
import subprocess
import sys

from overlay.identity import JoinToken, Network

SCRIPT = """
import logging, sys, structlog
from peerd.logs import configure_logs
configure_logs("info", sys.argv[1])
log = structlog.get_logger("peerd")
log.debug("unseen")
log.info("token written", token=sys.argv[2], note="got " + sys.argv[2] + " today")
logging.getLogger("kademlia").info("unseen")
logging.getLogger("kademlia").warning("from a library: %s", sys.argv[2])
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
"""
TOKEN = str(JoinToken(Network("demo", bytes(32)), (("127.0.0.1", 7400),)))


def logged(form: str) -> str:
    done = subprocess.run([sys.executable, "-c", SCRIPT, form, TOKEN], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr


def test_json_lines_carry_level_time_and_event():
    first, library, failure = (json.loads(line) for line in logged("json").splitlines())
    assert (first["level"], first["event"], first["note"]) == ("info", "token written", "got peer1-(hidden) today")
    assert first["timestamp"].endswith("Z")
    assert (library["level"], library["event"]) == ("warning", "from a library: peer1-(hidden)")
    assert "ZeroDivisionError" in failure["exception"]


def test_the_console_format_is_for_people_and_hides_tokens_too():
    text = logged("console")
    assert "token written" in text
    assert "ZeroDivisionError" in text
    assert "unseen" not in text
    assert TOKEN not in text
    assert TOKEN not in logged("json")
