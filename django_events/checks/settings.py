"""Wrong values and unknown keys of `DJANGO_EVENTS`, and what they name that isn't there."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig, apps
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.utils.module_loading import import_string, module_has_submodule

from django_events import conf
from django_events.exceptions import Invalid, did_you_mean

SHORTEST_POLL = timedelta(milliseconds=50)


@register(Tags.compatibility)
def check_settings(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    return [*_unknown_keys(), *_wrong_values()]


@register(Tags.compatibility)
def check_events_module(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    """A name of its own that no app has: then nothing is declared at all, and nothing else would say so."""
    name = conf.events_module()
    if name == conf.Settings.EVENTS_MODULE:  # a site may have declared nothing yet
        return
    if not any(module_has_submodule(app.module, name) for app in apps.get_app_configs() if app.module is not None):
        yield checks.Warning(
            f"DJANGO_EVENTS['EVENTS_MODULE'] is {name!r}, and no installed app has a module of that name.",
            hint="No topic and no consumer is declared. Correct the name, or make the module in one of your apps.",
            id="django_events.W011",
        )


@register(Tags.compatibility)
def check_notify(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    """A hook that can't be called would be found out with the first problem, which it then doesn't tell."""
    for entry in _notified():
        try:
            hook = import_string(entry)
            wrong = "" if callable(hook) else f"It is {hook!r:.200}, not a function."
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            yield checks.Warning(
                f"DJANGO_EVENTS['NOTIFY'] names {entry!r}, which can't be called: {wrong}",
                hint="Correct the path, or what the module fails with: until then it is told of no problem.",
                id="django_events.W002",
            )


@register(Tags.compatibility)
def check_telemetry(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    for name in conf.telemetry():
        package, extra = conf.TELEMETRY[name]
        if find_spec(package) is None:
            yield Error(
                f"DJANGO_EVENTS['TELEMETRY'] names {name!r}, and the package {package} is not installed.",
                hint=f"pip install 'django-events-pg[{extra}]'",
                id="django_events.E012",
            )


@register(Tags.compatibility)
def check_apps(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    if not apps.is_installed("pgtrigger"):
        yield Error(
            "django_events needs the app 'pgtrigger' for its triggers.",
            hint="Add 'pgtrigger' to INSTALLED_APPS.",
            id="django_events.E004",
        )


@register(Tags.security, deploy=True)
def check_poll_interval(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    try:
        every = conf.settings.POLL_INTERVAL
    except Invalid:  # another check says what is wrong
        return
    if every < SHORTEST_POLL:
        yield checks.Warning(
            f"DJANGO_EVENTS['POLL_INTERVAL'] is {every.total_seconds():g} s: where no wake-up comes, every worker asks "
            f"the database {1 / every.total_seconds():,.0f} times a second for nothing.",
            hint="Leave it at 0.5 s: with a direct connection workers are woken within milliseconds.",
            id="django_events.W005",
        )


def _notified() -> list[str]:
    """The functions that NOTIFY names; none where its value can't be used, which another check says."""
    with suppress(Invalid):
        return [entry for entry in conf.settings.NOTIFY if conf.kind_of_hook(entry) is conf.HookKind.FUNCTION]
    return []


def _unknown_keys() -> Iterator[CheckMessage]:
    try:
        configured = conf.configured()
    except Invalid as error:
        yield Error(str(error), id="django_events.E002")
        return
    for key in configured:
        if key not in conf.KEYS:
            yield Error(
                f"DJANGO_EVENTS has no key {key!r}.", hint=did_you_mean(str(key), conf.KEYS), id="django_events.E001"
            )


def _wrong_values() -> Iterator[CheckMessage]:
    try:
        configured = conf.configured()
    except Invalid:
        return
    for problem in conf.problems(configured):
        yield Error(problem, id="django_events.E002")
