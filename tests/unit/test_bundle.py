"""The zip for Spark's executors, where the package is not installed."""

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import psycopg
import pyarrow
import pyspark
import pytest

LOAD = """
import sys
archive, *others = sys.argv[1:]
sys.path[:0] = [archive]
sys.path += others
import zipfile
from importlib import import_module
names = zipfile.ZipFile(archive).namelist()
modules = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names if ".py" in name]
for module in modules:
    if not module.endswith("__main__"):
        assert import_module(module).__file__.startswith(archive), import_module(module).__file__
from django_events.statements import shared
assert shared.topics.text
print(len(modules), "django" in sys.modules)
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "bundle.zip"
    subprocess.run([sys.executable, "-m", "django_events.spark", str(path)], check=True, capture_output=True)
    return path


@pytest.mark.slow
def test_all_of_it_can_be_imported_without_the_package(archive: Path, tmp_path: Path) -> None:
    others = {str(Path(package.__file__).parents[1]) for package in (psycopg, pyarrow, pyspark, numpy)}
    words = [sys.executable, "-I", "-S", "-c", LOAD, str(archive), *sorted(others)]
    alone = subprocess.run([*words[:4], "import django_events"], cwd=tmp_path, capture_output=True, check=False)
    assert alone.returncode == 1, "the package is importable without the zip, so this test shows nothing"

    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    modules, django = done.stdout.split()
    assert int(modules) > 30
    assert django == "False"


def test_nothing_of_django_is_in_it(archive: Path) -> None:
    names = zipfile.ZipFile(archive).namelist()

    assert not [name for name in names if "/models/" in name or "/publishing/" in name or "/consuming/" in name]
    assert "pyspark_django_events/__init__.py" in names
    assert any(name.startswith("django_events/sql/") for name in names)
