"""The package: a wheel that is built from the tree has all that a site needs, and none of the tests."""

import re
import shutil
import subprocess
import sys
from email.parser import HeaderParser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from zipfile import ZipFile

import pytest

import django_events

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]
IGNORED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")


def setuptools_is_new_enough():
    try:
        return int(version("setuptools").split(".")[0]) >= 77  # as in pyproject.toml
    except PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that nothing is left in the tree."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT, folder / "tree", ignore=IGNORED)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, folder / "tree"]
    if setuptools_is_new_enough():
        command.append("--no-build-isolation")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [built] = folder.glob("*.whl")
    with ZipFile(built) as archive:
        yield archive


def in_the_package(pattern):
    return {str(path.relative_to(ROOT)) for path in (ROOT / "django_events").rglob(pattern)}


@pytest.fixture
def names(wheel):
    return set(wheel.namelist())


@pytest.mark.slow
def test_it_is_called_as_the_distribution(wheel):
    assert Path(wheel.filename).name == f"django_events_pg-{django_events.__version__}-py3-none-any.whl"


@pytest.mark.parametrize("pattern", ["*.py", "*.sql", "*.html", "*.css", "*.js", "py.typed"])
def test_it_holds_every_file_of_the_package(names, pattern):
    files = in_the_package(pattern)

    assert files
    assert files <= names


def test_it_holds_what_is_most_easily_forgotten(names):
    assert "django_events/py.typed" in names
    assert "django_events/publishing/storing.sql" in names
    assert "django_events/migrations/0001_initial.py" in names
    assert "django_events/management/commands/run_transfer.py" in names


def test_it_holds_nothing_else(names):
    """No tests, no testproject, no caches, no stray top-level package."""
    folders = {name.split("/")[0] for name in names}

    assert folders == {
        "django_events",
        "pyspark_django_events",
        f"django_events_pg-{django_events.__version__}.dist-info",
    }
    assert {name for name in names if re.search(r"\b(py)?test", name, re.IGNORECASE)} == {
        "django_events/testing.py",
        "django_events/testing.sql",
        "django_events/pytest_plugin.py",
    }
    assert not [name for name in names if name.endswith((".pyc", ".orig", "~"))]


def test_it_says_what_it_is_and_needs(wheel, names):
    [metadata_name] = [name for name in names if name.endswith(".dist-info/METADATA")]
    metadata = HeaderParser().parsestr(wheel.read(metadata_name).decode())

    assert metadata["Name"] == "django-events-pg"
    assert metadata["Version"] == django_events.__version__
    assert metadata["License-Expression"] == "BSD-3-Clause" or metadata["License"] == "BSD-3-Clause"
    assert metadata["Requires-Python"] == ">=3.11"
    required = [need.split(";")[0] for need in metadata.get_all("Requires-Dist") if "extra ==" not in need]
    assert {need.rstrip("0123456789.").rstrip(">=") for need in required} == {
        "Django",
        "cronsim",
        "django-pgtrigger",
        "psycopg",
    }
    assert set(metadata.get_all("Provides-Extra")) == {
        "aws",
        "bench",
        "demo",
        "dev",
        "files",
        "kafka",
        "lake",
        "metrics",
        "nats",
        "opentelemetry",
        "rabbitmq",
        "redis",
        "schemas",
        "spark",
        "test",
        "webhooks",
    }
    assert any(name.endswith("/LICENSE") for name in names)


def test_it_can_be_imported_from_where_it_is(wheel, tmp_path):
    """Its SQL files are found beside its code, and they are all there."""
    wheel.extractall(tmp_path)
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import django_events
assert django_events.__file__.startswith(sys.argv[1]), django_events.__file__
from django_events import sql
assert "django_events_publish" in sql.beside("django_events.publishing.storing").publish.text
"""
    done = subprocess.run([sys.executable, "-I", "-c", program, tmp_path], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
