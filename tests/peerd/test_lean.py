"""What a daemon does not load, and that nothing else notices."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
import peerd.service
print(*(name in sys.modules for name in ("structlog", "aiohttp", "rich", "prometheus_client", "pyspark")))
print(os.environ.get("SSL_CERT_FILE"))
import rich, ssl
print(rich.__name__, ssl.get_default_verify_paths().cafile)
"""


def said(environ: dict[str, str]) -> list[str]:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=environ)
    return done.stdout.splitlines()


def test_the_daemon_loads_no_rich_no_prometheus_and_no_spark():
    environ = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    assert said(environ)[:2] == ["True True False False False", "None"]


def test_rich_and_the_authorities_are_there_for_who_asks_later():
    assert said({**os.environ, "SSL_CERT_FILE": __file__})[1:] == [__file__, f"rich {__file__}"]


LANGUAGES = """
import sys
from peerd import lean
from peerd.service import _learn_languages
_learn_languages()
print(*(name in sys.modules for name in ("sqlglot", "lark", *lean.NEEDLESS)))
from importlib.metadata import version
print(version("lark") > "")
"""


@pytest.mark.slow
def test_languages_are_learnt_without_what_they_do_not_need():
    done = subprocess.run([sys.executable, "-c", LANGUAGES], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True True False False False False", "True"]
