"""Values for the question marks of a query, written into its text: a running query is known by its text alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from peerd.errors import Exit, PeerError


def value_of(text: str) -> Any:
    """A parameter as a number, true, false or null if it looks like one; quoted text is text.

    >>> value_of("12"), value_of("1.5"), value_of("null"), value_of("'12'"), value_of("N")
    (12, Decimal('1.5'), None, '12', 'N')
    """
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1]
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?\d{1,40}\.\d{1,40}", text):
        return Decimal(text)
    return {"true": True, "false": False, "null": None}.get(text.lower(), text)


def filled(text: str, parameters: Sequence[Any]) -> str:
    """SQL with its question marks replaced, in order, except those in quotes and comments.

    >>> filled("SELECT '?' FROM f WHERE name = ? AND n > ?", ["O'Hare", 3])
    "SELECT '?' FROM f WHERE name = 'O''Hare' AND n > 3"
    """
    if not parameters:
        return text
    from queries.errors import QueryError
    from queries.sql_tokens import T, tokenize

    try:
        marks = [token.start for token in tokenize(text) if token.token_type == T.PLACEHOLDER]
    except QueryError:
        return text  # The planner will say what is wrong with it.
    if len(marks) != len(parameters):
        raise PeerError(
            f"the query has {len(marks)} question marks and {len(parameters)} parameters", exit_code=Exit.MISUSE
        )
    pieces, end = [], 0
    for mark, value in zip(marks, parameters, strict=True):
        pieces += [text[end:mark], _literal(value)]
        end = mark + 1
    return "".join(pieces) + text[end:]


def _literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case Decimal():
            return f"{value:f}"  # With an exponent it would be a float.
        case int() | float():
            return f"{value}"
        case str():
            return "'" + value.replace("'", "''") + "'"
    raise PeerError(f"{value!r} cannot be a parameter", hint="Numbers, text, true, false, null.", exit_code=Exit.MISUSE)
