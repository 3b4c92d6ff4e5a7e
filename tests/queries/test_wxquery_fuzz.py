"""Mutated WXQuery texts: a plan, or our own error with a place in the text; never anything else."""

from __future__ import annotations

import random
import re
from xml.parsers import expat

import msgspec
import pytest

from queries import wxquery
from queries.errors import QueryError
from queries.plan import Operator
from tests.queries.wx_streams import ALERT, PHOTON, STREAMS, alert, photon, results
from tests.queries.wx_texts import Q1, Q3, Q4
from tests.seeds import draw_seed
from tests.soaking import many

TEXTS = (
    Q1,
    Q3,
    Q4,
    f"""for $w in {PHOTON} |count 20 step 10| let $n := count($w) for $x in $w/coord[det/dx > 1]
    where $n > 2 and $x/det/dy = $n - 1 return ($x, $n)""",
    f"""for $p in {PHOTON} for $a in {ALERT}[id = $p/phc] where $a/level = "red" and $p/en < $a/en + 1.5
    return <pair> {{ $p/en }} {{ if $a/seen = true() then <seen/> else () }} </pair>""",
    f"<all> {{ {PHOTON}[en >= 1.3]/coord/cel }} {{ for $a in {ALERT}/spot return $a/x }} </all>",
    f"""for $w in {ALERT} |count 2| let $n := count($w/spot[x > 1]) let $m := min($w/id)
    return <w> {{ for $x in $w for $y in $x/spot[x > $m]
      where $y/x > $n - 2 return ($y, if $n = 1 then $x/id else ()) }} </w>""",
    f"for $w in {ALERT} |at diff 60| return <w> {{ let $m := max($w/at) return $m }} {{ $w/note }} </w>",
)
WORD = re.compile(r"\$?[\w.-]+|\s+|[^\w\s]")
STRANGE = ("\x00", "é", "𝄞", "--", "<!--", "&lt;", "9" * 50)
PIECES = (*sorted({word for text in TEXTS for word in WORD.findall(text)}), *STRANGE)


def mutated(text: str, rng: random.Random) -> str:
    words = WORD.findall(text)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(words) + 1)
        to = min(len(words), at + rng.choice((0, 1, 1, 2, 6)))
        match rng.randrange(6):
            case 0:
                del words[at:to]
            case 1:
                words[at:at] = [rng.choice(PIECES)]
            case 2:
                words[at:to] = [rng.choice(PIECES)]
            case 3:
                words[at:at] = words[at:to] * rng.choice((1, 2, 40))
            case 4:
                start = rng.randrange(len(words) + 1)
                words[at:at] = words[start : start + 5]
            case _:
                letters = list("".join(words))
                if letters:
                    letters[rng.randrange(len(letters))] = rng.choice("<>{}()[]|$/\"'=:,+-. \nax0_\x7f\ud800")
                words = WORD.findall("".join(letters))
    return "".join(words)


def fuzz(count: int, seed: int) -> None:
    print(f"seed={seed}")
    rng = random.Random(seed)
    planned = 0
    for number in range(count):
        text = mutated(rng.choice(TEXTS), rng)
        refused = None
        try:
            wxquery.plan(text, STREAMS)
            planned += 1
        except QueryError as error:
            refused = error
        except Exception as error:
            raise AssertionError(f"seed={seed}, text {number}: {text!r}") from error
        if refused is not None:
            assert 0 <= refused.span.start <= refused.span.end <= len(text), (number, text)
            assert text.splitlines()[refused.line - 1 : refused.line] or refused.span.start == len(text), (number, text)
    print(f"{planned} of {count} mutated texts are still queries")
    assert 0 < planned < count


def test_what_is_still_a_query_gives_xml_whatever_the_rows():
    seed = draw_seed()
    rng = random.Random(seed)
    photons = [photon(f"{n}.5", f"{n * 7}", ra=f"{110 + 5 * n}", phc=n) for n in range(6)]
    alerts = [alert(n, n * 20, level="red", note="<&>" if n % 2 else None, spot={"x": n}) for n in range(5)]
    fragments = 0
    for _ in range(800):
        text = mutated(rng.choice(TEXTS), rng)
        try:
            plan = wxquery.plan(text, STREAMS).plan
        except QueryError:
            continue
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Operator) == plan, text
        for fragment in results(plan, photons=photons, alerts=alerts):
            expat.ParserCreate("utf-8").Parse(f"<r>{fragment}</r>".encode(), True)
            fragments += 1
    assert fragments


def test_mutated_texts_give_a_plan_or_our_error():
    fuzz(1_000, draw_seed())


@pytest.mark.slow
@pytest.mark.parametrize("group", range(4))
def test_many_mutated_texts_give_a_plan_or_our_error(group: int):
    fuzz(many(8_000, 50_000), draw_seed())
