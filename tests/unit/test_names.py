"""One word for one idea: what the package calls its classes."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import django_events

PACKAGE = Path(django_events.__file__).parent
GIVEN = {"Command", "Migration", "Meta", "Media"}  # Django looks for these names


@pytest.mark.slow
def test_no_class_name_is_defined_twice():
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name not in GIVEN:
                places[node.name].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")

    assert {name: where for name, where in places.items() if len(where) > 1} == {}
