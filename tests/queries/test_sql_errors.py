"""What SQL says to a text it cannot take: the place, what was expected, and what to do."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from queries import sql, sql_streams
from queries.errors import QueryError
from tests.queries.sql_corpus import streams

GOLDEN = Path(__file__).parent / "errors_sql.golden"
KNOWN = streams()


def refusal(text: str) -> QueryError:
    read = sql_streams.read if text.startswith(("CREATE", "DROP")) else partial(sql.plan, streams=KNOWN)
    with pytest.raises(QueryError) as refused:
        read(text)
    return refused.value


def test_the_errors_are_those_that_were_read_and_found_helpful(rewrite: bool):
    texts = [case.partition("\n----\n")[0] for case in GOLDEN.read_text().split("====\n")]
    said = "====\n".join(f"{text}\n----\n{refusal(text)}\n" for text in texts)
    if rewrite:
        GOLDEN.write_text(said)
    assert said == GOLDEN.read_text()
    assert len(texts) >= 18
