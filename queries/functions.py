"""Every function and operator of the languages, defined once: its types, its value, its form in Spark.

Functions are total: without a result (division by zero, a number beyond 64 bits, text that is no number) the value is
null. So a batch can be computed column by column, and no tuple can stop a query.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from queries import decimals, meanings, spark_forms, values
from queries.casts import CASTS, cast
from queries.errors import TypeMismatch, nearest
from queries.expressions import Call, Column, Constant, Expression
from queries.meanings import NUMBERS, Arguments, Meaning, Rule, common_type
from queries.spark_forms import Form

__all__ = [
    "FUNCTIONS",
    "NUMBERS",
    "Function",
    "call",
    "cast",
    "common_type",
    "is_strict",
    "meaning_of",
    "rendered",
    "value",
]


@dataclass(frozen=True, slots=True)
class Function:
    """One definition: all that is known of a function."""

    name: str
    form: Form  # Its form in Spark.
    meaning: Rule
    # Whether the result can be null for certain arguments. None means: if an argument can be null.
    nullable: Callable[[Arguments], bool] | None = None


def call(name: str, *arguments: Expression) -> Call:
    """Apply a function; raises TypeMismatch if the arguments do not fit.

    >>> print(call("<", call("+", Constant(1, "int"), Constant("2.5", "decimal")), Constant(7, "int")))
    1 + 2.5 < 7
    """
    function = FUNCTIONS.get(name)
    if function is None:
        raise TypeMismatch(f'unknown function "{name}"', nearest(name, FUNCTIONS))
    meaning = function.meaning(name, arguments)
    given = arguments if meaning.arguments is None else meaning.arguments
    nullable = _any_nullable(given) if function.nullable is None else function.nullable(given)
    return Call(name, given, meaning.type, nullable or meaning.partial)


@lru_cache(maxsize=1024)
def meaning_of(expression: Call) -> Meaning:
    """The meaning of an existing call, built here or at another peer."""
    if expression.function != "cast":
        return FUNCTIONS[expression.function].meaning(expression.function, expression.arguments)
    source = expression.arguments[0].type
    if source == "null":
        return Meaning(expression.type, meanings.nothing, partial=True)
    value, partial = CASTS[source, expression.type]
    return Meaning(expression.type, value, partial)


def is_strict(name: str) -> bool:
    """Whether a null argument makes the result null; then `value` never sees a null."""
    return name == "cast" or FUNCTIONS[name].nullable is None


def value(expression: Call, arguments: Sequence[Any]) -> Any:
    """The value of a call for the values of its arguments; simple and slow, one row at a time.

    >>> value(call("/", Constant(1, "int"), Constant(0, "int")), [1, 0]) is None
    True
    """
    meaning = meaning_of(expression)
    if is_strict(expression.function) and any(argument is None for argument in arguments):
        return None
    return meaning.value(*(arguments if meaning.takes is None else [arguments[n] for n in meaning.takes]))


def rendered(expression: Expression, sf: Any, column_of: Callable[[Column], Any]) -> Any:
    """An expression as a column of Spark, whose functions are `sf`; raises NoForm if Spark cannot express it."""
    return _rendered(expression, sf, column_of)[0]


def _rendered(expression: Expression, sf: Any, column_of: Callable[[Column], Any]) -> tuple[Any, int]:
    """The column, and a bound on its size: a form may repeat an argument, which may repeat its own."""
    match expression:
        case Column():
            return column_of(expression), 1
        case Constant():
            return spark_forms.literal(sf, expression), 1
    columns, sizes = zip(*(_rendered(argument, sf, column_of) for argument in expression.arguments), strict=True)
    form = spark_forms.cast if expression.function == "cast" else FUNCTIONS[expression.function].form
    size = sum(sizes) * (1 if expression.function in _ONCE else _MANY_TIMES)
    if size <= _SIZE_MAX or expression.function in _ONCE:
        result = form(sf, expression, columns)
    else:
        result, size = spark_forms.bound(sf, columns, lambda named: form(sf, expression, named)), sum(sizes)
    if expression.type == "decimal":
        result = result.try_cast(spark_forms.TYPES["decimal"])
    return result, size


_ONCE: Final = ("and", "or", "not", "is_null", "in", "coalesce")  # Their forms use each argument once.
_MANY_TIMES: Final = 8
_SIZE_MAX: Final = 5000


def _any_nullable(arguments: Arguments) -> bool:
    return any(argument.nullable for argument in arguments)


def _all_nullable(arguments: Arguments) -> bool:
    return all(argument.nullable for argument in arguments)


def _never(_: Arguments) -> bool:
    return False


def _results_nullable(arguments: Arguments) -> bool:
    return any(argument.nullable for argument in (*arguments[1::2], arguments[-1]))


def _decimal(value: Callable[[Decimal], Decimal]) -> Meaning:
    return Meaning("decimal", value)


FUNCTIONS: Final[dict[str, Function]] = {
    function.name: function
    for function in (
        *(Function(name, spark_forms.arithmetic, meanings.arithmetic) for name in ("+", "-", "*", "/", "%", "mod")),
        Function(
            "negate",
            spark_forms.negate,
            meanings.by_type(
                int=Meaning("int", values.int_negate, partial=True),
                decimal=_decimal(Decimal.copy_negate),
                float=Meaning("float", operator.neg),
                interval=Meaning("interval", values.interval_negate, partial=True),
            ),
        ),
        *(Function(name, spark_forms.comparison, meanings.comparison) for name in meanings.COMPARISONS),
        Function("and", spark_forms.all_of, meanings.logic(values.conjunction, 1, meanings.MANY), _any_nullable),
        Function("or", spark_forms.any_of, meanings.logic(values.disjunction, 1, meanings.MANY), _any_nullable),
        Function("not", spark_forms.inverted, meanings.logic(operator.not_, 1, 1)),
        Function("is_null", spark_forms.is_null, meanings.is_null, _never),
        Function("in", spark_forms.is_in, meanings.is_in, _any_nullable),
        Function("like", spark_forms.like, meanings.like),
        Function("case", spark_forms.case, meanings.case, _results_nullable),
        Function("coalesce", spark_forms.of("coalesce"), meanings.choice(values.coalesce), _all_nullable),
        Function("nullif", spark_forms.nullif, meanings.nullif, _any_nullable),
        Function(
            "greatest",
            spark_forms.of_several("greatest"),
            meanings.choice(values.greatest, compared=True),
            _all_nullable,
        ),
        Function("least", spark_forms.of_several("least"), meanings.choice(values.least, compared=True), _all_nullable),
        Function(
            "abs",
            spark_forms.absolute,
            meanings.by_type(
                int=Meaning("int", values.int_abs, partial=True),
                decimal=_decimal(Decimal.copy_abs),
                float=Meaning("float", abs),
                interval=Meaning("interval", abs),
            ),
        ),
        Function(
            "ceil",
            spark_forms.to_whole("ceil"),
            meanings.by_type(
                int=Meaning("int", int),
                decimal=Meaning("decimal", decimals.ceil, partial=True),
                float=Meaning("float", values.float_ceil),
            ),
        ),
        Function(
            "floor",
            spark_forms.to_whole("floor"),
            meanings.by_type(
                int=Meaning("int", int),
                decimal=Meaning("decimal", decimals.floor, partial=True),
                float=Meaning("float", values.float_floor),
            ),
        ),
        Function("round", spark_forms.rounded, meanings.rounding),
        Function("sqrt", spark_forms.root, meanings.float_function(values.sqrt)),
        Function("power", spark_forms.exponential("pow"), meanings.float_function(values.power, 2)),
        Function("exp", spark_forms.exponential("exp"), meanings.float_function(values.exp)),
        Function("ln", spark_forms.logarithm, meanings.float_function(values.ln)),
        Function(
            "sign", spark_forms.sign, meanings.by_type(int=meanings.SIGN, decimal=meanings.SIGN, float=meanings.SIGN)
        ),
        Function(
            "||",
            spark_forms.concatenated,
            meanings.signature("string", values.concatenate, "string", "string", partial=True),
        ),
        Function("concat", spark_forms.concatenated, meanings.concat, _never),
        Function("lower", spark_forms.of("lower"), meanings.signature("string", str.lower, "string")),
        Function("upper", spark_forms.of("upper"), meanings.signature("string", str.upper, "string")),
        Function("length", spark_forms.counted("length"), meanings.signature("int", len, "string|bytes")),
        Function(
            "trim", spark_forms.of("trim"), meanings.signature("string", values.trim, "string", "string", least=1)
        ),
        Function(
            "ltrim", spark_forms.of("ltrim"), meanings.signature("string", values.ltrim, "string", "string", least=1)
        ),
        Function(
            "rtrim", spark_forms.of("rtrim"), meanings.signature("string", values.rtrim, "string", "string", least=1)
        ),
        Function(
            "substring",
            spark_forms.substring,
            meanings.signature("string", values.substring, "string", "int", "int", least=2),
        ),
        Function(
            "position", spark_forms.counted("position"), meanings.signature("int", values.position, "string", "string")
        ),
        Function(
            "replace", spark_forms.replaced, meanings.signature("string", values.replace, *["string"] * 3, partial=True)
        ),
        Function("left", spark_forms.left, meanings.signature("string", values.left, "string", "int")),
        Function("right", spark_forms.right, meanings.signature("string", values.right, "string", "int")),
        Function(
            "starts_with", spark_forms.of("startswith"), meanings.signature("bool", str.startswith, "string", "string")
        ),
        Function("ends_with", spark_forms.of("endswith"), meanings.signature("bool", str.endswith, "string", "string")),
        Function(
            "contains", spark_forms.of("contains"), meanings.signature("bool", operator.contains, "string", "string")
        ),
        Function("extract", spark_forms.extract, meanings.extract),
        Function("date_trunc", spark_forms.date_trunc, meanings.date_trunc),
    )
}
