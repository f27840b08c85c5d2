"""Sentences name what acts: the worker, the transfer, the publisher, an operator. Somebody is none of them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = re.compile(r"(?<![a-z])(?:somebody|someone|anybody|nobody|whoever)s?(?![a-z])", re.IGNORECASE)
CODE = re.compile(
    r'`[^`]*`|"user": "nobody"|user = nobody|"postgres", "nobody"'
)  # one of the users of an operating system is called so
KINDS = {".py", ".sql", ".html", ".js", ".md"}
PLACES = ("django_events", "docs", "testproject", "tests", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")


@pytest.mark.slow
def test_the_package_its_documentation_and_its_tests_name_what_acts():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for place in PLACES
        for path in sorted([ROOT / place, *(ROOT / place).rglob("*")])
        if path.suffix in KINDS and path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if WORDS.search(CODE.sub("", line))
    ]
    assert found == []
