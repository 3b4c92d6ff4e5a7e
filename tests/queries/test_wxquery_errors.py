"""What WXQuery says to a text it cannot take: the place, what was expected, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from queries import wxquery
from queries.errors import QueryError
from tests.queries.wx_streams import ALERT, PHOTON, STREAMS

GOLDEN = Path(__file__).parent / "errors_wxquery.golden"


def refusal(text: str) -> str:
    with pytest.raises(QueryError) as refused:
        wxquery.plan(text, STREAMS)
    return str(refused.value)


def test_the_errors_are_those_that_were_read_and_found_helpful(rewrite: bool):
    texts = [case.partition("\n----\n")[0] for case in GOLDEN.read_text().split("====\n")]
    said = "====\n".join(f"{text}\n----\n{refusal(text)}\n" for text in texts)
    if rewrite:
        GOLDEN.write_text(said)
    assert said == GOLDEN.read_text()
    assert len(texts) >= 12


REFUSED = {
    "": "the query is empty",
    "<a/>": '"<a/>" holds no stream, so it has no results',
    "()": "an empty sequence has no results",
    "$p/en": 'unknown variable "$p"',
    'for $p in doc("photons")/photons/photon return $p': 'unknown function "doc"',
    'for $p in stream("photons")/photons[en > 1]/photon return $p': "a document that never ends cannot be tested",
    "for $p in PHOTON return $p/en/x": '"en" holds a decimal and no elements',
    "for $p in PHOTON where 1 < 2 return $p": "the comparison has no path",
    "for $p in PHOTON where $p/en = maybe() return $p": 'unknown function "maybe" in a condition',
    "for $p in PHOTON where $p/en > 9223372036854775808 return $p": "the number does not fit 64 bits",
    f"for $p in PHOTON where $p/en > {'9' * 50}.5 return $p": "a number has at most 38 digits",
    "for $a in ALERT where $a/level + 1 > 2 return $a": "+ does not take string and int",
    "for $w in PHOTON |count 0| return $w": "a window and its step are larger than zero",
    "for $w in PHOTON |count 2 step -1| return $w": "a window and its step are larger than zero",
    "for $w in ALERT |level diff 2| return $w": '"level" is a string; a window is controlled by a number or a time',
    "for $w in ALERT |at diff 0.0000001| return $w": "a window of time has seconds, from a microsecond to 30 years",
    "for $w in PHOTON |count 2| let $a := max($w) return $a": "max needs an element with a value",
    "for $w in PHOTON |count 2| let $a := max($w/en) return $a/x": "an aggregate is a value and has no elements inside",
    "for $w in PHOTON |count 2| let $a := max($w/en) for $x in $a return $x": '"$a" is a single value',
    "for $w in PHOTON |count 2| let $m := max($w/phc) let $n := count($w/coord[det/dx > $m]) return $n": (
        "an aggregate is computed from its window alone"
    ),
    "for $p in PHOTON return <x> { for $a in ALERT return <y> { PHOTON } </y> } </x>": (
        "a stream inside a result holds no stream of its own"
    ),
    "for $w in PHOTON |count 2| for $a in ALERT for $x in $w |count 2| return $x": "only a stream has windows",
    "for $p in PHOTON for $w in ALERT[id = $p/phc] |count 2| return $w": (
        "the items of a window are chosen by what is in them alone"
    ),
    "for $w in PHOTON |count 2| for $x in $w for $x in ALERT return $x": '"$x" goes through a window already',
    "for $w in PHOTON |count 2| for $x in $w for $a in ALERT[id = $x/phc] return $x": (
        "a condition on the items of a window stands in where"
    ),
    " ".join(f"for $p{n} in PHOTON" for n in range(33)) + " return $p0": (
        "the query reads 33 streams; at most 32 are allowed"
    ),
    " " * 65_537: "the text has 65,537 characters",
}


@pytest.mark.parametrize(("text", "problem"), REFUSED.items())
def test_what_has_no_meaning_is_refused_with_the_reason(text: str, problem: str):
    text = text.replace("PHOTON", PHOTON).replace("ALERT", ALERT)
    assert refusal(text).splitlines()[0].partition(": ")[2] == problem


@pytest.mark.parametrize(
    "text",
    [
        "(" * 70 + PHOTON + ")" * 70,
        "<a>" * 70 + "{ " + PHOTON + " }" + "</a>" * 70,
        f"for $p in {PHOTON} return " + "if $p/en > 1 then $p else " * 100 + "()",
        f"for $p in {PHOTON} return " + "for $p in $p return " * 100 + "$p",
        f"for $p in {PHOTON} " + "for $p in $p " * 100 + "return $p",
        f"for $p in {PHOTON} where " + "(" * 500 + "$p/en > 1" + ")" * 500 + " return $p",
    ],
)
def test_depth_is_refused_before_anything_goes_down_into_it(text: str):
    assert "the query is nested more than 64 deep" in refusal(text)


@pytest.mark.parametrize("opening", ["(", "<a>", "<a>{", "for $p in ", "if ", "where (", '"', "(:", "[", "|"])
def test_a_text_that_only_opens_is_refused_quickly(opening: str):
    refusal((opening * 65_536)[:65_536])


def test_long_texts_within_the_limits_are_taken():
    condition = " and ".join(f"$p/en > {number}.0" for number in range(380))
    assert wxquery.plan(f"for $p in {PHOTON} where {condition} return $p/en", STREAMS).query_class == "select"
    result = "".join(f"<e{number}> {{ $p/en }} </e{number}>" for number in range(180))
    assert wxquery.plan(f"for $p in {PHOTON} return <all> {result} </all>", STREAMS).query_class == "select"
