"""The settings: one dict, `DJANGO_EVENTS`, read through one typed object.

from django_events.conf import settings

settings.TRANSFER_BATCH_SIZE
"""

import ipaddress
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from django_events.exceptions import Invalid


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every key of `DJANGO_EVENTS` with its type and default; docs/reference/settings.md says more."""

    BROKERS: dict[str, Any] = field(default_factory=dict, repr=False)  # secrets are in it
    DEDUP_WINDOW: timedelta = timedelta(days=1)
    EVENTS_MODULE: str = "events"
    LIVE_CONNECTIONS: int = 1_000
    MASKED_FIELDS: list[str] | tuple[str, ...] = ()
    MAX_BATCH_BYTES: int = 33_554_432
    MAX_PAYLOAD_BYTES: int | None = 1_048_576
    METRICS_TOKEN: str | None = None
    NOTIFY: list[str] | tuple[str, ...] = ()
    POLL_INTERVAL: timedelta = timedelta(seconds=0.5)
    REQUIRE_TRANSACTION: bool = False
    SAMPLES_KEPT: timedelta | None = timedelta(days=2)
    TELEMETRY: list[str] | tuple[str, ...] = ()
    TRANSFER_BATCH_SIZE: int = 5_000
    VANISHED_AFTER: timedelta = timedelta(seconds=10)
    WAKE_UPS: bool | None = None
    WEBHOOK_ATTEMPTS_KEPT: timedelta = timedelta(days=7)
    WEBHOOK_DISABLED_AFTER: timedelta = timedelta(days=5)
    WEBHOOK_NETWORKS: list[str] | tuple[str, ...] = ()
    WEBHOOK_TIMEOUT: timedelta = timedelta(seconds=15)

    def __post_init__(self) -> None:
        if problem := next(problems(vars(self)), None):
            raise Invalid(problem)


KEYS = tuple(one.name for one in fields(Settings))
SECRETS = ("BROKERS", "METRICS_TOKEN", "NOTIFY")
# What TELEMETRY may name: the package that does it, and the extra of ours that installs it.
TELEMETRY = {"prometheus": ("prometheus_client", "metrics"), "opentelemetry": ("opentelemetry", "opentelemetry")}
SHORTEST_TOKEN = 16
LONGEST_REQUEST = timedelta(minutes=10)  # of a webhook
SOONEST_VANISHED = timedelta(seconds=1)  # a process that is only busy says something before


class HookKind(Enum):
    """What an entry of NOTIFY names."""

    MAIL_ADMINS = "mail_admins"
    WEBHOOK = "an address, which is a secret"
    FUNCTION = "the path of a function"


def kind_of_hook(entry: Any) -> HookKind | None:
    """What an entry of NOTIFY names; None if it can't be used."""
    if not isinstance(entry, str):
        return None
    if entry == HookKind.MAIL_ADMINS.value:
        return HookKind.MAIL_ADMINS
    if entry.startswith(("https://", "http://")):
        return HookKind.WEBHOOK
    path = entry.split(".")
    return HookKind.FUNCTION if len(path) > 1 and all(part.isidentifier() for part in path) else None


def problems(values: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each value that can't be used."""
    hints = get_type_hints(Settings)
    for key in KEYS:
        if key not in values:
            continue
        value, hint = values[key], hints[key]
        kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        allowed = tuple(get_origin(kind) or kind for kind in kinds)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            expected = " or ".join("None" if t is type(None) else t.__name__ for t in allowed)
            shown = "a secret of the wrong type" if key in SECRETS else repr(value)
            yield f"DJANGO_EVENTS[{key!r}] is {shown}, expected {expected}."
        elif isinstance(value, timedelta) and value <= timedelta(0):
            yield f"DJANGO_EVENTS[{key!r}] is {value!r}, expected a duration above zero."
        elif isinstance(value, int) and not isinstance(value, bool) and value < 1:
            yield f"DJANGO_EVENTS[{key!r}] is {value!r}, expected at least 1."
        elif key == "BROKERS" and (wrong := [one for one, options in value.items() if not _is_broker(one, options)]):
            yield f"DJANGO_EVENTS[{key!r}] has {wrong[0]!r}, expected a name, and a dict of its client's options."
        elif key == "VANISHED_AFTER" and value < SOONEST_VANISHED:
            yield f"DJANGO_EVENTS[{key!r}] is {value!r}, expected a second or more."
        elif key == "MASKED_FIELDS" and not all(isinstance(name, str) for name in value):
            yield f"DJANGO_EVENTS[{key!r}] is {value!r}, expected names of fields, like 'password'."
        elif key == "METRICS_TOKEN" and value is not None and len(value) < SHORTEST_TOKEN:
            yield f"DJANGO_EVENTS[{key!r}] has {len(value)} characters, expected {SHORTEST_TOKEN} or more."
        elif key == "TELEMETRY" and (unknown := [name for name in value if name not in TELEMETRY]):
            yield f"DJANGO_EVENTS[{key!r}] names {unknown[0]!r}, expected {' or '.join(map(repr, TELEMETRY))}."
        elif key == "NOTIFY" and (wrong := [entry for entry in value if kind_of_hook(entry) is None]):
            yield (
                f"DJANGO_EVENTS[{key!r}] names {_shown(wrong[0])}, expected 'mail_admins', a path like "
                "'shop.alerts.page', or an address that begins with https:// or http://."
            )
        elif key == "WEBHOOK_NETWORKS" and not all(map(_is_network, value)):
            yield f"DJANGO_EVENTS[{key!r}] is {value!r}, expected networks like '10.1.0.0/16' or 'fd12::/64'."
        elif key == "WEBHOOK_TIMEOUT" and value > LONGEST_REQUEST:
            yield f"DJANGO_EVENTS[{key!r}] is {value!r}, expected at most {LONGEST_REQUEST}."
        elif key == "EVENTS_MODULE" and not value.isidentifier():
            yield f"DJANGO_EVENTS[{key!r}] is {value!r}, expected the name of a module, like 'events'."


def _is_broker(name: Any, options: Any) -> bool:
    return isinstance(name, str) and isinstance(options, dict) and all(isinstance(option, str) for option in options)


def _is_network(entry: Any) -> bool:
    try:
        ipaddress.ip_network(entry)
    except ValueError:
        return False
    return isinstance(entry, str)


def _shown(entry: Any) -> str:
    return "an address of another kind" if isinstance(entry, str) and "://" in entry else repr(entry)


def configured() -> dict[str, Any]:
    """What the site wrote into `DJANGO_EVENTS`, unchecked."""
    values = getattr(django_settings, "DJANGO_EVENTS", {})
    if not isinstance(values, dict):
        raise Invalid(f"DJANGO_EVENTS is {values!r}, expected a dict.")
    return values


def events_module() -> str:
    """The module to discover, also where other settings are wrong: `manage.py check` must get to report them."""
    try:
        name = configured().get("EVENTS_MODULE", Settings.EVENTS_MODULE)
    except Invalid:
        return Settings.EVENTS_MODULE
    return Settings.EVENTS_MODULE if any(problems({"EVENTS_MODULE": name})) else name


def telemetry() -> list[str] | tuple[str, ...]:
    """What is to be told of this process, as far as the setting can be understood."""
    try:
        chosen: list[str] | tuple[str, ...] = configured().get("TELEMETRY", ())
    except Invalid:
        return ()
    return () if any(problems({"TELEMETRY": chosen})) else chosen


class _Current:
    """Reads the site's values once, and again when a test overrides them."""

    def __init__(self) -> None:
        self._settings: Settings | None = None

    def __getattr__(self, key: str) -> Any:
        if self._settings is None:
            # Unknown keys are a system check's business: they must not stop a process.
            known = {key: value for key, value in configured().items() if key in KEYS}
            self._settings = Settings(**known)
            vars(self).update(vars(self._settings))  # the next time it is found without this function
        return getattr(self._settings, key)

    def forget(self, *, setting: str, **kwargs: Any) -> None:
        if setting == "DJANGO_EVENTS":
            vars(self).clear()
            self._settings = None


_current = _Current()
setting_changed.connect(_current.forget)
settings: Settings = _current  # type: ignore[assignment]  # it answers to the same names
