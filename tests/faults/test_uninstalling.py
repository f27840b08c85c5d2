"""Uninstalling a site at work: nothing is left, workers say why they end, and the site's own tables can be written."""

import psycopg
import pytest

from tests.faults.consumers.fleet import READY
from tests.support.processes import Processes

TRACES = """
SELECT oid::regclass::text FROM pg_class WHERE relname LIKE ANY (ARRAY['%django_events%', '%pgtrigger%'])
UNION ALL SELECT oid::regprocedure::text FROM pg_proc WHERE concat(proname, prosrc) LIKE '%django_events%'
    AND pronamespace = 'public'::regnamespace
UNION ALL SELECT tgname FROM pg_trigger WHERE tgname LIKE 'pgtrigger%'
UNION ALL SELECT typname FROM pg_type WHERE typname LIKE '%django_events%'
UNION ALL SELECT description FROM pg_description WHERE objoid >= 16384 AND description <> 'standard public schema'
UNION ALL SELECT relacl::text FROM pg_class WHERE relacl::text LIKE '%site_reader%'
UNION ALL SELECT name FROM django_migrations WHERE app = 'django_events'
"""
CHANGE_STOCK = "UPDATE shop_product SET on_shelf = on_shelf + 1"


@pytest.mark.requirement("P12")
def test_a_site_at_work_is_uninstalled_without_a_trace_and_installed_again(processes: Processes):
    """With queues, streams and a roll-up, a captured table, a topic whose first ids are gone, and rights of a role."""
    with psycopg.connect(processes.url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS site_reader")
        connection.execute("CREATE ROLE site_reader")
        connection.execute("GRANT SELECT ON django_events_event, django_events_topic TO site_reader")
        connection.execute("INSERT INTO shop_product (sku, price, on_shelf) VALUES ('tea', 1, 10)")
        connection.execute(
            "UPDATE django_events_topichead SET id_floor = 40, number_floors = '[40]' WHERE topic_id ="
            " (SELECT id FROM django_events_topic WHERE name = 'stock')"
        )
        before = incarnations(connection)
        workers = [processes.start("run_transfer"), processes.start("run_consumer", "--all")]
        publisher = processes.start_publisher("p0", "read committed", "0.01")
        processes.wait_until(lambda: all(READY in processes.said(worker) for worker in workers), what="workers")
        processes.wait_until(lambda: in_log(connection) > 50, what="events in the log")

        publisher.stop()
        undone = processes.run("migrate", "django_events", "zero", "-v0")
        assert undone.returncode == 0, undone.stderr
        assert connection.execute(TRACES).fetchall() == []
        assert connection.execute(CHANGE_STOCK).rowcount == 1
        for worker in workers:
            assert worker.wait(60) == 1, processes.said(worker)
            assert "Run: manage.py migrate" in processes.said(worker)
            assert "Traceback" not in processes.said(worker)

        again = processes.run("migrate", "-v0")
        assert again.returncode == 0, again.stderr
        assert incarnations(connection).keys() == before.keys()
        assert not set(incarnations(connection).values()) & set(before.values())
        installed = processes.run("pgtrigger", "install")
        assert installed.returncode == 0, installed.stderr
        connection.execute(CHANGE_STOCK)
        assert processes.run("run_transfer", "--once").returncode == 0
        ids = connection.execute("SELECT e.id FROM django_events_event e").fetchall()
        assert ids == [(1,)]
        assert processes.run("events", "verify").returncode == 0


def incarnations(connection):
    return dict(connection.execute("SELECT name, incarnation FROM django_events_topic").fetchall())


def in_log(connection):
    [count] = connection.execute("SELECT count(*) FROM django_events_event").fetchone()
    return count
