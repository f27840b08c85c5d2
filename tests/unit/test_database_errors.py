"""What an error of the database means is judged in one place, for errors of Django and of psycopg alike."""

import ast
from pathlib import Path

import psycopg
import pytest
from django.db import DataError, InterfaceError, InternalError, OperationalError, ProgrammingError

import django_events
from django_events.database_errors import ErrorKind, kind_of, state

STATES = [
    ("08006", ErrorKind.LOST),
    ("57P01", ErrorKind.LOST),
    ("25P03", ErrorKind.LOST),
    ("55P03", ErrorKind.LOCKED),
    ("40001", ErrorKind.CONFLICT),
    ("40P01", ErrorKind.CONFLICT),
    ("57014", ErrorKind.CANCELED),
    ("53200", ErrorKind.OUT_OF_MEMORY),
    ("23505", ErrorKind.DUPLICATE),
    ("53100", ErrorKind.DISK_FULL),
    ("25006", ErrorKind.READ_ONLY),
    ("42P01", ErrorKind.TABLE_GONE),
    ("42883", ErrorKind.FUNCTION_GONE),
    ("42501", ErrorKind.FORBIDDEN),
    ("22P02", ErrorKind.DATA),
    ("54000", ErrorKind.TOO_LARGE),
    ("XX000", ErrorKind.INTERNAL),
    ("42601", ErrorKind.OTHER),
]


@pytest.mark.parametrize(("sqlstate", "kind"), STATES)
def test_a_sqlstate_has_a_kind(sqlstate, kind):
    driver = psycopg.errors.lookup(sqlstate) if sqlstate not in ("08006",) else psycopg.errors.ConnectionFailure
    error = driver("said")
    wrapped = ProgrammingError("said")
    wrapped.__cause__ = error

    assert kind_of(error) is kind_of(wrapped) is kind
    assert state(wrapped) == sqlstate


@pytest.mark.parametrize("error", [OperationalError, InterfaceError, InternalError, psycopg.OperationalError])
def test_an_error_of_the_client_s_side_is_a_lost_connection(error):
    assert kind_of(error("said")) is ErrorKind.LOST


@pytest.mark.parametrize("error", [DataError, ProgrammingError, ValueError])
def test_other_errors_without_a_sqlstate_have_no_meaning(error):
    assert kind_of(error("said")) is ErrorKind.OTHER


def test_what_callers_ask():
    passing = {kind for kind in ErrorKind if kind.passes}

    assert passing - {kind for kind in passing if kind.passes_here} == {ErrorKind.LOST}
    assert not [kind for kind in ErrorKind if kind.of_server and kind.of_log]
    assert {kind for kind in ErrorKind if kind.of_log and kind.passes} == {ErrorKind.DISK_FULL}
    assert {kind for kind in ErrorKind if kind.stays} >= {ErrorKind.TABLE_GONE, ErrorKind.DATA, ErrorKind.FORBIDDEN}


@pytest.mark.slow
def test_no_other_module_judges_by_a_sqlstate():
    """Our functions' own states (DE…) are answers, not failures of the database, so their callers compare them."""
    root = Path(django_events.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        if path.name == "database_errors.py" or "migrations" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in dict(STATES):
                found.append(f"{path.relative_to(root)}:{node.lineno}")
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("psycopg.errors.lookup"):
                found.append(f"{path.relative_to(root)}:{node.lineno}")
    assert found == []
