"""Publishers, transfers and workers of two versions of django_events at once, on one schema, under load, with kills."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from testproject.private_postgres.server import Server
from tests.faults.consumers.fleet import Fleet, Process
from tests.faults.consumers.ledger import Ledger, check_effects, check_holders
from tests.support.fix_servers import database_of
from tests.support.processes import Processes, check_log
from tests.upgrades.flow import tree_of
from tests.upgrades.released import beside, has_same_migrations, revision_of

TOPICS = ["orders", "payments", "stock"]
CONSUMERS = ["single", "batched", "outside", "queued", "in_order"]

Made = Callable[[str], tuple[Processes, Processes]]


@pytest.fixture
def versions(fault_server: Server, tmp_path: Path, settings_module: str) -> Iterator[Made]:
    """The processes of another version, and those of this one, on a new and empty database."""
    made: list[Processes] = []

    def make(name: str) -> tuple[Processes, Processes]:
        try:
            tree = tree_of(revision_of(name), tmp_path / "tree")
        except FileNotFoundError as error:
            pytest.skip(f"the code of {name} is not to be had: {error}")
        with psycopg.connect(fault_server.url, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS versions WITH (FORCE)")
        url = database_of(fault_server, "versions")
        for label, code in (("former", {"tree": tree}), ("present", {})):
            folder = tmp_path / label
            folder.mkdir()
            processes = Processes(url, folder, settings=settings_module, **code)
            processes.variables["FAULT_FOLDER"] = str(tmp_path)
            made.append(processes)
        return made[0], made[1]

    yield make
    for processes in made:
        processes.end()


def migrate(processes: Processes) -> None:
    done = processes.run("migrate", "-v0")
    assert done.returncode == 0, done.stderr


@pytest.mark.requirement("P12", "X7", "X19")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schema", [pytest.param("former", marks=pytest.mark.long), "present"])
@pytest.mark.parametrize("name", beside())
def test_two_versions_work_side_by_side(name: str, schema: str, versions: Made, tmp_path: Path):
    former, present = versions(name)
    if schema == "former" and not has_same_migrations(revision_of(name)):
        pytest.skip(f"{name} has other migrations, and new code isn't promised to work on an old schema")
    for one in (former, present):
        where = one.run("shell", "-v0", "-c", "import django_events; print(django_events.__file__)").stdout
        assert where.startswith(f"{one.tree}/"), where
    migrate(former)
    if schema == "present":
        migrate(present)
    both = (former, present)
    dice = random.Random(f"{name} {schema}")
    ledger = Ledger(present.url, tmp_path)
    transfers: list[Process] = [one.start("run_transfer") for one in both]
    publishers = [
        one.start_publisher(f"p{number}", "read committed", "0.3", "queued") for number, one in enumerate(both)
    ]
    fleets = [Fleet(one, ledger, *CONSUMERS) for one in both]
    for fleet in fleets:
        fleet.scale(2)
    for round in range(4):
        fleets[round % 2].kill_at_work(dice)
        transfers[round % 2].kill()
        transfers[round % 2].wait()
        transfers[round % 2] = both[round % 2].start("run_transfer")
        if round == 1:  # a container that starts with `migrate`, of either version
            migrate(present)
        if round == 2:
            migrate(former)
    for publisher in publishers:
        publisher.stop()
    for fleet in fleets:
        fleet.finish()

    published = check_log(present.url, TOPICS, publishers)
    check_effects(ledger, CONSUMERS)
    assert check_holders(ledger, fleets[0].killed_at | fleets[1].killed_at) > 8
    assert len(ledger.done("single")) == published
    at_work = {done.pid for done in ledger.done("single")}
    for one in both:
        assert at_work & {process.pid for process in one.started}, f"{one.tree} took no part"
        verified = one.run("events", "verify")
        assert verified.returncode == 0, verified.stdout
    for transfer in transfers:
        transfer.terminate()
        assert transfer.wait(60) == 0
    ledger.close()


def test_why_there_is_no_other_version_is_said(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"git archive v0\.0\.0-none"):
        tree_of(revision_of("v0.0.0-none"), tmp_path / "tree")
