"""A rolling deployment: workers of the last version of a site's `events.py` beside those of the next one."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.fix_sites import Site
from tests.support.processes import wait_until

pytestmark = pytest.mark.requirement("X7", "X19")

EVENTS = """
from datetime import timedelta

from django_events import Backoff, consumer, topic

{topics}
ONCE = Backoff(attempts=1)


def known(event):
    from board.models import Note

    if event.type not in {types!r}:
        raise ValueError(f"{{event.type}} is not known")
    Note.objects.create(text=f"{{event.consumer}} {{event.address}}")


consumer(notes, name="stream", types={types!r}, retry=ONCE, lease=timedelta(seconds=2))(known)
consumer(notes, name="queue", types={types!r}, retry=ONCE, lease=timedelta(seconds=2), mode="queue")(known)
consumer(notes, name="narrow", types={narrow!r}, retry=ONCE, lease=timedelta(seconds=2))(known)
{more}
"""
OLD = {"topics": 'notes = topic("notes")', "types": ["a"], "narrow": ["a", "c"], "more": ""}
NEW = {
    "topics": 'notes = topic("notes", partitions=3)\nextra = topic("extra")',
    "types": ["a", "b"],
    "narrow": ["a"],
    "more": 'consumer(notes, extra, name="fresh", types=["a", "b"], retry=ONCE)(known)',
}
PUBLISH = """
from django_events import Draft, publish_many

publish_many("notes", [Draft(value=n, type="ab"[n % 2], key=str(n % 7)) for n in range(40)])
print(json.dumps(None))
"""


class Version:
    """One version of a site, and its processes."""

    def __init__(self, site: Site, declared: dict[str, object]) -> None:
        self.site = site
        site.write("board/events.py", EVENTS.format(**declared))
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        path = self.site.folder / f"{len(self.started)}.log"
        with path.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "django", *arguments],
                env=self.site.environment(),
                cwd=self.site.folder,
                stdout=log,
                stderr=log,
                text=True,
            )
        self.started.append(process)
        wait_until(lambda: "Ctrl-C stops." in path.read_text() or process.poll() is not None, what="a process at work")
        assert process.poll() is None, path.read_text()
        return process

    def said(self) -> str:
        return "".join(path.read_text() for path in sorted(self.site.folder.glob("*.log")))

    def publish(self) -> None:
        self.site.python(PUBLISH)

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def old(site: Site) -> Iterator[Version]:
    version = Version(site, OLD)
    site.do("migrate", "-v0", "--run-syncdb")
    yield version
    version.end()


@pytest.fixture
def new(site: Site) -> Iterator[Version]:
    version = Version(Site(site.folder / "new", site.conninfo), NEW)
    yield version
    version.end()


@pytest.fixture
def ask(site: Site) -> Iterator[object]:
    with psycopg.connect(make_conninfo("", **site.conninfo), autocommit=True) as connection:
        yield lambda query, *values: connection.execute(query, values).fetchall()


def handled(ask, consumer):
    """The ids of the events of `notes` that a consumer has handled, in the order of handling."""
    rows = ask("SELECT text FROM board_note WHERE text LIKE %s ORDER BY id", f"{consumer} notes/%")
    return [int(text.rpartition("/")[2]) for (text,) in rows]


def published(ask, types):
    rows = ask(
        "SELECT e.id FROM django_events_event e JOIN django_events_topic t ON t.id = e.topic_id"
        " WHERE t.name = 'notes' AND e.type = ANY(%s) ORDER BY e.id",
        list(types),
    )
    return [one for (one,) in rows]


def first_id(ask):
    """From which id on the new filters count."""
    [(stretch,)] = ask(
        "SELECT coalesce(max(e.id), 0) FROM django_events_event e JOIN django_events_topic t"
        " ON t.id = e.topic_id WHERE t.name = 'notes'"
    )
    return stretch + 1


def check_none_failed(ask):
    assert ask("SELECT * FROM django_events_deadletter") == []
    assert ask("SELECT sum(failed) FROM django_events_position") == [(0,)]


def test_old_workers_leave_what_they_do_not_know_to_new_ones_and_fail_nothing(old, new, ask):
    old.start("run_transfer")
    for _ in range(2):
        old.start("run_consumer", "--all")
    old.publish()
    wait_until(lambda: len(handled(ask, "stream")) == len(handled(ask, "queue")) == 20, what="old workers at work")

    said = new.site.do("migrate").stdout
    begins = first_id(ask)
    assert f"its filter is other from notes/{begins} on, events below it are judged by the former" in said
    new.publish()
    old.publish()
    wait_until(lambda: len(published(ask, "ab")) == 120, what="events in the log")
    wait_until(lambda: old.said().count("is left to workers of the code that was registered") >= 6, what="old workers")
    assert len(handled(ask, "stream")) == len(handled(ask, "queue")) == 20
    status = old.site.manage("events", "status").stdout
    assert "declared otherwise" in status, status
    assert "types=['a'] instead of ['a', 'b']" in status

    new.start("run_consumer", "--all")
    expected = published(ask, "a") + [one for one in published(ask, "b") if one >= begins]
    for name in ("stream", "queue"):
        wait_until(lambda name=name: len(handled(ask, name)) >= len(expected), what=f"all of {name}")
        assert sorted(handled(ask, name)) == sorted(expected)
    wait_until(lambda: len(handled(ask, "fresh")) == 120, what="what only the new code declares")
    assert sorted(handled(ask, "narrow")) == published(ask, "a")
    check_none_failed(ask)
    assert "declared otherwise" not in new.site.manage("events", "status").stdout
    for process in old.started:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_after_a_rollback_old_workers_go_on(old, new, ask):
    old.start("run_transfer")
    old.start("run_consumer", "--all")
    new.site.do("migrate", "-v0")
    wait_until(lambda: "is left to workers" in old.said(), what="an old worker that leaves it")
    old.site.do("migrate", "-v0")
    old.publish()
    wait_until(lambda: len(handled(ask, "stream")) == len(handled(ask, "queue")) == 20, what="old workers at work")
    check_none_failed(ask)


def test_filters_change_again_and_again_under_load_while_workers_die(old, new, ask):
    """Each event is judged once, by the filter that counts for its id, whichever version handled it."""
    old.start("run_transfer")
    only_a = PUBLISH.replace('"ab"[n % 2]', '"a"')
    for step in range(4):
        version = (new, old)[step % 2]
        workers = [one.start("run_consumer", "--all", "--threads", "2") for one in (old, new)]
        frozen, killed = workers[step % 2], workers[1 - step % 2]
        version.site.python(only_a)
        frozen.send_signal(signal.SIGSTOP)
        version.site.do("migrate", "-v0")
        version.site.python(only_a)
        killed.kill()
        version.start("run_consumer", "--all")
        frozen.send_signal(signal.SIGCONT)
    wait_until(lambda: len(published(ask, "a")) == 320, what="all in the log")
    for name in ("stream", "queue", "narrow"):
        wait_until(lambda name=name: len(handled(ask, name)) >= 320, what=f"all of {name}")
        assert sorted(handled(ask, name)) == published(ask, "a"), "none twice"
    check_none_failed(ask)
