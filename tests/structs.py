"""The fields of a struct, which tests that make or change messages ask for thousands of times."""

from __future__ import annotations

import functools

import msgspec
from msgspec.structs import FieldInfo


@functools.cache
def fields_of(kind: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
    """Each field with its type. msgspec evaluates the annotations of a struct at every call."""
    return msgspec.structs.fields(kind)
