"""The spool of one run: files of Arrow in a folder per source, counted by HEAD, read by the source in spark_jobs/jvm.

A file is complete before HEAD counts it. The daemon removes it once all its rows have had their effect.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import ipc

from queries.plan import Source
from queries.schema import Row
from spark_jobs.bridge import NO_MARK, SHIFT_US, SOURCE_HIDDEN, source_schema, to_arrow

_HEAD: Final = struct.Struct("<q")


class Spool:
    """The writing end for one source of a run."""

    def __init__(self, run: Path, input_number: int, source: Source, with_marks: bool) -> None:
        self._folder = run / str(input_number)
        self._input, self._with_marks = input_number, with_marks
        self._columns = source.columns
        self._schema = source_schema(self._columns)
        self._folder.mkdir()
        head = self._folder / "HEAD"
        head.write_bytes(_HEAD.pack(0))
        with head.open("r+b") as file:
            self._head = mmap.mmap(file.fileno(), _HEAD.size)
        self.files = 0
        self._removed = 0

    def put(
        self,
        number: int,
        rows: Sequence[Row],
        *,
        is_new: bool,
        closed_us: int | None,
        forget_us: int | None,
        watermark_us: int | None,
    ) -> int:
        """Hand on the rows of a numbered input: closed before it, and the watermark once they are in."""
        forget = 0 if forget_us is None else max(forget_us + SHIFT_US, 0)
        with (
            pa.OSFile(str(self._folder / str(self.files + 1)), "wb") as file,
            ipc.new_stream(file, self._schema) as out,
        ):
            if rows:
                hidden = (number, is_new, closed_us, forget, NO_MARK)
                own = to_arrow(self._columns, rows)
                out.write_batch(pa.record_batch([*own, *_repeated(hidden, len(rows))], schema=self._schema))
            if self._with_marks:
                hidden = (number, True, watermark_us, forget, self._input)
                own = [pa.nulls(1, field.type) for field in list(self._schema)[: len(self._columns)]]
                out.write_batch(pa.record_batch([*own, *_repeated(hidden, 1)], schema=self._schema))
        self.files += 1
        self._head[:] = _HEAD.pack(self.files)
        return self.files

    def remove(self, upto: int) -> None:
        """These files have been read for good."""
        for file in range(self._removed + 1, upto + 1):
            (self._folder / str(file)).unlink(missing_ok=True)
        self._removed = max(self._removed, upto)

    def close(self) -> None:
        self._head.close()


def _repeated(hidden: tuple[int | bool | None, ...], count: int) -> list[pa.Array]:
    return [pa.repeat(_scalar(value, field.type), count) for value, field in zip(hidden, SOURCE_HIDDEN, strict=True)]


def _scalar(value: int | bool | None, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_timestamp(kind) and value is not None:
        return pa.scalar(value, pa.int64()).cast(kind)
    return pa.scalar(value, kind)
