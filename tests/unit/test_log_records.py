"""Log records have fields, so that they can be filtered by consumer, topic and event."""

import ast
import logging
from pathlib import Path

import pytest

import django_events

PACKAGE = Path(django_events.__file__).parent
LEVELS = {"info", "warning", "error", "critical", "exception", "log"}
ABOUT = ("Consumer %", "Topic %", "The step %")
FIELDS = {
    "database", "consumer", "topic", "partition", "event_id", "event_type", "attempt", "outcome", "step", "action",
    "by", "inbox",
}  # fmt: skip


def calls():
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS
            if is_call and isinstance(node.func.value, ast.Name) and node.func.value.id == "logger":
                yield path.relative_to(PACKAGE), node


@pytest.mark.slow
def test_records_about_a_consumer_a_topic_or_a_step_have_fields():
    found = 0
    for path, call in calls():
        texts = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        if any(text.startswith(ABOUT) for text in texts):
            found += 1
            assert "extra" in {one.arg for one in call.keywords}, f"{path}:{call.lineno} has no extra."
    assert found > 15


def test_fields_are_no_attributes_that_records_have_already():
    assert not FIELDS & set(vars(logging.makeLogRecord({})))


def test_the_reference_names_the_fields():
    text = (PACKAGE.parent / "docs/reference/metrics.md").read_text()
    section = text.split("### Fields of records")[1].split("\n## ")[0]
    assert {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")} == FIELDS
