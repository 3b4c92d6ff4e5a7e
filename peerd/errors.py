"""Errors for people: what happened, the facts, the next step, and the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class Exit(IntEnum):
    """The exit codes of all commands."""

    DONE = 0
    FAILED = 1
    MISUSE = 2  # Also bad input: a malformed token, configuration file or query text.
    UNREACHABLE = 3  # The daemon does not answer.
    NOT_FOUND = 4
    TIMEOUT = 5


class PeerError(Exception):
    """A failure shown as "error: … / detail: … / hint: …"; over the control socket it travels as JSON.

    >>> print(PeerError('no peer starts with "3f"', hint='"peer members" lists them.', exit_code=Exit.NOT_FOUND))
    error: no peer starts with "3f"
    hint: "peer members" lists them.
    """

    def __init__(
        self, error: str, *, detail: str | None = None, hint: str | None = None, exit_code: Exit = Exit.FAILED
    ) -> None:
        super().__init__(error)
        self.error = error
        self.detail = detail
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        lines = [f"error: {self.error}"]
        if self.detail:
            lines.append(f"detail: {self.detail}")
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, str | int | None]:
        return {"error": self.error, "detail": self.detail, "hint": self.hint, "code": int(self.exit_code)}

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> PeerError:
        detail, hint, code = body.get("detail"), body.get("hint"), body.get("code")
        return cls(
            str(body.get("error", "the daemon refused without saying why")),
            detail=str(detail) if detail else None,
            hint=str(hint) if hint else None,
            exit_code=Exit(code) if isinstance(code, int) and code in Exit.__members__.values() else Exit.FAILED,
        )
