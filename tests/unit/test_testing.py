"""What of the testing helpers needs no database, and that the plugin loads before Django is configured."""

import inspect
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from django_events import Draft, consumer, declarations, testing, topic
from django_events.testing import PublishedEvent, deliver, isolate_declarations

ROOT = Path(__file__).parents[2]


def declared():
    return list(declarations.registry), list(declarations.consumers)


@pytest.mark.parametrize("name", testing.__all__)
def test_every_name_is_documented(name):
    assert inspect.getdoc(getattr(testing, name))


@pytest.mark.slow
def test_the_plugin_loads_without_django():
    program = """
import sys
import django_events.pytest_plugin
loaded = [name for name in sys.modules if name.split(".")[0] in ("django", "psycopg", "pgtrigger", "asgiref")]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", program], env={}, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_plugin_is_found_by_pytest_and_needs_no_settings(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["django_events.pytest_plugin"]')
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:django",
        "-p",
        "no:cacheprovider",
        "--fixtures",
        tmp_path,
    ]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "drain_events" in done.stdout and "published_events" in done.stdout


def test_declarations_of_a_block_are_forgotten():
    before = declared()
    with isolate_declarations():
        parcels = topic("parcels")
        tracking = consumer(parcels, name="tracking")(print)
        assert declared() == ([*before[0], parcels], [*before[1], tracking])

    assert declared() == before


def test_declarations_of_a_block_that_fails_are_forgotten():
    before = declared()
    with pytest.raises(ZeroDivisionError), isolate_declarations():
        topic("parcels")
        1 / 0  # noqa: B018

    assert declared() == before


def test_a_declaration_that_a_block_removed_is_there_again_in_its_place():
    before = declared()
    with isolate_declarations():
        declarations.registry.discard(before[0][0])
        declarations.consumers.discard(before[1][0])

    assert declared() == before


def test_it_decorates_a_test_each_time_anew():
    before = declared()

    @isolate_declarations()
    def test(name, *, key):
        topic(name)
        return len(declared()[0]), key

    assert test("parcels", key=7) == test("others", key=7) == (len(before[0]) + 1, 7)
    assert declared() == before


def event(**fields):
    stored = {"topic": "things", "type": "a", "key": None, "value": {"n": 1}, "body": None, "metadata": {}}
    return PublishedEvent(**{**stored, "partition": None, "published_at": datetime.now(UTC), **fields})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "things, in the buffer: type='a', key=None, value={'n': 1}"),
        ({"id": 7, "key": "x"}, "things/7: type='a', key='x', value={'n': 1}"),
        ({"id": 7, "value": None, "body": b"\0"}, "things/7: type='a', key=None, body=b'\\x00'"),
        ({"id": 7, "value": None}, "things/7: type='a', key=None, value=None"),
    ],
)
def test_an_event_reads_in_a_line(fields, text):
    assert str(event(**fields)) == text


def test_a_long_event_reads_in_a_line_too():
    assert len(str(event(value="x" * 10_000))) < 400


@isolate_declarations()
def test_a_handler_that_needs_no_database_is_delivered_to_without_one():
    consumer(topic("parcels"), name="tracking", transactional=False)(lambda event: (event.address, event.value))

    assert deliver("tracking", Draft(value=[1])) == ("parcels/1", [1])
    assert deliver("tracking", event(topic="parcels", id=3)) == ("parcels/3", {"n": 1})
