"""XML items and their records: there and back, and what is refused, with its place."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queries.schema import Field, Schema
from queries.xml import ITEM_BYTES_MAX, ItemReader, XmlError, read_document, read_item, write_item
from tests.queries.edges import edges
from tests.queries.wx_streams import ALERTS, PHOTONS, alert, photon
from tests.seeds import draw_seed

# Every character that XML can say.
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"))
VALUES = {
    "int": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "decimal": edges(),
    "string": TEXTS | st.sampled_from(["\t\n", " a ", "\r\n", "]]>", "&amp;"]),
    "bool": st.booleans(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "bytes": st.binary(),
}


def fields(depth: int) -> st.SearchStrategy[tuple[Field, ...]]:
    kinds = st.sampled_from([*VALUES, *(["record"] if depth else [])])

    @st.composite
    def field(draw, number: int):
        kind = draw(kinds)
        return Field(f"f{number}", kind, draw(st.booleans()), draw(fields(depth - 1)) if kind == "record" else ())

    return st.integers(1, 4).flatmap(lambda count: st.tuples(*(field(number) for number in range(count))))


def values(each: Field) -> st.SearchStrategy:
    inner = st.tuples(*map(values, each.fields)) if each.fields else VALUES[each.type]
    return inner | st.none() if each.nullable else inner


@given(st.data())
def test_a_row_written_and_read_is_the_same_row(data: st.DataObject):
    schema = Schema(data.draw(fields(2)))
    row = tuple(data.draw(values(each)) for each in schema.fields)
    assert read_item(write_item(row, schema), schema) == row


def test_floats_that_are_no_number_are_written_as_xml_schema_does():
    schema = Schema.parse("x float, y float, z float")
    assert write_item((math.inf, -math.inf, math.nan), schema) == "<item><x>INF</x><y>-INF</y><z>NaN</z></item>"


def test_what_xml_has_no_character_for_is_replaced():
    schema = Schema.parse("s string")
    assert write_item(("a\x00b\x1bc\ud800\ufffe",), schema) == "<item><s>a\ufffdb\ufffdc\ufffd\ufffd</s></item>"


def test_equal_decimals_are_written_alike():
    schema = Schema.parse("d decimal")
    texts = {write_item((Decimal(text),), schema, "i") for text in ("1.5", "1.50", "15E-1", "0.15E+1")}
    assert texts == {"<i><d>1.5</d></i>"}
    assert write_item((Decimal("-0.00"),), schema, "i") == "<i><d>0</d></i>"


def test_space_comments_order_and_attributes_do_not_matter():
    schema = Schema.parse("a int, b record(c string, d bool)")
    text = """<?xml version="1.0" encoding="UTF-8"?>
    <!-- one --> <item a=" 7 ">
      <b> <d> true <!-- two --> </d> <c> kept <![CDATA[<as is>]]> </c> </b>
    </item>"""
    assert read_item(text, schema) == (7, (" kept <as is> ", True))


def test_a_nullable_field_may_be_left_out_or_empty():
    schema = Schema.parse("a int null, s string null, r record(x int null) null")
    assert read_item("<i/>", schema) == (None, None, None)
    assert read_item("<i><a/><s/><r/></i>", schema) == (None, "", (None,))


REFUSED = {
    "<i><a>1</a><a>2</a></i>": 'line 1, column 12: "a" is in "i" twice',
    "<i a='1'><a>2</a></i>": 'line 1, column 10: "a" is in "i" twice',
    "<i>\n  <aa>1</aa></i>": 'line 2, column 3: "i" has no element "aa"',
    "<i>\n<a>one</a></i>": 'line 2, column 1: "a": expected int of 64 bits, got string "one"',
    "<i><a>1</a></i>": 'line 1, column 1: "r": expected a record of 1 fields, got nothing',
    "<i><a>1</a><r/></i>": 'line 1, column 1: "r.x": expected float, got nothing',
    "<i><a>1</a>\n<r>\n<x>y</x></r></i>": 'line 3, column 1: "r.x": expected float, got string "y"',
    "<i><a><b/></a></i>": 'line 1, column 7: "a" holds a value, and no elements like "b"',
    "<i r='1'/>": 'line 1, column 1: "r" holds elements, and no attribute can',
    "<i>text</i>": 'line 1, column 4: there is text in "i", beside its elements',
    "<i><a>1</b></i>": "line 1, column 10: mismatched tag",
    "<i>": "line 1, column 4: no element found",
    "": "line 1, column 1: no element found",
    "<i><a>&lol;</a></i>": "line 1, column 7: undefined entity",
    "<i><a>1</a><r><x>1</x></r></i><i/>": "line 1, column 31: junk after document element",
    '<!DOCTYPE i [<!ENTITY lol "lol">]><i/>': "line 1, column 13: document types are not allowed",
    '<!DOCTYPE i SYSTEM "file:///etc/hostname"><i/>': "line 1, column 42: document types are not allowed",
}


@pytest.mark.parametrize(("text", "problem"), REFUSED.items())
def test_what_is_no_item_is_refused_with_its_place(text: str, problem: str):
    with pytest.raises(XmlError) as refused:
        read_item(text, Schema.parse("a int, r record(x float)"))
    assert str(refused.value).splitlines()[0] == problem


def test_an_unknown_element_has_the_nearest_name_as_a_hint():
    with pytest.raises(XmlError, match='did you mean "det_time"'):
        read_item("<photon><dettime>1</dettime></photon>", PHOTONS.schema)


def test_items_have_a_size_and_so_has_what_is_not_yet_one():
    schema = Schema.parse("s string")
    long = "x" * ITEM_BYTES_MAX
    for text in (f"<d><i><s>{long}</s></i></d>", f"<d><i><{long}", f"<d><i a='{long}", f"<d><!--{long}", long):
        with pytest.raises(XmlError):
            read_document(text, schema)
    with pytest.raises(XmlError):
        read_document("<d>" + "<i>" * 100_000, schema)
    many = "<d>" + f"<i><s>{'x' * 1000}</s></i>" * 2000 + "</d>"  # Together they may be longer.
    assert len(read_document(many, schema)) == 2000


@given(st.lists(st.integers(0, 400), max_size=6))
def test_items_are_the_same_however_their_bytes_arrive(cuts: list[int]):
    rows = [photon("1.3", "7"), photon("0.25", "8", ra="1.125")]
    text = f"<photons>{''.join(write_item(row, PHOTONS.schema, 'photon') for row in rows)}</photons>".encode()
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    reader = ItemReader(PHOTONS.schema)
    read = [row for start, end in pairwise(places) for row in reader.feed(text[start:end])]
    assert read + reader.close() == rows


def test_mutated_items_give_a_row_or_our_error():
    seed = draw_seed()
    rng = random.Random(seed)
    row = alert(1, note="é", spot={"x": 1}, raw="AAEC")
    text = write_item(row, ALERTS.schema).encode()
    read = 0
    for _ in range(3_000):
        piece = bytearray(text)
        for _ in range(rng.choice((1, 2, 5))):
            at = rng.randrange(len(piece))
            piece[at : at + rng.randrange(3)] = rng.choice(
                (b"", b"<", b">", b"/", b"&", b"\xff", b"0", b"<x/>", b"\x00")
            )
        try:
            assert len(read_item(bytes(piece), ALERTS.schema)) == len(row)
            read += 1
        except XmlError:
            pass  # Most of them.
    assert read


def test_the_date_is_the_one_that_was_written():
    schema = Schema.parse("at timestamp")
    assert read_item("<i><at>2026-01-02T03:04:05+01:00</at></i>", schema) == (
        datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC),
    )
