"""The results of a query on their way into its stream, and the checkpoints ("notes") of what they cover.

Results may leave before it is known what they cover: they are "beyond" the progress. A note has their digests, so that
the next attempt, which makes them again, can leave them out.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Final

from protocols.clock import Stamp
from protocols.delivery.messages import Publish
from protocols.effects import Append, Effect, Tell
from protocols.execution.messages import QueryId, ResultsNoted
from protocols.ids import Millis, StreamName
from protocols.messages import Refused
from protocols.subgraphs import Progress, ResultsSafe, digest_of, merged
from queries.schema import Row, RowError, Schema

PUBLISH_BYTES: Final = 512 << 10
ROW_BYTES_MIN: Final = 16  # Smaller rows count as so many bytes: a publish has a limit of rows, too.
PUBLISH_RETRY_MS: Final = 50
NOTE_MS: Final = 60_000  # How often the journal hears how far a query without results has come.


@dataclass(slots=True)
class _Group:
    """The results of one ResultsReady."""

    rows: Sequence[Row]
    progress: Progress | None  # None: what they cover is not known yet.
    beyond: Sequence[bytes]  # Digests of all results that `progress` does not cover; without progress, of `rows`.


@dataclass(slots=True)
class QueryResults:
    """One query's results.

    Keeps:     what its stream has, and what of the query's inputs that covers
    Invariant: a note is written before the results it speaks of; one that is not followed by them is void
    """

    query: QueryId
    stream: StreamName
    schema: Schema | None = None
    count: int = 0  # In the query's stream, or on their way into it.
    resume: Progress = field(default_factory=Progress)  # What the results in the stream cover.
    beyond: list[bytes] = field(default_factory=list)  # Digests of results in the stream that `resume` does not cover.
    to_remake: Counter[bytes] = field(default_factory=Counter)  # Of `beyond`, what this attempt has not made again yet.
    notes: list[ResultsNoted] = field(default_factory=list)  # The last safe whole one, and those that add to it.
    noted_at: Millis = 0
    in_flight: ResultsNoted | None = None  # The note of the rows that the stream has not taken yet.
    dropped: int = 0  # Results that no stream takes.
    dropped_for: str = ""  # Why the last of them was dropped.
    numbered: Stamp = 0  # The number of the last note.
    publish_at: Millis = 0  # Not before this time: the stream has refused results.
    _resumed: ResultsNoted | None = None  # The note that `resume` and `beyond` come from.
    _waiting: deque[_Group] = field(default_factory=deque)
    _ends: int = 0  # How many groups have their last rows in flight.
    _part: int = 0  # How many rows are in flight of a group that is too large for one batch.

    def restart(self, count: int) -> None:
        """After a restart: resume from the last notes whose results are in the stream, which has `count` of them."""
        self.count = count
        safe = self.safe(count)
        self.numbered = max(self.numbered, *(note.number for note in safe), 0)
        whole = [place for place, note in enumerate(safe) if note.adds_to is None]
        self.notes = safe[whole[-1] :] if whole else []
        for note in self.notes:
            self.resume_from(note)

    def safe(self, count: int) -> list[ResultsNoted]:
        """The notes whose results are in the stream, if it has so many."""
        safe: list[ResultsNoted] = []
        for note in self.notes:
            if note.next <= count:
                while safe and safe[-1].next > (note.next if note.adds_to is None else note.adds_to):
                    safe.pop()  # Its results were refused, and others came in their place.
                safe.append(note)
        return safe

    def number_from(self, number: Stamp) -> Stamp:
        """The number of the next note: higher than that of any earlier one."""
        self.numbered = max(self.numbered + 1, number)
        return self.numbered

    def begin_attempt(self) -> Progress:
        """The progress that an attempt resumes from. It makes the results beyond that again; `add` leaves them out."""
        self.to_remake = Counter(self.beyond)
        return self.resume

    def end_attempt(self) -> None:
        """Forget what waits: the next attempt makes it again."""
        self._waiting.clear()

    def add(self, rows: Sequence[Row], progress: Progress | None, beyond: Sequence[bytes] = ()) -> None:
        """Results of this attempt, and digests of all those it made that `progress` does not cover.

        Without progress, the digests are those of these results alone, if they are known.
        """
        if progress is None or self.to_remake:
            digests = beyond if progress is None and beyond else [*map(self._digest, rows)]
            if self.to_remake:
                is_new = [not self._is_remade(digest) for digest in digests]
                rows, digests = [*compress(rows, is_new)], [*compress(digests, is_new)]
            beyond = digests if progress is None else (*self.to_remake.elements(), *beyond)
        self._waiting.append(_Group(rows, progress, beyond))

    def _is_remade(self, digest: bytes) -> bool:
        """Whether a result is in the stream already, from an earlier attempt."""
        if not self.to_remake[digest]:
            return False
        self.to_remake[digest] -= 1
        return True

    def _digest(self, row: Row) -> bytes:
        assert self.schema is not None
        return digest_of(self.schema, row)

    def publish(self, attempt: Stamp, bytes_max: int, now: Millis) -> tuple[list[Effect], Publish | None]:
        """What can go into the stream now: its note, for the journal, then the rows."""
        batch = self.next_batch(min(PUBLISH_BYTES, bytes_max)) if now >= self.publish_at else None
        if batch is None:
            return [], None
        note, rows = batch
        if not rows:
            effects = self.acknowledge(note, attempt)
            if now - self.noted_at >= NOTE_MS:
                self.noted_at, self.notes = now, [note]
                effects.append(Append(note))
            return effects, None
        assert self.schema is not None
        self.noted_at = now
        return [Append(note)], Publish(stream=self.stream, rows=self.schema.encode(rows), count=len(rows))

    def acknowledge(self, note: ResultsNoted, attempt: Stamp) -> list[Effect]:
        """A note is safe: the host of the last subgraph may acknowledge the inputs of each group that it ends."""
        return [Tell(ResultsSafe(self.stream, attempt)) for _ in range(self.settle(note))]

    def refused(self, refusal: Refused, bytes_max: int, now: Millis) -> None:
        """The stream did not take what was in flight."""
        self.mark_refused()
        if refusal.code == "invalid":  # Asking again would not help.
            self.drop_unfit(bytes_max)
        self.publish_at = now + max(refusal.retry_after_ms, PUBLISH_RETRY_MS)

    def next_batch(self, bytes_max: int) -> tuple[ResultsNoted, list[Row]] | None:
        """The next batch for the stream, with its note; None while another is in flight."""
        if self.in_flight is not None or not self._waiting:
            return None
        assert self.schema is not None
        rows: list[Row] = []
        is_whole = not self.notes or self.notes[-1] is not self._resumed
        beyond, progress = [*self.beyond] if is_whole else [], self.resume
        self._ends, self._part, size = 0, 0, 0
        for group in self._waiting:
            encoded = self._size(group.rows)
            if self._ends and size + encoded > bytes_max:
                break
            if size + encoded > bytes_max and len(group.rows) > 1:  # Too large for one batch: a part of it now.
                part = self._first_of(group.rows, bytes_max)
                self._part = len(part)
                rows += part
                beyond += group.beyond[: len(part)] if group.progress is None else map(self._digest, part)
                break
            rows += group.rows
            size += encoded
            self._ends += 1
            if group.progress is None:
                beyond += group.beyond
            else:
                progress, beyond, is_whole = merged(progress, group.progress), [*group.beyond], True
        if not rows and not is_whole:  # It replaces all earlier notes in the journal.
            beyond, is_whole = [*self.beyond], True
        note = ResultsNoted(
            query=self.query,
            next=self.count + len(rows),
            progress=progress,
            beyond=tuple(beyond),
            adds_to=None if is_whole else self.count,
            number=self.number_from(0),
        )
        if rows:
            self.in_flight = note
            self.notes.append(note)
        return note, rows

    def _size(self, rows: Sequence[Row]) -> int:
        assert self.schema is not None
        return max(len(self.schema.encode(rows)), ROW_BYTES_MIN * len(rows))

    def _first_of(self, rows: Sequence[Row], bytes_max: int) -> list[Row]:
        """As many rows as fit, and one at least."""
        part: list[Row] = []
        size = 0
        for row in rows:
            size += self._size([row])
            if part and size > bytes_max:
                break
            part.append(row)
        return part

    def mark_published(self) -> ResultsNoted:
        """The stream has taken what was in flight."""
        note, self.in_flight = self.in_flight, None
        assert note is not None
        self.count = note.next
        if note.adds_to is None:
            self.notes = [note]
        if self._part and self._waiting:
            group = self._waiting[0]
            group.rows = group.rows[self._part :]
            if group.progress is None:
                group.beyond = group.beyond[self._part :]
        return note

    def mark_refused(self) -> None:
        """The stream refused what was in flight: the rows still wait, and their note is void."""
        self.notes = [note for note in self.notes if note is not self.in_flight]
        self.in_flight = None

    def drop_unfit(self, bytes_max: int) -> None:
        """Drop the rows that no stream takes from what was refused for good; the rest still waits."""
        for group in list(self._waiting)[: max(1, self._ends)]:
            fits = [self._fits(row, bytes_max) for row in group.rows]
            group.rows = [*compress(group.rows, fits)]
            if group.progress is None:
                group.beyond = [*compress(group.beyond, fits)]

    def _fits(self, row: Row, bytes_max: int) -> bool:
        assert self.schema is not None
        encoded = self.schema.encode([row])
        try:
            if len(encoded) > bytes_max:
                raise RowError(0, "", f"at most {bytes_max} bytes", f"{len(encoded)} bytes")
            self.schema.check(encoded)
        except RowError as error:
            self.dropped += 1
            self.dropped_for = str(error).partition(": ")[2] if not error.field else str(error)
            return False
        return True

    def resume_from(self, note: ResultsNoted) -> None:
        """Let the next attempt resume from this note."""
        self.resume, self._resumed = note.progress, note
        if note.adds_to is None:
            self.beyond = []
        self.beyond += note.beyond

    def settle(self, note: ResultsNoted) -> int:
        """A note is safe: drop the groups that it ends, and say how many they were."""
        self.resume_from(note)
        for _ in range(self._ends):
            self._waiting.popleft()
        return self._ends

    def validate(self) -> None:
        if self.in_flight is not None:
            assert self.notes
            assert self.notes[-1] is self.in_flight
