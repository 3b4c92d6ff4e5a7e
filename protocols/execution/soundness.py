"""Checks a subgraph that another peer has sent, before this peer makes anything of it."""

from __future__ import annotations

from protocols.execution.cut import runs_inline
from protocols.execution.flow_rows import encode_rows
from protocols.subgraphs import FlowInput, Inline, Spark, StreamInput, Subgraph
from queries.plan import Operator, Restructure, Source, sources, walk
from queries.sound import UnsoundPlan, check_plan


def unsound_subgraph(subgraph: Subgraph) -> str:
    """Why a subgraph is refused: no proxy of ours sends such a one. Empty: it is sound."""
    try:
        check_plan(subgraph.plan)
    except UnsoundPlan as error:
        return f"its plan makes no sense: {error}"
    by_alias = {each.alias: each for each in sources(subgraph.plan)}
    if sorted(each.alias for each in subgraph.inputs) != sorted(by_alias):
        return "its inputs are not those of its plan"
    if isinstance(subgraph.engine, Inline) and not runs_inline(subgraph.plan, "inline"):
        return "its plan has state, which only an engine of its own can keep"
    if isinstance(subgraph.engine, Spark) and any(isinstance(each, Restructure) for each in walk(_run(subgraph))):
        return "an engine makes no XML"
    for each in subgraph.inputs:
        if problem := _unsound_input(subgraph, by_alias[each.alias], each):
            return f"its input {each.alias[:100]} makes no sense: {problem}"
    return "" if subgraph.consumer is None else _unsound_output(subgraph)


def _run(subgraph: Subgraph) -> Operator:
    """What the engine runs of a plan."""
    return subgraph.plan.input if isinstance(subgraph.plan, Restructure) else subgraph.plan


def _unsound_input(subgraph: Subgraph, source: Source, each: StreamInput | FlowInput) -> str:
    has_mark = source.schema.fields[-1].type == "bool"
    match each:
        case StreamInput() if each.event_time != source.event_time:
            return "its event time is not that of its source"
        case StreamInput() if subgraph.tells_old and (not has_mark or len(source.schema.fields) < 2):
            return "its rows cannot say whether they are new"
        case FlowInput(is_mixed=True) if not has_mark:
            return "its rows do not say whether they are new"
    return ""


def _unsound_output(subgraph: Subgraph) -> str:
    """Rows for another subgraph end with their time."""
    columns = _run(subgraph).columns
    try:
        encode_rows(columns, ())
    except ValueError as error:
        return f"its rows cannot travel: {error}"
    if columns[-1].type != "timestamp" or columns[-1].nullable:
        return "its rows do not end with their time"
    if subgraph.tells_old and (len(columns) < 3 or columns[-2].type != "bool"):
        return "its rows do not say whether they are new"
    return ""
