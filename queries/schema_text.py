"""Reading the text of a schema."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Final, cast

from queries.schema import DEPTH_MAX, FIELDS_MAX, TYPES, Field, FieldType, Schema, SchemaError, can_name_a_field

_WORD: Final = re.compile(r"[^\s,()]+|[,()]")


class Parser:
    """One pass over the words of a schema; `place` is where the next word begins."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = [(match.group(), match.start()) for match in _WORD.finditer(text)]
        self._next = 0

    def schema(self) -> Schema:
        fields = self._fields(depth=1)
        word, place = self._peek()
        if word:
            raise SchemaError(f'expected "," or the end, found "{word}"', self._text, place)
        return Schema(fields)

    def _fields(self, depth: int) -> tuple[Field, ...]:
        fields: dict[str, Field] = {}
        while True:
            place = self._peek()[1]
            field = self._field(depth)
            if field.name in fields:
                raise SchemaError(f'the field "{field.name}" is there twice', self._text, place)
            if len(fields) == FIELDS_MAX:
                raise SchemaError(f"there are more than {FIELDS_MAX} fields", self._text, place)
            fields[field.name] = field
            if not self._accept(","):
                return tuple(fields.values())

    def _field(self, depth: int) -> Field:
        name, place = self._take()
        if not name:
            raise SchemaError(
                "expected a field: a name and a type", self._text, place, "for example: id int, at timestamp"
            )
        if not can_name_a_field(name):
            hint = 'a name is a letter or "_", then letters, digits, "_" or "-"'
            raise SchemaError(f'expected the name of a field, found "{name}"', self._text, place, hint)
        kind = self._type(name)
        inner = self._record(depth + 1) if kind == "record" else ()
        return Field(name, kind, self._accept("null"), inner)

    def _type(self, name: str) -> FieldType:
        word, place = self._take()
        known = f"the types are {', '.join(TYPES)}"
        if not word or word in ",()":
            raise SchemaError(f'the field "{name}" needs a type', self._text, place, known)
        kind = word.lower()
        if kind not in TYPES:
            near = get_close_matches(kind, TYPES, 1)
            raise SchemaError(
                f'"{word}" is not a type', self._text, place, f'did you mean "{near[0]}"?' if near else known
            )
        return cast("FieldType", kind)

    def _record(self, depth: int) -> tuple[Field, ...]:
        place = self._peek()[1]
        if not self._accept("("):
            raise SchemaError(
                "a record needs its fields", self._text, place, "for example: record(lat float, lon float)"
            )
        if depth > DEPTH_MAX:
            raise SchemaError(f"records are nested more than {DEPTH_MAX} deep", self._text, place)
        fields = self._fields(depth)
        word, place = self._peek()
        if not self._accept(")"):
            found = f'"{word}"' if word else "the end"
            raise SchemaError(f'expected "," or ")", found {found}', self._text, place)
        return fields

    def _peek(self) -> tuple[str, int]:
        if self._next < len(self._words):
            return self._words[self._next]
        return "", len(self._text)

    def _take(self) -> tuple[str, int]:
        word = self._peek()
        self._next += 1
        return word

    def _accept(self, wanted: str) -> bool:
        if self._peek()[0].lower() != wanted:
            return False
        self._next += 1
        return True
