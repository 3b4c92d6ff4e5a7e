"""The last step of a WXQuery, at the subscriber's peer: rows become fragments of an XML document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from queries.compile import on_row as value_on_row
from queries.expressions import Column, Constant, Expression, Named, columns_of
from queries.expressions import rewritten as expression_rewritten
from queries.functions import call
from queries.plan import Choice, Each, Element, Output, Project, Restructure, Template, Union
from queries.schema import Row
from queries.xml import append_element, text_of

Columns = tuple[Column, ...]
BRANCH: Final = "branch"  # The column that names a row's branch of a union.
_Writer = Callable[[Row, list[str]], None]  # Appends the pieces of a text.


def on_row(operator: Restructure) -> Callable[[Row], str]:
    """The fragment of a row, without the envelope, which opens once for all rows.

    >>> from queries.plan import Project, Source
    >>> from queries.expressions import Named
    >>> from queries.schema import Schema
    >>> energy = Column("p", ("en",), "decimal")
    >>> rows = Project(Source("photons", "p", Schema.parse("en decimal")), (Named("en", energy),))
    >>> on_row(Restructure(rows, (Element("hit", (Output(Column("", ("en",), "decimal"), "en"),)),)))((1.3,))
    '<hit><en>1.3</en></hit>'
    """
    write = _all(operator.content, operator.input.columns)

    def fragment(row: Row) -> str:
        pieces: list[str] = []
        write(row, pieces)
        return "".join(pieces)

    return fragment


def on_batch(operator: Restructure) -> Callable[[Sequence[Row]], list[Row]]:
    """The results of rows: their fragments. An empty fragment is no result, as in a sequence of XQuery."""
    fragment = on_row(operator)
    return lambda rows: [(text,) for row in rows if (text := fragment(row))]


def document(envelope: tuple[str, ...], fragments: Iterable[str]) -> str:
    """The whole result of a query whose streams have ended.

    >>> document(("photons",), ["<hit/>", "<hit/>"])
    '<photons><hit/><hit/></photons>'
    """
    opened = "".join(f"<{tag}>" for tag in envelope)
    closed = "".join(f"</{tag}>" for tag in reversed(envelope))
    return f"{opened}{''.join(fragments)}{closed}"


# Looking at templates.


def expressions_in(content: Iterable[Template]) -> Iterator[Expression]:
    """Every expression of templates, in the order of the text."""
    for template in content:
        match template:
            case Element(content=inner):
                yield from expressions_in(inner)
            case Output(expression=expression):
                yield expression
            case Choice(condition=condition, then=then, otherwise=otherwise):
                yield condition
                yield from expressions_in((*then, *otherwise))
            case Each(over=over, where=where, content=inner):
                yield over
                if where is not None:
                    yield where
                yield from expressions_in(inner)


def loops_in(content: Iterable[Template]) -> Iterator[Each]:
    """Every loop of templates, the outer before the inner."""
    for template in content:
        match template:
            case Element(content=inner):
                yield from loops_in(inner)
            case Choice(then=then, otherwise=otherwise):
                yield from loops_in((*then, *otherwise))
            case Each(content=inner):
                yield template
                yield from loops_in(inner)


def columns_in(content: tuple[Template, ...]) -> tuple[Column, ...]:
    """The columns that templates need of their input, each once, without the variables of loops."""
    variables = [loop.variable for loop in loops_in(content)]
    columns = (column for expression in expressions_in(content) for column in columns_of(expression))
    return tuple(dict.fromkeys(column for column in columns if column.input not in variables))


def rewritten(content: Iterable[Template], change: Callable[[Expression], Expression]) -> tuple[Template, ...]:
    """Templates with a change applied to each node of each expression."""

    def changed(template: Template) -> Template:
        match template:
            case Element(tag=tag, content=inner):
                return Element(tag, rewritten(inner, change))
            case Output(expression=expression, tag=tag):
                return Output(expression_rewritten(expression, change), tag)
            case Choice(condition=condition, then=then, otherwise=otherwise):
                test = expression_rewritten(condition, change)
                return Choice(test, rewritten(then, change), rewritten(otherwise, change))
            case Each(variable=variable, over=over, where=where, content=inner):
                only = None if where is None else expression_rewritten(where, change)
                return Each(variable, expression_rewritten(over, change), only, rewritten(inner, change))

    return tuple(map(changed, content))


def one_shape(plan: Union) -> Restructure:
    """A union of XML as XML of a union: each row names its branch, and is null in the columns of the others."""
    shapes = [each for each in plan.branches if isinstance(each, Restructure)]
    own = [tuple(named for named in _outputs(each)) for each in shapes]
    bodies, content = [], []
    for number, shape in enumerate(shapes):
        names = {each.name: f"b{number}_{place}" for place, each in enumerate(own[number])}
        outputs = [Named(BRANCH, Constant.of(number))]
        for other, theirs in enumerate(own):
            for place, each in enumerate(theirs):
                value = each.expression if other == number else Constant.of(None)
                outputs.append(Named(f"b{other}_{place}", value))
        assert isinstance(shape.input, Project)
        bodies.append(Project(shape.input.input, tuple(outputs)))
        is_own = call("=", Column("", (BRANCH,), "int"), Constant.of(number))
        content.append(Choice(is_own, rewritten(shape.content, partial(_moved, names=names))))
    return Restructure(Union(tuple(bodies)), tuple(content), shapes[0].envelope)


def _outputs(shape: Restructure) -> tuple[Named, ...]:
    assert isinstance(shape.input, Project), "the shape of rows is made of just the columns it needs"
    return shape.input.outputs


def _moved(node: Expression, names: Mapping[str, str]) -> Expression:
    if not isinstance(node, Column) or node.input:
        return node
    return msgspec.structs.replace(node, path=(names[node.path[0]], *node.path[1:]), nullable=True)


# Writing.


def _all(content: tuple[Template, ...], columns: Columns) -> _Writer:
    writers = [_writer(template, columns) for template in content]

    def write(row: Row, pieces: list[str]) -> None:
        for each in writers:
            each(row, pieces)

    return write


def _writer(template: Template, columns: Columns) -> _Writer:
    match template:
        case Element(tag=tag, content=content):
            return _element(tag, content, columns)
        case Output():
            return _output(template, columns)
        case Choice(condition=condition, then=then, otherwise=otherwise):
            return _choice(value_on_row(condition, columns), _all(then, columns), _all(otherwise, columns))
        case Each():
            return _each(template, columns)


def _element(tag: str, content: tuple[Template, ...], columns: Columns) -> _Writer:
    if not content:
        return lambda _, pieces: pieces.append(f"<{tag}/>")
    inside = _all(content, columns)

    def write(row: Row, pieces: list[str]) -> None:
        pieces.append(f"<{tag}>")
        inside(row, pieces)
        pieces.append(f"</{tag}>")

    return write


def _output(output: Output, columns: Columns) -> _Writer:
    expression, tag = output.expression, output.tag
    value = value_on_row(expression, columns)
    fields = expression.fields if isinstance(expression, Column) else ()

    def write(row: Row, pieces: list[str]) -> None:
        if (found := value(row)) is not None:
            if tag:
                append_element(pieces, tag, found, fields)
            else:
                pieces.append(text_of(found))

    return write


def _choice(condition: Callable[[Row], Any], then: _Writer, otherwise: _Writer) -> _Writer:
    def write(row: Row, pieces: list[str]) -> None:
        (then if condition(row) is True else otherwise)(row, pieces)

    return write


def _each(loop: Each, columns: Columns) -> _Writer:
    assert isinstance(loop.over, Column), "a loop goes through the items of a window"
    records = value_on_row(loop.over, columns)
    own = tuple(Column(loop.variable, (f.name,), f.type, f.nullable, f.fields) for f in loop.over.fields)
    where = None if loop.where is None else value_on_row(loop.where, columns + own)
    content = _all(loop.content, columns + own)

    def write(row: Row, pieces: list[str]) -> None:
        for record in records(row):
            inner = row + record
            if where is None or where(inner) is True:
                content(inner, pieces)

    return write
