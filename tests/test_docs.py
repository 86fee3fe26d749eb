"""The docs name files, tests, commands and packages that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from trainer.market.instrument import Instrument

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
TEST_NAME = re.compile(r"`((?:[\w./]+\.py)?::test_\w+)`")


def test_every_link_leads_somewhere() -> None:
    dead = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert dead == []


@pytest.mark.parametrize("page", ["systems.md", "faults.md"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    folder = ROOT / "tests" / "trainer"
    missing, names = [], 0
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        file = ""
        for reference in TEST_NAME.findall(line):
            path, _, name = reference.partition("::")
            file = path or file
            names += 1
            source = (folder / file).resolve()
            if not source.is_file() or f"def {name}(" not in source.read_text(encoding="utf-8"):
                missing.append(f"{file}::{name}")
    assert missing == []
    assert names > 40


def test_every_system_has_its_row() -> None:
    rows = re.findall(r"^\| (S[\d, S]+) \|", (ROOT / "docs" / "systems.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = [int(number) for row in rows for number in re.findall(r"\d+", row)]
    assert named == list(range(1, 49))


def test_every_dependency_has_a_line_in_the_readme() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    table = {
        name.strip()
        for row in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if row.startswith("|")
        for name in row.split("|")[1].split(",")
    }
    names = {re.split(r"[\[<>=! ]", requirement)[0] for requirement in requirements}
    assert names - table == set()


def test_the_instrument_shown_in_the_docs_is_a_valid_one() -> None:
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    block = page.partition("```toml")[2].partition("```")[0]
    assert Instrument.model_validate(tomllib.loads(block)).tick == 0.25


def test_profiles_and_make_targets_that_the_readme_names_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`?make ([a-z-]+)", readme))
    assert {"test", "sweep", "trial"} <= targets
    assert [target for target in sorted(targets) if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
    profiles = set(re.findall(r"python -m (?:trainer|search) ([a-z]\w+)", readme)) - {"inspect", "evaluate", "fields"}
    assert [profile for profile in sorted(profiles) if not (ROOT / "configs" / f"{profile}.toml").is_file()] == []
