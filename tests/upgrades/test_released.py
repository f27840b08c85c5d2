"""The schema of each released version takes the new migrations, and that version's code goes on working on it."""

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from testproject.private_postgres.server import Server
from tests.support.fix_servers import database_of
from tests.upgrades.flow import ROOT, Code, go_on, tree_of
from tests.upgrades.release import write
from tests.upgrades.released import FOLDER, dump_of, versions

Restore = Callable[[Path], str]


@pytest.fixture
def restore(fault_server: Server) -> Restore:
    def restored(dump: Path) -> str:
        with psycopg.connect(fault_server.url, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS released WITH (FORCE)")
        url = database_of(fault_server, "released")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(dump.read_text().encode())  # the protocol takes several statements without parameters
        return url

    return restored


def old_code(revision: str, tmp_path: Path, url: str) -> Code:
    try:
        return Code(tree_of(revision, tmp_path / "old"), url)
    except FileNotFoundError as error:
        pytest.skip(f"the code of {revision} is not to be had: {error}")


@pytest.mark.requirement("P12")
@pytest.mark.parametrize("version", versions())
def test_the_code_of_a_release_works_on_the_new_schema_and_the_new_code_after_it(version, restore, tmp_path):
    url = restore(dump_of(version))
    new = Code(ROOT, url)
    new.manage("migrate", "-v0")
    go_on(old_code(f"v{version}", tmp_path, url))
    go_on(new)


def test_there_is_a_schema_for_each_version_in_the_changelog():
    """A maintainer who releases and forgets it finds out here."""
    changelog = (ROOT / "CHANGELOG.md").read_text().splitlines()
    released = {line.split()[1].strip("[]") for line in changelog if line.startswith("## ")} - {"Unreleased"}
    missing = {version.lstrip("v") for version in released} - set(versions())
    assert not missing, f"run: python -m tests.upgrades.release VERSION, for {sorted(missing)}, on the tag's code"


@pytest.mark.long
@pytest.mark.requirement("P12")
def test_what_is_written_now_is_what_a_later_version_can_start_from(restore, tmp_path):
    """By the script of releases, as if there was one now; its code then meets a schema that was expanded, and one
    that was broken: this is the test of the test."""
    dump = write("0.0", tmp_path / "0.0.sql")
    with pytest.raises(SystemExit, match="is there already"):
        write("0.0", dump)
    url = restore(dump)
    released = old_code("HEAD", tmp_path, url)
    Code(ROOT, url).manage("migrate", "-v0")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE django_events_delivery ADD COLUMN note text")
        connection.execute("ALTER TABLE django_events_position ADD COLUMN note text NOT NULL DEFAULT ''")
        go_on(released)

        connection.execute("ALTER TABLE django_events_delivery ADD COLUMN told text NOT NULL")
        with pytest.raises(AssertionError, match="each order has one receipt"):
            go_on(released)


def test_a_version_that_is_none_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="is no version"):
        write("new", tmp_path / "new.sql")


def test_released_schemas_are_plain_sql_that_every_version_of_postgresql_takes():
    for version in versions():
        text = (FOLDER / f"{version}.sql").read_text()
        assert "CREATE TABLE public.django_events_topic" in text
        assert "COPY " not in text.split("SET search_path")[0]
        assert "\\restrict" not in text
