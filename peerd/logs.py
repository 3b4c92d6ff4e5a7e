"""The daemon's log: structlog on stderr, as lines for people or as JSON, with secrets hidden.

Libraries that use the standard logging module come out in the same shape, from WARNING up.
"""

from __future__ import annotations

import logging
import re
import sys
from contextlib import suppress
from typing import Final, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_TOKEN: Final = re.compile(r"peer1-[\w-]{8,}")
_LIBRARY_LEVEL: Final = logging.WARNING


class _Unbreakable:
    """A stream that may go away: a closed terminal or a full disk silences the log, but does not stop the peer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def configure_logs(level: str, form: str) -> None:
    """Set up logging for this process; level and form as in the settings log_level and log_format."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _hide_secrets,
    ]
    renderer: list[Processor]
    if form == "json":
        renderer = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        renderer = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    stream = cast("TextIO", _Unbreakable(sys.stderr))
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    logging.basicConfig(level=_LIBRARY_LEVEL, handlers=[handler], force=True)


def _hide_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A join token opens the network, so it never enters a log, wherever it comes from."""
    for key, value in event.items():
        if isinstance(value, str) and "peer1-" in value:
            event[key] = _TOKEN.sub("peer1-(hidden)", value)
    return event
