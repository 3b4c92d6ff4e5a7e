"""How long the text of a query may be: a peer reads it in one event, and answers nobody meanwhile."""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from queries.errors import QueryError, Span

TEXT_MAX: Final = 64 * 1024  # Characters.
WORDS_MAX: Final = 2_400  # Words, numbers and signs; a list of a thousand values has two thousand.
_WORD: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|\d[\w.]*|\$?\w+|[<>=!|:]{2}|[^\w\s]""")


def check_size(text: str) -> None:
    """Raise QueryError if a text is too long."""
    if len(text) > TEXT_MAX:
        raise QueryError(f"the text has {len(text):,} characters", text, Span(0, 1), expected=f"at most {TEXT_MAX:,}")
    beyond = next(islice(_WORD.finditer(text), WORDS_MAX, None), None)
    if beyond is not None:
        problem = f"the text has more than {WORDS_MAX:,} words and signs"
        hint = "a long list of values is better a stream of its own, to join with"
        raise QueryError(problem, text, Span(*beyond.span()), hint=hint)
