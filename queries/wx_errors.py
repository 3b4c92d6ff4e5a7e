"""Explains a parser error in a WXQuery text to the person who wrote it."""

from __future__ import annotations

import re
from typing import Final

from lark import UnexpectedInput, UnexpectedToken

from queries.errors import QueryError, Span

_WORDS: Final = ("for", "in", "let", "where", "return", "if", "then", "else", "and", "step", "diff")
_SAID: Final = {
    "VARIABLE": "a variable like $p",
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "a text in quotes",
    "COUNT": '"count"',
    "COMPARE": "a comparison (=, <, <=, >, >=)",
    "SIGN": "a sign",
    "LESSTHAN": "an element like <a>",
    "MORETHAN": '">"',
    "SLASH": '"/"',
    "__ANON_0": "a closing tag",
    "__ANON_1": '":="',
    "LBRACE": '"{"',
    "RBRACE": '"}"',
    "LPAR": '"("',
    "RPAR": '")"',
    "LSQB": '"["',
    "RSQB": '"]"',
    "VBAR": '"|"',
    "COMMA": '","',
    "$END": "the end",
} | {word.upper(): f'"{word}"' for word in _WORDS}

_CONJUNCTIONS: Final = "a condition is a conjunction of comparisons with =, <, <=, > and >="

_INSTEAD: Final = "in place of it, write a sequence of queries that exclude each other: ( …, … )"

# What people write by habit from other languages, as patterns for the text before the error and from it on.
_KNOWN: Final = tuple(
    (re.compile(before), re.compile(after), hint)
    for before, after, hint in (
        (r"\bnot\s*\(?\s*$", r"", _CONJUNCTIONS),
        (r"\b(min|max|sum|count|avg)\s*\(\s*$", r"\$", "an aggregate is computed by let: let $a := avg($w/en)"),
        (r"\b(return|then|else)\s*$", r"\{", "braces stand inside an element; here the expression stands alone"),
        (r"", r"or\b", f"{_CONJUNCTIONS}; {_INSTEAD}"),
        (r"", r"(!=|<>)|ne\b", f"{_CONJUNCTIONS}; {_INSTEAD}"),
        (r"", r"(eq|lt|le|gt|ge)\b", "write =, <, <=, >, >="),
        (r"=$", r"=", "equality is one ="),
        (r"/$", r"/", "only the child axis: name each element on the way, as in /photons/photon"),
        (r"/$", r"(\*|@)", "only the child axis: no wildcard and no attribute; name the element"),
        (r"/$", r"\.\.", "only the child axis: a path goes down, never up"),
        (r"<[\w.-]+\s+$", r"[\w.-]+\s*=", "results have no attributes; make it an element inside"),
        (r"<[\w.-]+$", r":", "names have no namespace"),
        (
            r"(</?[\w.-]+\s*>|/>|\})\s*$",
            r"[^\s<{]",
            "there is no text between tags: an element holds elements and { expressions }",
        ),
        (r"\bfor\b[^{}]*$", r",", 'each variable has a "for" of its own: for $a in … for $b in …'),
        (r"\{[^{}]*$", r",", "a sequence is written in parentheses: { ( …, … ) }"),
        (r"\blet\s+\$[\w-]+\s*$", r"=", "let takes :="),
        (r"\b(FOR|LET|IF|RETURN|WHERE|IN)\s*$", r"", "the words of the language are written in small letters"),
        (r"\|\s*(count|[\w./-]+\s+diff)\s*[\d.]+\s*$", r"[a-zA-Z]", "a window has no unit: |count 20 step 10|"),
        (
            r"(\[|\b(where|and|if)\b)[^\[\]]*[\w.-]$",
            r"\[",
            "a path in a condition has no conditions of its own; join them with and",
        ),
        (r"", r"order\b", "the results of a stream come in the order of its items"),
        (r"", r"[\"']([^\"']*)$", "the text in quotes does not end"),
        (r"\($", r":", "the comment does not end with :)"),
        (r"", r"\$?[^\x00-\x7f]", "names have letters from a to z, digits, _, - and ."),
    )
)


def syntax_error(text: str, error: UnexpectedInput) -> QueryError:
    """The error to show, with what was expected, and a hint for a known mistake."""
    start = len(text.rstrip()) if _at_end(error) else int(error.pos_in_stream or 0)
    accepted = _accepted(error)
    blamed = _word_before(text, start) if "SLASH" in accepted else None
    if blamed is not None:  # A keyword was read as an element's name.
        start, accepted = blamed, ["VARIABLE", "NUMBER", "STRING"]
    found = _found(text, start)
    hint = next((hint for before, after, hint in _KNOWN if _fits(text, start, before, after)), "")
    quoted = f"'{found}'" if found == '"' else f'"{found}"'
    problem = f"unexpected {quoted}" if found else "the query ends too early" if start else "the query is empty"
    return QueryError(problem, text, Span(start, start + max(1, len(found))), expected=_listed(accepted), hint=hint)


def _at_end(error: UnexpectedInput) -> bool:
    return isinstance(error, UnexpectedToken) and error.token.type == "$END"


def _accepted(error: UnexpectedInput) -> list[str]:
    return sorted(error.interactive_parser.accepts())  # type: ignore[no-untyped-call]


def _word_before(text: str, start: int) -> int | None:
    before = re.search(r"(?<![$/\w.-])([a-z]+)\s*$", text[max(0, start - 100) : start])
    if before is None or before[1] not in _WORDS:
        return None
    return max(0, start - 100) + before.start()


def _found(text: str, start: int) -> str:
    word = re.compile(r"\$?[\w.-]+|[<>:!]=|</|[^\s]").match(text, start)
    return word[0][:40] if word else ""


def _fits(text: str, start: int, before: re.Pattern[str], after: re.Pattern[str]) -> bool:
    near = text[max(0, start - 200) : start]
    return before.search(near) is not None and after.match(text, start) is not None


def _listed(terminals: list[str]) -> str:
    said = list(dict.fromkeys(_SAID.get(each, each) for each in terminals))
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} or {said[-1]}" if said else ""
