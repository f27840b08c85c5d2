"""Sentences name what acts: the worker, the transfer, the publisher, an operator. Somebody is none of them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORDS = re.compile(r"\b(?:somebody|someone|anybody|nobody|whoever)\b", re.IGNORECASE)
KINDS = {".py", ".sql", ".html", ".js"}


def test_the_package_names_who_acts():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "django_events").rglob("*"))
        if path.suffix in KINDS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if WORDS.search(line)
    ]
    assert found == []
