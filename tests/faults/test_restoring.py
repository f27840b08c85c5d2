"""A dump that was taken in full work, restored on another server: the site goes on there as if nothing had been.

What docs/how-to/back-up.md says is what is done here.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from testproject.private_postgres.account import server_account
from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import Ledger, check_effects
from tests.support.fix_restores import MakeServer, newest, oldest, previous, program, schema_of
from tests.support.fix_servers import database_of
from tests.support.processes import Processes, Publisher

SETTINGS = "tests.support.restore_settings"
BUSY = ["single", "in_order", "queued"]  # each has an event in hand when the dump is taken
SERVED = [*BUSY, "reader", "strict", "patient"]
HANDLE = """
from django.core.management import call_command
call_command("run_transfer", once=True)
call_command("run_consumer", "reader", "strict", "patient", once=True)
call_command("events", "maintain", "segments", "retention")
"""
Log = dict[str, list[tuple[Any, ...]]]


class Site:
    """A database with the processes of the site around it."""

    def __init__(self, url: str, folder: Path, *, repaired: bool) -> None:
        folder.mkdir()
        self.url = url
        self.processes = Processes(url, folder, settings=SETTINGS)
        self.processes.variables = {"FAULT_FOLDER": str(folder), "FAULT_LEASE": "2"}
        self.ledger = Ledger(url, folder)
        if repaired:
            (folder / "repaired").touch()
            for consumer in BUSY:
                self.ledger.gate(consumer, "held").open()

    def manage(self, *arguments: str) -> str:
        done = self.processes.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def log(self) -> Log:
        found: Log = {}
        for name, *event in self.ledger.ask(
            "SELECT t.name, e.id, e.partition, e.number, e.key, e.value, e.logged_at"
            " FROM django_events_event e JOIN django_events_topic t ON t.id = e.topic_id ORDER BY t.name, e.id"
        ):
            found.setdefault(name, []).append(tuple(event))
        return found

    def end(self) -> None:
        self.ledger.close()
        self.processes.end()


@pytest.fixture
def make_site(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Site]:
    def make(url: str, name: str, *, repaired: bool = False) -> Site:
        site = Site(url, tmp_path / name, repaired=repaired)
        request.addfinalizer(site.end)
        return site

    return make


def fill(site: Site) -> None:
    """What is there without processes: dropped segments, retries, dead letters, schedules, dedup keys."""
    site.manage("migrate", "-v0")
    with psycopg.connect(site.url) as connection:
        connection.execute(
            "SELECT django_events_publish('passing', to_jsonb(n), key => (n % 7)::text) FROM generate_series(1, 950) n"
        )
        for n in range(20):
            note = {"note": n, "broken": True} if n % 5 == 0 else {"note": n}
            connection.execute("SELECT django_events_publish('notes', %s, key => %s)", [json.dumps(note), f"k{n}"])
        connection.execute(
            "SELECT django_events_schedule('notes', clock_timestamp() + interval '1 day', '{\"note\": \"late\"}')"
        )
        connection.execute("SELECT django_events_is_new('notes', 'taken', interval '1 day')")
    site.manage("shell", "-v0", "-c", HANDLE)
    with psycopg.connect(site.url) as connection:
        [first] = connection.execute(
            "SELECT min(e.id) FROM django_events_event e JOIN django_events_topic t ON t.id = e.topic_id"
            " WHERE name = 'passing'"
        ).fetchone()
        assert first > 1, "retention dropped something"
        connection.execute("CREATE ROLE analyst")
        connection.execute("GRANT SELECT ON django_events_event TO analyst")


def work(site: Site) -> tuple[list[Publisher], psycopg.Connection[Any]]:
    """Publishers, a transfer and consumers in the middle of it; events of `payments` stay in the buffer."""
    site.processes.start("run_transfer")
    site.ledger.publish("stock", {"gate": "held"}, key="held")
    fleet = Fleet(site.processes, site.ledger, *BUSY, threads=6)
    fleet.scale(1)
    site.processes.wait_until(
        lambda: all(site.ledger.gate(consumer, "held").pid for consumer in BUSY), what="deliveries in hand"
    )
    publishers = [site.processes.start_publisher(f"p{i}", "read committed", "0.2") for i in range(2)]
    site.processes.wait_until(lambda: site.ledger.spells() > 60, what="consumers at work")
    holder = psycopg.connect(site.url)
    holder.execute(
        "SELECT FROM django_events_topichead h JOIN django_events_topic t ON t.id = h.topic_id"
        " WHERE t.name = 'payments' FOR UPDATE OF h"
    )
    site.processes.wait_until(lambda: buffered(site.ledger, "payments") > 20, what="events that are not moved")
    return publishers, holder


def buffered(ledger: Ledger, topic: str) -> int:
    query = "SELECT count(*) FROM django_events_bufferedevent b JOIN django_events_topic t ON t.id = b.topic_id"
    [(count,)] = ledger.ask(f"{query} WHERE t.name = %s", topic)
    return int(count)


def values_of(site: Site) -> set[str]:
    """What publishers' processes published, in the log or on its way."""
    rows = site.ledger.ask(
        "SELECT value #>> '{}' FROM django_events_event"
        " UNION ALL SELECT value #>> '{}' FROM django_events_bufferedevent"
    )
    found = [value for (value,) in rows if re.fullmatch(r"p\d/\d+", value)]
    assert len(found) == len(set(found)), "something is there twice"
    return set(found)


def check_taken_over(before: Site, after: Site, committed: set[str], unsure: set[str]) -> None:
    """The restored database, before anything works on it."""
    values = values_of(after)
    assert committed <= values, "what was committed before the dump began is in it"
    assert values <= unsure
    old, new = before.log(), after.log()
    assert new.keys() <= old.keys()
    for topic, events in new.items():
        assert events == old[topic][: len(events)], "a dump is the beginning of what the log was later"
    ask = after.ledger.ask
    assert buffered(after.ledger, "payments") > 20
    [(ticket, handed_out)] = ask(
        "SELECT max(id), (SELECT last_value FROM django_events_bufferedevent_id_seq) FROM ("
        " SELECT id FROM django_events_bufferedevent UNION ALL SELECT id FROM django_events_scheduledevent) AS waiting"
    )
    assert ticket <= handed_out, "no ticket is given again"
    for table in ("topic", "consumer", "deadletter", "position"):
        [(last, handed_out)] = ask(
            f"SELECT max(id), (SELECT last_value FROM django_events_{table}_id_seq) FROM django_events_{table}"
        )
        assert last <= handed_out
    in_hand = ask(
        "SELECT DISTINCT c.name FROM django_events_deliverylease l JOIN django_events_consumer c"
        " ON c.id = l.consumer_id"
    )
    assert {name for (name,) in in_hand} >= {"in_order", "queued"}
    assert ask("SELECT count(*) FROM django_events_deadletter") == [(4,)]
    assert ask("SELECT count(*) FROM django_events_scheduledevent") == [(1,)]
    assert ask("SELECT django_events_is_new('notes', 'taken', interval '1 day')") == [(False,)]


def go_on(site: Site) -> None:
    """Everything is started on the restored database, and gets to the end."""
    before = {topic: events[-1][0] for topic, events in site.log().items()}
    publishers = [site.processes.start_publisher(f"r{i}", "read committed", "0.1") for i in range(2)]
    transfer = site.processes.start("run_transfer")
    fleet = Fleet(site.processes, site.ledger, *SERVED, threads=3)
    fleet.scale(2)
    assert "4" in site.manage("events", "redrive", "strict", "--all", "--execute")
    site.processes.wait_until(lambda: len(publishers[0].values("committed")) > 15, what="publishers at work")
    for publisher in publishers:
        publisher.stop()
    fleet.finish()
    transfer.terminate()
    assert transfer.wait(60) == 0, site.processes.said(transfer)

    site.manage("events", "verify")
    log = site.log()
    floors = dict(
        site.ledger.ask(
            "SELECT name, id_floor FROM django_events_topichead h JOIN django_events_topic t ON t.id = h.topic_id"
        )
    )
    for topic, events in log.items():
        assert [id for id, *_ in events] == list(range(floors[topic] + 1, floors[topic] + len(events) + 1))
    assert log["orders"][-1][0] > before["orders"]
    in_log = {event[4] for events in log.values() for event in events if isinstance(event[4], str)}
    assert set().union(*(p.values("committed") for p in publishers)) <= in_log
    check_effects(site.ledger, BUSY)
    for consumer in ("strict", "patient"):
        assert sorted(one.id for one in site.ledger.done(consumer)) == list(range(1, 21)), consumer
    assert sorted(one.id for one in site.ledger.done("reader")) == list(range(1, 951))


@pytest.mark.requirement("P12")
@pytest.mark.parametrize(
    ("format", "old"), [("custom", newest), ("plain", newest), ("custom", oldest)], ids=["custom", "plain", "upgrade"]
)
def test_a_dump_of_a_site_at_work_goes_on_elsewhere(
    format: str, old: Callable[[], Path], make_server: MakeServer, make_site: Callable[..., Site], tmp_path: Path
):
    source, target = make_server(old()), make_server(newest(), autovacuum="off")
    before = make_site(database_of(source), "before")
    fill(before)
    publishers, holder = work(before)
    committed = set().union(*(p.values("committed") for p in publishers))
    dump = tmp_path / "site.dump"
    # By the source's own program: the newer one asks some builds of 15 for column options that 18 refuses.
    program(old(), "pg_dump", f"--format={format}", f"--file={dump}", f"--dbname={before.url}")
    for publisher in publishers:
        publisher.stop()
    before.processes.end()
    holder.close()
    assert before.processes.run("run_transfer", "--once").returncode == 0
    unsure = set().union(*(p.values("committed") | p.values("unknown") for p in publishers))

    url = database_of(target)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE ROLE analyst")
    if format == "custom":
        program(newest(), "pg_restore", "--exit-on-error", "--jobs=2", f"--dbname={url}", dump)
    else:
        program(newest(), "psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--dbname={url}", f"--file={dump}")

    assert schema_of(url) == schema_of(before.url)
    after = make_site(url, "after", repaired=True)
    check_taken_over(before, after, committed, unsure)
    if format == "plain":  # as after a restore to an older point: it is for readers outside, and no other reader minds
        after.ledger.tell("UPDATE django_events_topic SET incarnation = gen_random_uuid()")
    go_on(after)


@pytest.mark.requirement("P12")
def test_pg_upgrade_keeps_everything_where_it_is(make_server: MakeServer, make_site: Callable[..., Site]):
    """From the version before the newest one here to that one, in place."""
    older = previous()
    old, new = make_server(older), make_server(newest())
    before = make_site(database_of(old), "before")
    fill(before)
    schema, log = schema_of(before.url), before.log()
    before.ledger.close()
    with psycopg.connect(new.url, autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER ROLE postgres PASSWORD {}").format(old.password))
    old.stop()
    new.stop()
    account = server_account().popen_arguments()
    place = {"cwd": new.data.parent / "upgrade", **account}
    place["cwd"].mkdir(mode=0o700)
    server_account().give(place["cwd"])
    new.data.parent.chmod(0o711)
    old.data.parent.chmod(0o711)
    variables = {"PATH": os.environ["PATH"], "PGPASSWORD": old.password, "LC_ALL": "C"}
    subprocess.run([newest() / "pg_checksums", "--disable", "--pgdata", new.data], check=True, **place)
    done = subprocess.run(
        [
            newest() / "pg_upgrade", "--username=postgres", f"--old-bindir={older}", f"--new-bindir={newest()}",
            f"--old-datadir={old.data}", f"--new-datadir={new.data}",
        ],
        capture_output=True, text=True, check=False, timeout=120, env=variables, **place,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    new.password = old.password
    new.start()
    after = make_site(urlunsplit(urlsplit(new.url)._replace(path="/site")), "after", repaired=True)
    assert after.log() == log
    assert schema_of(after.url) == schema
    after.manage("shell", "-v0", "-c", HANDLE)
    after.manage("events", "verify")
