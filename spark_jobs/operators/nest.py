"""Nesting: each row once, with a list of the other rows that were there when it came."""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as sf

from queries.expressions import conjuncts
from queries.plan import Nest
from spark_jobs.expressions import column_of
from spark_jobs.flow import ARRIVAL, ENTER, HIDDEN, LEAVE, TIME, Flow
from spark_jobs.operators.join import beside, right_name
from spark_jobs.types import CLOSED, DUE, IS_NEW, KEEP, NUMBER, data_type, place_name

_ROW: Final = "row"


def nest(plan: Nest, rows: Flow, nested: Flow, closed_until_us: int | None) -> Flow:
    """Batch only. A row was told before if it is not new and was due by then."""
    one = rows.frame.filter(sf.col(KEEP)).withColumn(_ROW, sf.monotonically_increasing_id())
    first = len(rows.columns)
    other = beside(nested.frame.filter(sf.col(KEEP)), nested, first)
    conditions = [column_of(part, (*rows.columns, *nested.columns)) for part in conjuncts(plan.predicate)]
    both = one.join(other, reduce(SparkColumn.__and__, [*_was_there(), *conditions]), "left")
    record = sf.struct(
        *(sf.col(place_name(first + place)).alias(place_name(place)) for place in range(len(nested.columns)))
    )
    placed = sf.struct(sf.col(right_name(TIME)), sf.col(right_name(ARRIVAL)), record.alias("record"))
    found = sf.array_sort(sf.collect_list(sf.when(sf.col(right_name(NUMBER)).isNotNull(), placed)))
    kind = data_type("list", plan.columns[-1].fields)
    own = [place_name(place) for place in range(first)]
    newest = sf.greatest(sf.first(NUMBER), sf.max(right_name(NUMBER)))
    grouped = both.groupBy(_ROW).agg(
        *(sf.first(name).alias(name) for name in (*own, *HIDDEN) if name != NUMBER),
        newest.alias(NUMBER),
        sf.transform(found, lambda each: each.getField("record")).cast(kind).alias(place_name(first)),
    )
    is_new = sf.col(IS_NEW)
    if closed_until_us is not None:
        is_new = is_new | (sf.unix_micros(TIME) > sf.lit(closed_until_us))
    told = {IS_NEW: is_new, DUE: sf.greatest(sf.col(DUE), sf.col(TIME))}
    frame = grouped.withColumns(told).select(*own, place_name(first), *HIDDEN)
    return rows.changed(frame, columns=plan.columns, is_aggregate=False)


def _was_there() -> list[SparkColumn]:
    """Whether a row of the list was in its window when the other came, and was not late itself."""
    enter, arrival = sf.col(ENTER), sf.col(ARRIVAL)
    came, with_arrival = sf.col(right_name(ENTER)), sf.col(right_name(ARRIVAL))
    before = (came < enter) | ((came == enter) & (with_arrival <= arrival))
    closed = sf.col(right_name(CLOSED))
    in_time = (with_arrival <= arrival) | closed.isNull() | (closed < sf.col(TIME))
    return [before, enter < sf.col(right_name(LEAVE)), in_time]
