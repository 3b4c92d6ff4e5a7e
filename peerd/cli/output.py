"""How commands show data: a table for people, or JSON, JSON lines and CSV for programs.

Rows are flat dictionaries. A column renders one value for the table; the other formats carry every value as it is.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import click

FORMATS: Final = ("table", "json", "jsonl", "csv")
_PLAIN_WIDTH: Final = 240  # A table in a file is not cut to the width of a screen.
_STYLES: Final = {
    "alive": "green",
    "running": "green",
    "ok": "green",
    "suspect": "yellow",
    "joining": "yellow",
    "warn": "yellow",
    "dead": "red",
    "expelled": "red",
    "fail": "red",
    "left": "dim",
}

Row = Mapping[str, Any]
Command = TypeVar("Command", bound=Callable[..., object])


class Column(NamedTuple):
    title: str
    render: Callable[[Row], str]
    right: bool = False


def output_option(command: Command) -> Command:
    option = click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(FORMATS),
        help="Output format [table on a terminal, jsonl when piped].",
    )
    return option(command)


def show_rows(rows: Sequence[Row], columns: Sequence[Column], form: str | None) -> None:
    """Show any number of rows on stdout."""
    match chosen_form(form):
        case "table":
            _show_table(rows, columns)
        case "json":
            click.echo(json.dumps([dict(row) for row in rows], indent=2))
        case "jsonl":
            for row in rows:
                click.echo(json.dumps(dict(row)))
        case "csv":
            _show_csv(rows)


def show_record(record: Row, facts: Sequence[tuple[str, str]], form: str | None) -> None:
    """Show one thing: for people its facts one below the other, otherwise the record."""
    match chosen_form(form):
        case "table":
            width = max(len(name) for name, _ in facts)
            for name, value in facts:
                label = click.style(name.ljust(width), dim=True)
                click.echo(f"{label}  {click.style(value, fg=_colour(value))}")
        case "json":
            click.echo(json.dumps(dict(record), indent=2))
        case "jsonl":
            click.echo(json.dumps(dict(record)))
        case "csv":
            _show_csv([record])


def chosen_form(form: str | None) -> str:
    """The format asked for, otherwise one that suits the reader."""
    return form or ("table" if sys.stdout.isatty() else "jsonl")


def _colour(value: str) -> str | None:
    style = _STYLES.get(value.split(" ", 1)[0])
    return style if style != "dim" else None


def _show_csv(rows: Sequence[Row]) -> None:
    if rows:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _show_table(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False)
    console.print(table_of(rows, columns))


def table_of(rows: Sequence[Row], columns: Sequence[Column]) -> Any:
    """The rows as a rich table; rich is imported here because most calls of a command need no table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True)
    for row in rows:
        texts = [column.render(row) for column in columns]
        table.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in texts))
    return table
