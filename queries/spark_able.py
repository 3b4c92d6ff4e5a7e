"""Whether Spark can keep the meaning of a plan, decided without Spark: every form is tried on a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from types import LambdaType
from typing import Any, Final

from queries.decimals import BOUNDS, is_held
from queries.expressions import Expression
from queries.functions import rendered
from queries.plan import Join, Nest, Operator, Project, Select, WindowAggregate, walk
from queries.spark_forms import NoForm


class _Anything:
    """A stand-in for all of Spark: every attribute, call and operator gives the stand-in again."""

    def __getattr__(self, name: str) -> _Anything:
        return self

    def __call__(self, *arguments: Any, **named: Any) -> _Anything:
        for each in arguments:
            if isinstance(each, LambdaType):  # What it would do to the elements of a list.
                each(*(self for _ in range(each.__code__.co_argcount)))
        return self


def _itself(anything: _Anything, *_: Any) -> _Anything:
    return anything


_OPERATORS: Final = "add sub mul truediv floordiv mod pow and or neg invert lt le gt ge eq ne getitem".split()
for _name in (*_OPERATORS, "radd", "rsub", "rmul", "rtruediv", "rmod", "rand", "ror"):
    setattr(_Anything, f"__{_name}__", _itself)

ANYTHING: Final = _Anything()


def formless(plan: Operator) -> str:
    """Why Spark cannot run a plan; empty if it can.

    >>> from queries.catalogue import Stream
    >>> from queries.schema import Schema
    >>> from queries.sql import plan
    >>> known = {"r": Stream("r", Schema.parse("a float, b int"))}
    >>> formless(plan("SELECT CAST(a AS string) AS s FROM r", known).plan)
    'Spark writes floats in another way'
    >>> formless(plan("SELECT sum(a + b) AS s FROM r [RANGE 1 MINUTE]", known).plan)
    ''
    """
    for operator in walk(plan):
        if isinstance(operator, WindowAggregate) and operator.window.kind == "value":
            reaches = (operator.window.size, operator.window.slide or operator.window.size)
            if not all(is_held(Decimal(each)) for each in reaches):  # An earlier release accepted it.
                return f"a window over decimals has {BOUNDS}"
        for expression in _expressions(operator):
            try:
                rendered(expression, ANYTHING, lambda _: ANYTHING)
            except NoForm as problem:
                return str(problem)
    return ""


def _expressions(operator: Operator) -> Iterator[Expression]:
    match operator:
        case Select(predicate=predicate):
            yield predicate
        case Join(predicate=predicate) | Nest(predicate=predicate):
            if predicate is not None:
                yield predicate
        case Project(outputs=outputs):
            yield from (each.expression for each in outputs)
        case WindowAggregate(keys=keys, aggregates=aggregates):
            yield from (each.expression for each in keys)
            yield from (each.argument for each in aggregates if each.argument is not None)
