"""The alerts and the dashboard in the package: Prometheus reads them, and they ask for metrics that exist."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from django_events import telemetry
from django_events.observing import state

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "django_events/metrics/alerts.yml"
DASHBOARD = ROOT / "django_events/metrics/dashboard.json"
METRICS = {one.full_name: one for one in (*state.STATE_METRICS, *telemetry.INSTRUMENTS)}
ASKED = re.compile(r"(django_events_[a-z_]+)(?:\{([^}]*)\})?")
LABEL = re.compile(r"([a-z_]+)\s*(?:=~|!=|!~|=)")
SIDES = ("x", "y", "w", "h")


def promtool(*arguments: str, folder: Path) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("There is no promtool: apt-get install prometheus")
    done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return read


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def check_asked(text: str) -> None:
    """Each metric is one of ours, and is told with these labels."""
    assert ASKED.search(text)
    for name, labels in ASKED.findall(text):
        metric = METRICS.get(name) or METRICS.get(re.sub("_(bucket|sum|count)$", "", name))
        assert metric is not None, f"There is no metric {name}."
        assert name in METRICS or metric.kind == "histogram", name
        assert set(LABEL.findall(labels)) <= {*metric.labels, "le"}, f"{name} has no such labels: {labels}"


@pytest.mark.requirement("X10")
def test_prometheus_takes_the_alerts(tmp_path: Path) -> None:
    assert "23 rules found" in promtool("check", "rules", str(ALERTS), folder=tmp_path)


@pytest.mark.requirement("X10")
def test_alerts_say_who_and_what(tmp_path: Path) -> None:
    shutil.copy(ALERTS, tmp_path)
    shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml", folder=tmp_path)


def test_alerts_ask_for_metrics_that_exist() -> None:
    expressions = re.findall(r"^ +expr: (.*)$", ALERTS.read_text(), flags=re.MULTILINE)
    assert len(expressions) == 23
    for expression in expressions:
        check_asked(expression)


def test_alerts_have_a_severity_texts_and_a_page_of_the_runbook() -> None:
    for alert in ALERTS.read_text().split("- alert: ")[1:]:
        assert re.search(r"labels: \{severity: (critical|warning)\}", alert), alert
        assert re.search(r"\n +summary: .", alert), alert
        assert re.search(r"\n +description: .", alert), alert
        [(page, anchor)] = re.findall(r"\n +runbook: (\S+\.md)#(\S+)", alert)
        headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), flags=re.MULTILINE)
        assert anchor in {re.sub(r"[^\w\- ]", "", one).lower().replace(" ", "-") for one in headings}, anchor


def test_the_dashboard_asks_for_metrics_that_exist(dashboard: dict[str, Any]) -> None:
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    for expression in expressions(dashboard):
        check_asked(expression)
        assert set(re.findall(r"\$(\w+)", expression)) <= {*variables, "__rate_interval"}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            assert variable["definition"] == variable["query"]["query"]
            [(name, label)] = re.findall(r"label_values\((\w+), (\w+)\)", variable["definition"])
            assert label in METRICS[name].labels


@pytest.mark.requirement("X10")
def test_prometheus_takes_what_the_dashboard_asks(dashboard: dict[str, Any], tmp_path: Path) -> None:
    rules = [
        {"record": f"asked:{number}", "expr": re.sub(r"\$\w+", ".*", asked.replace("$__rate_interval", "5m"))}
        for number, asked in enumerate(expressions(dashboard))
    ]
    (tmp_path / "asked.yml").write_text(json.dumps({"groups": [{"name": "asked", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", "asked.yml", folder=tmp_path)


def test_no_two_lines_of_a_panel_have_the_same_legend(dashboard: dict[str, Any]) -> None:
    """Also where two databases have topics and consumers of the same names, and where several targets are read."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            aggregated = re.match(r"(?:\w+\((?:[\d.]+, )?)?(?:sum|max|min) by \(([^)]*)\)", target["expr"])
            if panel["type"] in ("timeseries", "table"):
                assert aggregated, target["expr"]
                labels = set(aggregated[1].split(", ")) - {"le"}
                assert "database" in labels, target["expr"]
                told = labels if panel["type"] == "table" else set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                assert told == labels, panel["title"]


def test_commands_of_alerts_are_about_their_database() -> None:
    """An alert of another database than the one where events are written is looked into there."""
    commands = re.findall(r"manage\.py events [^`\"\n]*", ALERTS.read_text())
    assert len([one for one in commands if one.endswith(" --database {{ $labels.database }}")]) == len(commands) > 5


def test_the_dashboard_is_one_for_grafana(dashboard: dict[str, Any]) -> None:
    """What its schema asks for: panels with their own ids and places, and queries by the chosen source."""
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= set(dashboard)
    assert dashboard["schemaVersion"] >= 36
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert {"id", "type", "title", "gridPos"} <= set(panel)
        assert set(panel["gridPos"]) == set(SIDES)
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["description"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
    for one, other in combinations(panels, 2):
        (x, y, w, h), (x2, y2, w2, h2) = ([panel["gridPos"][side] for side in SIDES] for panel in (one, other))
        assert x + w <= 24
        assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y, f"{one['title']} covers {other['title']}"
