"""docs/protocol.md names every message there is, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from overlay import datagrams
from protocols.wire import ANSWERS, COMMANDS, MESSAGES

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_column(title: str) -> list[str]:
    return re.findall(r"^\| ([A-Z_]+) \|", section(title), flags=re.MULTILINE)


def test_every_datagram_has_its_line() -> None:
    kinds = [str(kind.__struct_config__.tag) for kind in get_args(datagrams.Message)]
    assert sorted(first_column("Datagrams")) == sorted(kinds)


def test_every_message_has_its_line() -> None:
    assert sorted(first_column("Messages")) == sorted(str(kind.__struct_config__.tag) for kind in MESSAGES.kinds)


def test_every_command_and_answer_is_named() -> None:
    named = set(re.findall(r"[A-Z_]{4,}", section("Clients")))
    assert named == {str(kind.__struct_config__.tag) for kind in (*COMMANDS.kinds, *ANSWERS.kinds)}
