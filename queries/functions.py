"""Every function and operator of the languages, defined once: its types, its value, its form in Spark.

A function is total: where it has no result (division by zero, a number beyond 64 bits, text that is no number) the
result is null. So a batch can be computed column by column, and no tuple can stop a query.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal, DecimalException
from functools import lru_cache
from typing import Any, Final

from queries.errors import TypeMismatch, nearest
from queries.expressions import Call, Constant, Expression, ValueType

INT_MAX: Final = (1 << 63) - 1
NUMBERS: Final = ("int", "decimal", "float")  # From narrow to wide: the wider of two is the common type.

# A form in another engine: given that engine's functions (pyspark.sql.functions) and the columns of the arguments.
Render = Callable[[Any, Sequence[Any]], Any]
TypeRule = Callable[[str, tuple[Expression, ...]], ValueType]


@dataclass(frozen=True, slots=True)
class Function:
    """One definition: everything that is known of a function."""

    name: str
    type_of: TypeRule
    value: Callable[..., Any]
    render: Render
    strict: bool = True  # Null among the arguments makes the result null, and `value` never sees one.
    partial: bool = False  # Without nulls among the arguments the result may still be null.


def call(name: str, *arguments: Expression) -> Call:
    """Apply a function; raises TypeMismatch where the arguments do not fit.

    >>> print(call("<", call("+", Constant(1, "int"), Constant("2.5", "decimal")), Constant(7, "int")))
    1 + 2.5 < 7
    """
    function = FUNCTIONS.get(name)
    if function is None:
        raise TypeMismatch(f'unknown function "{name}"', nearest(name, FUNCTIONS))
    kind = function.type_of(name, arguments)
    if function.strict:
        nullable = function.partial or any(argument.nullable for argument in arguments)
    else:
        nullable = _NULLABLE[name](arguments)
    return Call(name, arguments, kind, nullable)
