"""Where exports go: one spelling for a place, and what is no place for them."""

from pathlib import Path

import pytest
from django.core.management import CommandError

from django_events.exporting.paths import key, spelled
from django_events.management.spark import local

CLUSTER = {"master": "spark://host:7077", "remote": None}
CONNECT = {"master": None, "remote": "sc://host"}
HERE = {"master": None, "remote": None}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("/data//events/", "/data/events"),
        ("//data/./events/../events", "/data/events"),
        ("FILE:///data/events", "file:/data/events"),
        ("file:////data/events//", "file:/data/events"),
        ("S3A://Bucket//Events/", "s3a://Bucket/Events"),
        ("s3a://bucket/", "s3a://bucket"),
        ("hdfs:///data", "hdfs:/data"),
        ("data:x", "data:x"),
    ],
)
def test_a_place_has_one_spelling(said: str, meant: str) -> None:
    assert spelled(said) == meant


def test_spellings_of_a_folder_share_a_key() -> None:
    assert {key(path) for path in ("/p", "/p/", "//p", "/q/../p", "file:/p", "file:///p", "FILE:///p//")} == {"/p"}
    assert key("s3a://p/p") == key("S3A://p//p/") != key("/p/p")


@pytest.mark.parametrize("master", [None, "local", "local[4]", "local[*]"])
def test_a_folder_of_this_machine_is_said_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "events")
    spellings = (
        "events",
        "link",
        "./events/",
        f"/{tmp_path}//events",
        f"file:{tmp_path}/link",
        f"File://{tmp_path}/events",
    )

    found = {local(path, option="--to", master=master, remote=None) for path in spellings}

    assert found == {str(tmp_path / "events")}


def test_elsewhere_a_path_stays_and_nothing_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "events")

    assert local(f"{tmp_path}/link/", option="--to", **CLUSTER) == f"{tmp_path}/link"
    assert local("FILE:///data/", option="--to", **CONNECT) == "file:/data"
    assert local("S3A://b/c/", option="--to", **HERE) == "s3a://b/c"


@pytest.mark.parametrize("where", [HERE, CLUSTER])
@pytest.mark.parametrize("character", "[]{}*?\\")
def test_what_spark_takes_for_a_pattern_is_refused(character: str, where: dict[str, str | None]) -> None:
    for path in (f"/data/a{character}b/events", f"s3a://bucket/a{character}"):
        with pytest.raises(CommandError) as raised:
            local(path, option="--checkpoint", **where)
        assert raised.value.returncode == 2
        assert f"and {character!r} in it is a pattern to Spark" in str(raised.value)


@pytest.mark.parametrize(
    ("path", "where", "said"),
    [
        ("", HERE, "--to is '', expected a folder. Is a variable not set?"),
        ("", CLUSTER, "--to is '', expected a folder. Is a variable not set?"),
        ("events", CLUSTER, "--to is 'events': say the whole path."),
        ("events", CONNECT, "--to is 'events': say the whole path."),
        ("file:events", HERE, "expected a whole path behind file:, like file:///data/events."),
        ("file://data/events", HERE, "expected a whole path behind file:, like file:///data/events."),
        ("/", HERE, "the root of a file system: say a folder in it."),
        ("hdfs:///", HERE, "the root of a file system: say a folder in it."),
        (f"/tmp/{'x' * 300}/events", HERE, "File name too long."),
        ("around", HERE, "a symbolic link that leads back to itself."),
        ("around/events", HERE, "a symbolic link that leads back to itself."),
        ("[", HERE, "'[' in it is a pattern to Spark"),
    ],
)
def test_what_is_no_place_for_files_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, where: dict[str, str | None], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "around").symlink_to("around")

    with pytest.raises(CommandError) as raised:
        local(path, option="--to", **where)

    assert said in str(raised.value)
    assert raised.value.returncode == 2


def test_a_link_to_a_folder_with_a_pattern_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a[1]")

    with pytest.raises(CommandError, match="is a pattern to Spark"):
        local(str(tmp_path / "link"), option="--to", **HERE)
