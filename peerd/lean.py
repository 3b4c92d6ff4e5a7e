"""Keeps the daemon small: it loads its libraries without what a peer has no use for, and gives memory back.

Importing this module imports structlog and aiohttp, so service.py does it before anything else. structlog loads rich
where it finds it, to draw tracebacks, and ours are plain. aiohttp reads every authority of the web into memory, twice,
for clients that speak HTTPS, and the daemon only serves. Both together are 5 MB of a peer that has nothing to do.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without_module(name: str) -> Iterator[None]:
    """For as long as this lasts, importing the module fails as if it were not installed."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # Python's own way to say so.
    try:
        yield
    finally:
        del sys.modules[name]


@contextmanager
def _without_authorities() -> Iterator[None]:
    """For as long as this lasts, OpenSSL finds no authorities where it looks by default."""
    before = os.environ.get("SSL_CERT_FILE")
    os.environ["SSL_CERT_FILE"] = os.devnull
    try:
        yield
    finally:
        if before is None:
            del os.environ["SSL_CERT_FILE"]
        else:
            os.environ["SSL_CERT_FILE"] = before


def give_memory_back() -> None:
    """Return to the system what was freed since the start; where the C library cannot, nothing happens.

    Loading modules frees about 2 MB in places from which the C library returns nothing by itself.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # Of glibc alone.
    if trim is not None:
        trim(0)


def look_for_cycles_rarely() -> None:
    """Let the collector leave alone what is there for good, and look at the rest less often.

    The machines make no cycles, and what they keep are millions of small things: to walk through all of them takes a
    tenth of a second each time, in which nothing else happens.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


with _without_module("rich"), _without_authorities():
    importlib.import_module("structlog")
    importlib.import_module("aiohttp")
