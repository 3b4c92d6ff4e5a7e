"""Keeps the daemon small: it loads its libraries without what a peer has no use for, and gives memory back.

Importing this module imports structlog and aiohttp, so service.py does it before anything else. structlog loads rich,
if it is installed, to draw tracebacks; ours are plain. aiohttp loads all certificate authorities of the web, twice, for
HTTPS clients; the daemon only serves. Together they take 5 MB of an idle peer.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

NEEDLESS: Final = {
    "importlib.metadata": "entry_points",
    "lark.parsers.cyk": "Parser",
    "lark.parsers.earley": "Parser",
    "lark.parsers.xearley": "Parser",
}


@contextmanager
def _without_module(name: str) -> Iterator[None]:
    """Within this block, importing the module fails as if it were not installed."""
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
    """Within this block, OpenSSL finds no certificate authorities."""
    before = os.environ.get("SSL_CERT_FILE")
    os.environ["SSL_CERT_FILE"] = os.devnull
    try:
        yield
    finally:
        if before is None:
            del os.environ["SSL_CERT_FILE"]
        else:
            os.environ["SSL_CERT_FILE"] = before


@contextmanager
def without_needless() -> Iterator[None]:
    """Within this block, modules that libraries load and that a peer never uses have one name each, and no code.

    sqlglot looks for dialects of others among the installed packages, and lark has parsers for grammars of other kinds
    than ours. That is 1 MB of an idle peer.
    """
    empty = {module: ModuleType(module) for module in NEEDLESS if module not in sys.modules}
    for module, made in empty.items():
        setattr(made, NEEDLESS[module], lambda **_: ())
    sys.modules.update(empty)
    try:
        yield
    finally:
        for module in empty:
            del sys.modules[module]


def give_memory_back() -> None:
    """Return freed memory to the system, if the C library can.

    Loading modules frees about 2 MB that the C library does not return by itself.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only.
    if trim is not None:
        trim(0)


def look_for_cycles_rarely() -> None:
    """Exclude permanent objects from garbage collection, and collect the rest less often.

    The machines make no cycles and keep millions of small objects. A full collection visits all of them, which blocks
    the loop for a tenth of a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


with _without_module("rich"), _without_authorities():
    importlib.import_module("structlog")
    importlib.import_module("aiohttp")
