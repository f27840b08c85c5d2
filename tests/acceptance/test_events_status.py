"""`manage.py events status --watch` as an operator who watches sees it."""

import json
import signal

import psycopg
import pytest

from tests.support.processes import Processes

pytestmark = [pytest.mark.requirement("S13"), pytest.mark.quick]


@pytest.mark.slow
def test_it_is_repeated_until_ctrl_c(processes: Processes):
    watching = processes.start("events", "status", "--watch", "0.1")
    processes.wait_until(lambda: times(processes, watching) >= 3, what="3 reports")
    watching.send_signal(signal.SIGINT)

    assert watching.wait(60) == 0
    assert "Traceback" not in processes.said(watching)
    assert "\x1b" not in processes.said(watching)


@pytest.mark.slow
def test_json_is_a_line_each(processes: Processes):
    watching = processes.start("events", "status", "--watch", "0.1", "--format", "json")
    processes.wait_until(lambda: processes.said(watching).count("\n") >= 3, what="3 lines")
    watching.send_signal(signal.SIGTERM)

    assert watching.wait(60) == 0
    for line in processes.said(watching).splitlines():
        assert json.loads(line)["findings"] is not None


@pytest.mark.slow
def test_a_database_that_goes_away_is_asked_again(processes: Processes):
    watching = processes.start("events", "status", "--watch", "0.1")
    processes.wait_until(lambda: times(processes, watching) >= 1, what="the first report")
    with psycopg.connect(processes.url, autocommit=True) as admin:
        ended = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )

        def away() -> bool:
            admin.execute(ended)
            return "Trying again" in processes.said(watching)

        processes.wait_until(away, what="the message")
    seen = times(processes, watching)
    processes.wait_until(lambda: times(processes, watching) > seen + 1, what="the next report")
    watching.send_signal(signal.SIGINT)

    assert watching.wait(60) == 0
    assert "Traceback" not in processes.said(watching)


def times(processes: Processes, watching: object) -> int:
    """How many reports there are."""
    return processes.said(watching).count("last event")  # type: ignore[arg-type]
