"""The pages name files that exist, and the ways of data in docs/architecture.md are as short as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
FILE = re.compile(r"`((?:peerd|overlay|protocols|queries|spark_jobs|experiments|tests|deploy|docs)/[\w/.-]+\.\w+)`")
WAYS = re.findall(r"^### (.*?) \((\d+) files\)\n(.*?)(?=^##)", ARCHITECTURE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    old = page.name in ("CHANGELOG.md", "decisions.md")  # They speak of their time.
    named = [name for name in FILE.findall(page.read_text()) if "NAME" not in name]
    missing = [name for name in named if not (ROOT / name).exists()]
    assert old or not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_another_page_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize(("title", "count", "text"), WAYS, ids=[title for title, _, _ in WAYS])
def test_a_way_has_as_many_files_as_its_title_says(title: str, count: str, text: str) -> None:
    files = dict.fromkeys(FILE.findall(text.partition("\nAsked on the way")[0]))
    assert len(files) == int(count)
    assert len(files) <= (20 if title.startswith("A tuple") else 32)


def test_there_are_three_ways() -> None:
    assert len(WAYS) == 3
