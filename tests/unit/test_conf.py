"""The settings: one dict, typed, with a default for every key."""

from dataclasses import FrozenInstanceError
from datetime import timedelta

import pytest
from django.test import override_settings

from django_events import conf
from django_events.conf import Settings, settings
from django_events.exceptions import Invalid


@pytest.fixture(autouse=True)
def fresh_settings():
    settings.forget(setting="DJANGO_EVENTS")
    yield
    settings.forget(setting="DJANGO_EVENTS")


def test_every_key_has_a_default():
    assert vars(Settings()) == {
        "BROKERS": {},
        "DEDUP_WINDOW": timedelta(days=1),
        "EVENTS_MODULE": "events",
        "LIVE_CONNECTIONS": 1_000,
        "MASKED_FIELDS": (),
        "MAX_BATCH_BYTES": 33_554_432,
        "MAX_PAYLOAD_BYTES": 1_048_576,
        "METRICS_TOKEN": None,
        "NOTIFY": (),
        "POLL_INTERVAL": timedelta(seconds=0.5),
        "REQUIRE_TRANSACTION": False,
        "SAMPLES_KEPT": timedelta(days=2),
        "TELEMETRY": (),
        "TRANSFER_BATCH_SIZE": 5_000,
        "VANISHED_AFTER": timedelta(seconds=10),
        "WAKE_UPS": None,
        "WEBHOOK_ATTEMPTS_KEPT": timedelta(days=7),
        "WEBHOOK_DISABLED_AFTER": timedelta(days=5),
        "WEBHOOK_NETWORKS": (),
        "WEBHOOK_TIMEOUT": timedelta(seconds=15),
    }
    assert set(conf.KEYS) == set(vars(Settings()))


@override_settings()
def test_a_site_that_configures_nothing_gets_the_defaults():
    from django.conf import settings as django_settings

    if hasattr(django_settings, "DJANGO_EVENTS"):
        del django_settings.DJANGO_EVENTS

    assert conf.configured() == {}
    assert settings.TRANSFER_BATCH_SIZE == 5_000


def test_an_override_counts_at_once_and_until_it_ends():
    with override_settings(DJANGO_EVENTS={"TRANSFER_BATCH_SIZE": 7}):
        assert settings.TRANSFER_BATCH_SIZE == 7
        with override_settings(DJANGO_EVENTS={"WAKE_UPS": False}):
            assert settings.TRANSFER_BATCH_SIZE == 5_000
            assert settings.WAKE_UPS is False
        assert settings.TRANSFER_BATCH_SIZE == 7
    assert settings.TRANSFER_BATCH_SIZE == 5_000


def test_another_setting_that_changes_makes_nothing_forgotten():
    settings.TRANSFER_BATCH_SIZE  # noqa: B018  # reads the site's values
    known = settings._settings
    with override_settings(DEBUG=True):
        assert settings._settings is known


def test_values_are_read_once(monkeypatch):
    reads = []
    monkeypatch.setattr(conf, "configured", lambda: reads.append(1) or {})
    for key in conf.KEYS:
        getattr(settings, key)

    assert reads == [1]


@override_settings(DJANGO_EVENTS={"NO_SUCH_KEY": 1, "TRANSFER_BATCH_SIZE": 9})
def test_an_unknown_key_does_not_stop_a_process():
    assert settings.TRANSFER_BATCH_SIZE == 9
    with pytest.raises(AttributeError, match="NO_SUCH_KEY"):
        settings.NO_SUCH_KEY  # noqa: B018


@pytest.mark.parametrize("value", [None, [], "events", 1])
def test_settings_that_are_no_dict_are_refused(value):
    with override_settings(DJANGO_EVENTS=value), pytest.raises(Invalid) as caught:
        settings.WAKE_UPS  # noqa: B018
    assert str(caught.value) == f"DJANGO_EVENTS is {value!r}, expected a dict."


WRONG = [
    ("EVENTS_MODULE", None, "expected str."),
    ("EVENTS_MODULE", "", "expected the name of a module, like 'events'."),
    ("EVENTS_MODULE", "my events", "expected the name of a module, like 'events'."),
    ("EVENTS_MODULE", "shop.events", "expected the name of a module, like 'events'."),
    ("POLL_INTERVAL", 0.5, "expected timedelta."),
    ("POLL_INTERVAL", None, "expected timedelta."),
    ("POLL_INTERVAL", timedelta(0), "expected a duration above zero."),
    ("POLL_INTERVAL", timedelta(seconds=-1), "expected a duration above zero."),
    ("REQUIRE_TRANSACTION", 1, "expected bool."),
    ("REQUIRE_TRANSACTION", None, "expected bool."),
    ("TRANSFER_BATCH_SIZE", "5000", "expected int."),
    ("TRANSFER_BATCH_SIZE", 5e3, "expected int."),
    ("TRANSFER_BATCH_SIZE", True, "expected int."),
    ("TRANSFER_BATCH_SIZE", 0, "expected at least 1."),
    ("TRANSFER_BATCH_SIZE", -1, "expected at least 1."),
    ("VANISHED_AFTER", timedelta(milliseconds=900), "expected a second or more."),
    ("WAKE_UPS", "yes", "expected bool or None."),
    ("WEBHOOK_NETWORKS", ["10.0.0.0/33"], "expected networks like '10.1.0.0/16' or 'fd12::/64'."),
    ("WEBHOOK_NETWORKS", ["partner.example"], "expected networks like '10.1.0.0/16' or 'fd12::/64'."),
    ("WEBHOOK_NETWORKS", [10], "expected networks like '10.1.0.0/16' or 'fd12::/64'."),
    ("WEBHOOK_NETWORKS", "10.0.0.0/8", "expected list or tuple."),
    ("WEBHOOK_TIMEOUT", timedelta(0), "expected a duration above zero."),
    ("WEBHOOK_TIMEOUT", timedelta(hours=1), "expected at most 0:10:00."),
    ("WEBHOOK_DISABLED_AFTER", 5, "expected timedelta."),
    ("WEBHOOK_ATTEMPTS_KEPT", None, "expected timedelta."),
    ("WAKE_UPS", 1, "expected bool or None."),
]


@pytest.mark.parametrize(("key", "value", "expected"), WRONG)
def test_a_wrong_value_is_named_with_what_was_expected(key, value, expected):
    [problem] = conf.problems({key: value})

    assert problem == f"DJANGO_EVENTS[{key!r}] is {value!r}, {expected}"
    with override_settings(DJANGO_EVENTS={key: value}), pytest.raises(Invalid) as caught:
        getattr(settings, key)
    assert str(caught.value) == problem


RIGHT = [
    ("EVENTS_MODULE", "streams"),
    ("POLL_INTERVAL", timedelta(microseconds=1)),
    ("REQUIRE_TRANSACTION", True),
    ("TRANSFER_BATCH_SIZE", 1),
    ("WAKE_UPS", True),
    ("WAKE_UPS", False),
    ("WAKE_UPS", None),
]


@pytest.mark.parametrize(("key", "value"), RIGHT)
def test_a_right_value_is_what_is_read(key, value):
    with override_settings(DJANGO_EVENTS={key: value}):
        assert getattr(settings, key) == value


def test_every_wrong_value_is_a_problem_of_its_own():
    assert len(list(conf.problems({"POLL_INTERVAL": 1, "WAKE_UPS": 1, "UNKNOWN": 1}))) == 2


def test_the_settings_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Settings().WAKE_UPS = True


@pytest.mark.parametrize(
    ("configured", "module"),
    [
        ({}, "events"),
        ({"EVENTS_MODULE": "streams"}, "streams"),
        ({"EVENTS_MODULE": "streams", "POLL_INTERVAL": 5}, "streams"),
        ({"EVENTS_MODULE": "not a module"}, "events"),
        ({"EVENTS_MODULE": None}, "events"),
        ([], "events"),
    ],
)
def test_the_module_to_discover_is_known_also_where_settings_are_wrong(configured, module):
    with override_settings(DJANGO_EVENTS=configured):
        assert conf.events_module() == module


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (["mail"], "names 'mail', expected 'mail_admins'"),
        (["shop.alerts.page()"], "names 'shop.alerts.page()', expected"),
        ([7], "names 7, expected"),
        (["ftp://secret@example.com"], "names an address of another kind, expected"),
        ("https://example.com/secret", "is a secret of the wrong type, expected list or tuple"),
    ],
)
def test_what_is_to_be_notified_can_be_called(value, said):
    [problem] = conf.problems({"NOTIFY": value})
    assert said in problem
    hooks = ["mail_admins", "https://example.com/x", "http://localhost", "shop.alerts.page"]
    assert not list(conf.problems({"NOTIFY": hooks}))
