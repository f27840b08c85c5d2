"""`manage.py events peek --follow` as an operator who watches a topic sees it."""

import json
import signal
import subprocess
import sys
from typing import Any

import psycopg
import pytest

from tests.support.processes import MANAGE, Processes

pytestmark = pytest.mark.quick


def publish(processes: Processes, value: str, type: str = "visit") -> None:
    with psycopg.connect(processes.url) as connection:
        connection.execute("SELECT django_events_publish('orders', %s::jsonb, %s, null)", [value, type])
    assert processes.run("run_transfer", "--once").returncode == 0


def lines(processes: Processes, following: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    return [json.loads(line) for line in processes.said(following).splitlines() if line.startswith("{")]


def started(processes: Processes, *arguments: str) -> "subprocess.Popen[str]":
    return processes.start("events", "peek", "orders", "--follow", "--since", "0", "--format", "json", *arguments)


@pytest.mark.slow
def test_what_comes_is_a_line_each_also_after_the_sessions_were_ended(processes: Processes) -> None:
    publish(processes, '{"n": 1}')
    publish(processes, '{"n": 2}', type="else")
    following = started(processes, "--type", "visit", "--where", "$.n < 9")
    processes.wait_until(lambda: len(lines(processes, following)) == 1, what="the first event")
    with psycopg.connect(processes.url, autocommit=True) as admin:
        ended = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND datname = current_database() AND backend_type = 'client backend'"
        )

        def away() -> bool:
            admin.execute(ended)
            return "Trying again" in processes.said(following)

        processes.wait_until(away, what="the message")
    publish(processes, '{"n": 3}')
    processes.wait_until(lambda: len(lines(processes, following)) == 2, what="the next event")
    following.send_signal(signal.SIGINT)

    assert following.wait(60) == 0
    assert [one["address"] for one in lines(processes, following)] == ["orders/1", "orders/3"]
    assert "Traceback" not in processes.said(following)


@pytest.mark.slow
def test_it_ends_when_its_pipe_is_closed_although_nothing_comes(processes: Processes) -> None:
    publish(processes, '{"n": 1}')
    command = [sys.executable, str(MANAGE), "events", "peek", "orders", "--follow", "--since", "0", "--format", "json"]
    following = subprocess.Popen(command, env=processes.environment(), stdout=subprocess.PIPE, text=True)
    assert following.stdout is not None
    assert json.loads(following.stdout.readline())["id"] == 1
    following.stdout.close()

    assert following.wait(60) == 0
