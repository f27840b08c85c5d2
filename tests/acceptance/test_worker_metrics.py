"""The metrics of real processes: what a worker serves, and what several processes of a site count together."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from testproject.private_postgres.server import choose_free_port
from tests.acceptance.conftest import Office
from tests.support.processes import ROOT, Processes

TOKEN = "a secret that is hard to guess"
SETTINGS = f"""
from tests.support.consuming_settings import *

DJANGO_EVENTS = {{"TELEMETRY": ["prometheus"], "METRICS_TOKEN": "{TOKEN}"}}
"""
COUNT_TOGETHER = f"""
import os

import django

django.setup()
from django.db import connections
from django.test import RequestFactory

from django_events import publish
from django_events.metrics.views import metrics

if os.fork() == 0:
    publish("letters", {{"silent": True}})
    connections.close_all()
    os._exit(0)
os.wait()
publish("letters", {{"silent": True}})
request = RequestFactory().get("/", headers={{"Authorization": "Bearer {TOKEN}"}})
print(metrics(request).content.decode())
"""


@pytest.fixture
def settings_module() -> str:
    return "tests.support.consuming_settings"


def value(text: str, name: str, **labels: str) -> float:
    """The sum of the samples with these labels, among others."""
    found = re.findall(rf"^django_events_{name}\{{(.*)\}} (\S+)$", text, flags=re.MULTILINE)
    return sum(float(number) for given, number in found if all(f'{k}="{v}"' in given for k, v in labels.items()))


@pytest.mark.slow
@pytest.mark.requirement("X10")
def test_a_worker_serves_what_it_counts(processes: Processes, office: Office) -> None:
    port = choose_free_port()
    worker = processes.start("run_events", "answering", "--no-reload", "--metrics", str(port))

    def page() -> str:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    processes.wait_until(lambda: "Ctrl-C stops" in processes.log_of("run_events"), what="the worker")
    office.post(*[{}] * 20)
    of = {"consumer": "answering", "topic": "letters"}
    processes.wait_until(lambda: value(page(), "attempts_total", **of, outcome="handled") == 20, what="20 letters")
    told = page()
    refused = processes.run("run_transfer", "--once", "--metrics", f"127.0.0.1:{port}")
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(60) == 0
    assert value(told, "moved_total", topic="letters") == 20
    assert value(told, "transfer_batch_events_sum") >= 20
    assert value(told, "publish_to_log_seconds_count", topic="letters") >= 1
    assert value(told, "log_to_handled_seconds_count", **of) >= 1
    assert "process_start_time_seconds" in told
    assert refused.returncode == 2
    assert "a port of its own" in refused.stderr


@pytest.mark.requirement("X10")
def test_the_processes_of_a_site_count_together(processes: Processes, office: Office, tmp_path: Path) -> None:
    folder = tmp_path / "together"
    folder.mkdir()
    (tmp_path / "counting_settings.py").write_text(SETTINGS)
    environment = {
        **processes.environment(),
        "DJANGO_SETTINGS_MODULE": "counting_settings",
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
        "PROMETHEUS_MULTIPROC_DIR": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-c", COUNT_TOGETHER], env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert value(done.stdout, "published_total", topic="letters") == 2
    assert value(done.stdout, "buffer_events", topic="letters") == 2
