"""What is wrong with a query, where in its text, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import NamedTuple


class Span(NamedTuple):
    """A piece of the query text: characters `start` up to `end`."""

    start: int
    end: int


class QueryError(ValueError):
    """The error of this package: a text cannot become a plan.

    >>> print(QueryError('unknown column "gat"', "SELECT gat\\nFROM flights", Span(7, 10), hint='did you mean "gate"?'))
    line 1, column 8: unknown column "gat"
      SELECT gat
             ^^^
    hint: did you mean "gate"?
    """

    def __init__(self, problem: str, text: str, span: Span, *, expected: str = "", hint: str = "") -> None:
        self.problem = problem = _one_line(problem)
        self.expected = expected = _one_line(expected)
        self.hint = hint = _one_line(hint)
        self.span = Span(max(0, min(span.start, len(text))), max(0, min(span.end, len(text))))
        line_start = text.rfind("\n", 0, self.span.start) + 1
        self.line = text.count("\n", 0, self.span.start) + 1
        self.column = self.span.start - line_start + 1
        shown, caret = _shown(text, line_start, self.span)
        said = [f"line {self.line}, column {self.column}: {problem}", f"  {shown}", f"  {caret}"]
        if expected:
            said.append(f"expected: {expected}")
        if hint:
            said.append(f"hint: {hint}")
        super().__init__("\n".join(said))


class TypeMismatch(ValueError):
    """An expression that has no type. The front end knows its place in the text and raises QueryError instead."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest known name, or with all known names if they are few."""
    names = list(dict.fromkeys(known))
    by_lower = {each.lower(): each for each in names}
    near = get_close_matches(name.lower(), list(by_lower), 1)
    if near:
        return f'did you mean "{by_lower[near[0]]}"?'
    if names and len(names) <= 12:
        return f"there is {', '.join(names)}"
    return ""


_WIDTH = 100
_LONGEST = 400  # Bounds a sentence, since names of the query text stand in it, whatever their length.


def _one_line(said: str) -> str:
    shown = said if said.isprintable() else "".join(c if c.isprintable() else " " for c in said)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def _shown(text: str, line_start: int, span: Span) -> tuple[str, str]:
    """The line of the error, cut to the width of a terminal, and the carets below it."""
    line_end = text.find("\n", line_start)
    line = text[line_start : len(text) if line_end < 0 else line_end]
    at = span.start - line_start
    width = max(1, min(span.end - span.start, len(line) - at))
    cut = max(0, at - _WIDTH // 2) if len(line) > _WIDTH else 0
    shown = "".join(c if c.isprintable() else " " for c in line[cut : cut + _WIDTH])
    if cut:
        shown, at = "…" + shown, at + 1
    return shown, " " * (at - cut) + "^" * min(width, _WIDTH)
