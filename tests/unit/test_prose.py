"""Sentences name what acts: the worker, the transfer, the publisher, an operator. Somebody is none of them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORDS = re.compile(r"\b(?:somebody|someone|anybody|nobody|whoever)\b", re.IGNORECASE)
CODE = re.compile(r"`[^`]*`")  # one of the users of an operating system is called so
KINDS = {".py", ".sql", ".html", ".js", ".md"}
PLACES = ("django_events", "docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def test_the_package_and_its_documentation_name_who_acts():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for place in PLACES
        for path in sorted([ROOT / place, *(ROOT / place).rglob("*")])
        if path.suffix in KINDS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if WORDS.search(CODE.sub("", line))
    ]
    assert found == []
