"""The public names: what they are, and that importing them costs nothing."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest

import django_events

ROOT = Path(__file__).parents[2]


def run_python(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], env={}, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def every_module() -> list[str]:
    return [found.name for found in pkgutil.walk_packages(django_events.__path__, "django_events.")]


def test_every_module_is_found_by_the_walk():
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "django_events").rglob("*.py")
    }
    assert files == {"django_events", *every_module()}


@pytest.mark.parametrize("name", django_events.__all__)
def test_no_module_shadows_a_public_name(name):
    """Importing django_events/publish.py, if there were one, would replace django_events.publish."""
    for module in every_module():
        importlib.import_module(module)
    value = getattr(django_events, name)

    assert not isinstance(value, ModuleType)
    assert value is getattr(importlib.import_module(django_events._HOMES[name]), name)


def test_every_public_name_is_what_it_says():
    from django_events.drafts import Unset

    classes = {
        *(
            "Backoff",
            "Claimed",
            "DeclaredConsumer",
            "Ignore",
            "Draft",
            "EventsError",
            "Receipt",
            "ReceivedEvent",
            "RetryLater",
        ),
        *("BufferedWriter", "CreateTopic", "DeclaredProjection", "DeclaredRelay", "DeclaredRollUp"),
        *("DeclaredInbox", "InboxMessage"),
        *("DeclaredTopic", "Deletion"),
    }
    assert {name for name in django_events.__all__ if inspect.isclass(getattr(django_events, name))} == classes
    functions = {
        *("await_for", "end_streams", "end_streams_on_sigterm", "listen", "reads_own_writes", "sse", "wait_for"),
        *("apublish", "apublish_many", "cancel", "capture", "claim", "close_writers", "consumer", "event_context"),
        *("outbox", "projection", "publish", "publish_many", "queue", "rollup", "schema", "shard_of", "suppress"),
        *("topic", "upcaster"),
        *("jetstream", "kafka", "rabbitmq", "redis_stream", "relay", "sns", "sqs"),
        *("inbox", "jetstream_source", "kafka_source", "log_source", "rabbitmq_source", "redis_source", "sqs_source"),
    }
    assert {name for name in django_events.__all__ if inspect.isfunction(getattr(django_events, name))} == functions
    assert isinstance(django_events.UNSET, Unset)
    assert isinstance(django_events.DELETE, django_events.Deletion)
    assert set(django_events.__all__) == classes | functions | {"DELETE", "UNSET"}


OPERATIONS = {
    *(
        "add_webhook",
        "cancel_scheduled",
        "change_webhook",
        "rotate_secret",
        "try_webhook",
        "discard",
        "erase",
        "lag",
        "matches",
        "pause",
        "publish_again",
        "publish_scheduled",
        "remove_clock",
        "remove_inbox",
        "restart_inbox",
    ),
    *("pause_clock", "resume_clock", "run_clock", "pause_inbox", "resume_inbox"),
    *(
        "rebuild",
        "abandon_rebuild",
        "redrive",
        "resume",
        "retry_now",
        "remove_topic",
        "forget_shard",
        "repartition",
        "replay",
        "reshard",
        "rewind",
        "search",
        "skip",
        "snapshot",
        "subscribe",
        "unregister",
        "unsubscribe",
    ),
}
OUTCOMES = {
    *(
        "Matched",
        "Move",
        "Rebuilt",
        "RemovedTopic",
        "Repartitioned",
        "Replayed",
        "Resharded",
        "Retried",
        "Searched",
        "Skipped",
        "Snapshot",
        "Subscribed",
        "WebhookAnswer",
    ),
}
OF_A_CONSUMER = ("lag", "pause", "replay", "resume", "retry_now", "rewind", "skip", "unregister")


def test_operations_have_every_verb_and_nothing_else():
    from django_events import operations

    assert set(operations.__all__) == OPERATIONS | OUTCOMES
    assert {name for name in operations.__all__ if inspect.isclass(getattr(operations, name))} == OUTCOMES
    assert {name for name in dir(operations) if inspect.isfunction(getattr(operations, name))} == OPERATIONS


def test_a_verb_of_an_operator_is_not_at_the_root():
    assert not OPERATIONS & {*dir(django_events), *django_events.__all__}


@pytest.mark.parametrize("name", OF_A_CONSUMER)
def test_a_declaration_has_the_verb_with_the_same_arguments_and_result(name, monkeypatch):
    from django_events import operations
    from django_events.declarations import DeclaredConsumer

    of_function = inspect.signature(getattr(operations, name)).parameters
    of_method = inspect.signature(getattr(DeclaredConsumer, name)).parameters
    described = [(one.name, one.kind, one.default) for one in of_function.values()][1:]
    assert [(one.name, one.kind, one.default) for one in of_method.values()][1:] == described
    assert (
        get_type_hints(getattr(DeclaredConsumer, name))["return"] == get_type_hints(getattr(operations, name))["return"]
    )

    asked = []
    monkeypatch.setattr(operations, name, lambda *given, **options: asked.append((given, options)))
    billing = DeclaredConsumer(name="billing", topics=("orders",), handler=print)
    given = (7,) if name == "skip" else ()
    options = {one.name: object() for one in of_method.values() if one.kind is one.KEYWORD_ONLY}
    getattr(billing, name)(*given, **options)
    assert asked == [((billing, *given), options)]


def test_a_projection_is_rebuilt_with_the_same_arguments_and_result(monkeypatch):
    from django_events import DeclaredProjection, operations

    of_function, of_method = (inspect.signature(one) for one in (operations.rebuild, DeclaredProjection.rebuild))
    described = [[(o.name, o.kind, o.default) for o in one.parameters.values()][1:] for one in (of_function, of_method)]
    assert described[0] == described[1]
    asked = []
    monkeypatch.setattr(operations, "rebuild", lambda *given, **options: asked.append((given, options)))
    totals = DeclaredProjection(name="totals", topics=("orders",), handler=print)
    options = {one.name: object() for one in of_method.parameters.values() if one.kind is one.KEYWORD_ONLY}
    totals.rebuild(**options)
    assert asked == [((totals,), options)]


@pytest.mark.parametrize(
    ("method", "verb"), [("pause", "pause_clock"), ("resume", "resume_clock"), ("run", "run_clock")]
)
def test_a_declared_clock_has_the_verb_with_the_same_arguments_and_result(method, verb, monkeypatch):
    from django_events import operations
    from django_events.declarations import DeclaredClock

    of_function, of_method = (
        inspect.signature(one) for one in (getattr(operations, verb), getattr(DeclaredClock, method))
    )
    assert [*of_method.parameters.values()][1:] == [*of_function.parameters.values()][1:]
    assert of_method.return_annotation == of_function.return_annotation

    asked = []
    monkeypatch.setattr(operations, verb, lambda *given, **options: asked.append((given, options)))
    clock = DeclaredClock(name="c", topic="t", cron="0 3 * * *", type="nightly")
    getattr(clock, method)(reason="r", by="ada", using="default")
    assert asked == [((clock,), {"reason": "r", "by": "ada", "using": "default"})]


@pytest.mark.parametrize("method", ["pause", "resume", "restart"])
def test_a_declared_inbox_has_the_verb_with_the_same_arguments_and_result(method, monkeypatch):
    from django_events import operations, redis_source
    from django_events.declarations import DeclaredInbox

    verb = f"{method}_inbox"
    of_function, of_method = (
        inspect.signature(one) for one in (getattr(operations, verb), getattr(DeclaredInbox, method))
    )
    assert [*of_method.parameters.values()][1:] == [*of_function.parameters.values()][1:]
    assert of_method.return_annotation == of_function.return_annotation

    asked = []
    monkeypatch.setattr(operations, verb, lambda *given, **options: asked.append((given, options)))
    inbox = DeclaredInbox(name="i", topic="t", source=redis_source("bank"))
    options = {one.name: object() for one in of_method.parameters.values() if one.kind is one.KEYWORD_ONLY}
    getattr(inbox, method)(**options)
    assert asked == [((inbox,), options)]


def test_a_declared_topic_is_removed_with_the_same_arguments_and_result(monkeypatch):
    from django_events import operations
    from django_events.declarations import DeclaredTopic

    of_function, of_method = (inspect.signature(one) for one in (operations.remove_topic, DeclaredTopic.remove))
    assert [*of_method.parameters.values()][1:] == [*of_function.parameters.values()][1:]
    assert of_method.return_annotation == of_function.return_annotation
    asked = []
    monkeypatch.setattr(operations, "remove_topic", lambda *given, **options: asked.append((given, options)))
    orders = DeclaredTopic(name="orders")
    options = {one.name: object() for one in of_method.parameters.values() if one.kind is one.KEYWORD_ONLY}
    orders.remove(**options)
    assert asked == [((orders,), options)]


def test_async_twins_take_the_same_arguments():
    from django_events import apublish, apublish_many, publish, publish_many
    from django_events.declarations import EventFields

    assert inspect.iscoroutinefunction(apublish) and inspect.iscoroutinefunction(apublish_many)
    assert inspect.signature(apublish_many).parameters == inspect.signature(publish_many).parameters
    assert set(inspect.signature(publish).parameters) == {"topic", "value", *EventFields.__annotations__}
    assert list(inspect.signature(apublish).parameters) == ["topic", "value", "fields"]


def test_everything_public_has_a_home_and_nothing_else_does():
    assert sorted(django_events._HOMES) == sorted(django_events.__all__)


def test_public_names_are_documented():
    from django_events import operations

    for home, names in (
        (django_events, set(django_events.__all__) - {"DELETE", "UNSET"}),
        (operations, operations.__all__),
    ):
        for name in names:
            assert inspect.getdoc(getattr(home, name)), name


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'django_events' has no attribute 'publisch'"):
        django_events.publisch  # noqa: B018
    with pytest.raises(ImportError):
        from django_events import publisch  # noqa: F401


def test_importing_the_package_loads_no_django_and_no_database_driver():
    run_python("""
import sys
import django_events
loaded = [name for name in sys.modules if name.split(".")[0] in ("django", "psycopg", "pgtrigger", "asgiref")]
assert not loaded, loaded
assert [name for name in sys.modules if name.startswith("django_events.")] == []
""")


def test_the_names_of_declarations_load_no_django():
    run_python("""
import sys
from django_events import UNSET, EventsError, DeclaredTopic, topic
loaded = [name for name in sys.modules if name.split(".")[0] in ("django", "psycopg", "pgtrigger")]
assert not loaded, loaded
""")


def test_all_names_are_listed_before_they_are_loaded():
    run_python("""
import django_events
assert set(django_events.__all__) <= set(dir(django_events))
assert "__version__" in dir(django_events)
assert "publish" not in vars(django_events)
""")


def test_a_name_is_looked_up_once():
    run_python("""
import django_events
django_events.topic
assert "topic" in vars(django_events)
assert django_events.topic is vars(django_events)["topic"]
""")
