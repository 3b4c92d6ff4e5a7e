"""Expressions as Spark columns; each function uses the form from its definition in queries/."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as sf

from queries.expressions import Column, Expression
from queries.functions import rendered
from spark_jobs.types import place_name


def column_of(expression: Expression, columns: Sequence[Column]) -> SparkColumn:
    """An expression over rows with these columns; raises NoForm if Spark cannot express it."""
    column: SparkColumn = rendered(expression, sf, lambda each: field_of(each, columns))
    return column


def is_true(predicate: Expression, columns: Sequence[Column]) -> SparkColumn:
    """Whether a predicate is true, not false or unknown."""
    return sf.coalesce(column_of(predicate, columns), sf.lit(False))


def field_of(column: Column, columns: Sequence[Column]) -> SparkColumn:
    """A column of a row, or a field inside its records; null below a record that is null."""
    head = (column.input, column.path[:1])
    place = next(place for place, each in enumerate(columns) if (each.input, each.path) == head)
    found, fields = sf.col(place_name(place)), columns[place].fields
    for name in column.path[1:]:
        inner = next(inner for inner, each in enumerate(fields) if each.name == name)
        found, fields = found.getField(place_name(inner)), fields[inner].fields
    return found
