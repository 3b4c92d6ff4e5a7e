"""How rows are shown as they come: a table for people, JSON, CSV or XML for programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from peerd.cli.output import chosen_form

if TYPE_CHECKING:
    from queries.schema import Schema

_CELL_WIDTH_MIN: Final = 6


def writer_for(schema: Schema, form: str | None, envelope: tuple[str, ...] = ()) -> Writer:
    """The writer for rows of a schema; results of a WXQuery are XML unless another format is asked for."""
    if form is None and [(field.name, field.type) for field in schema.fields] == [("xml", "string")]:
        return _Xml(envelope)
    return _WRITERS[chosen_form(form)](schema)


class Writer(Protocol):
    """Shows rows as they come."""

    def write(self, row: Any) -> None: ...

    def close(self) -> None: ...


class _JsonLines:
    def __init__(self, schema: Schema) -> None:
        self._to_json = schema.to_json

    def write(self, row: Any) -> None:
        sys.stdout.write(json.dumps(self._to_json(row)) + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        """A line is complete in itself."""


class _Json(_JsonLines):
    """One array, however long it takes."""

    _separator = "["

    def write(self, row: Any) -> None:
        sys.stdout.write(f"{self._separator}\n  {json.dumps(self._to_json(row))}")
        sys.stdout.flush()
        self._separator = ","

    def close(self) -> None:
        sys.stdout.write("[]\n" if self._separator == "[" else "\n]\n")


class _Csv:
    def __init__(self, schema: Schema) -> None:
        self._to_json = schema.to_json
        self._writer = csv.writer(sys.stdout, lineterminator="\n")
        self._writer.writerow([field.name for field in schema.fields])

    def write(self, row: Any) -> None:
        self._writer.writerow(self._to_json(row).values())
        sys.stdout.flush()

    def close(self) -> None:
        """A line is complete in itself."""


class _Table:
    """Columns that widen when they must."""

    def __init__(self, schema: Schema) -> None:
        self._to_json = schema.to_json
        self._right = [field.type in ("int", "float", "decimal") for field in schema.fields]
        self._widths = [max(len(field.name), _CELL_WIDTH_MIN) for field in schema.fields]
        click.secho(self._line([field.name for field in schema.fields]), bold=True)

    def write(self, row: Any) -> None:
        click.echo(self._line(["-" if value is None else str(value) for value in self._to_json(row).values()]))

    def close(self) -> None:
        """A line is complete in itself."""

    def _line(self, cells: list[str]) -> str:
        self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, cells, strict=True)]
        placed = zip(cells, self._widths, self._right, strict=True)
        return "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in placed).rstrip()


class _Xml:
    """One document, however long it takes: the envelope opens with the first line and closes with the last."""

    def __init__(self, envelope: tuple[str, ...]) -> None:
        self._envelope = envelope
        self._say("".join(f"<{tag}>" for tag in envelope))

    def write(self, row: Any) -> None:
        self._say(row[0])

    def close(self) -> None:
        self._say("".join(f"</{tag}>" for tag in reversed(self._envelope)))

    def _say(self, line: str) -> None:
        if line:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


_WRITERS: Final[dict[str, Callable[[Schema], Writer]]] = {
    "table": _Table,
    "json": _Json,
    "jsonl": _JsonLines,
    "csv": _Csv,
}
