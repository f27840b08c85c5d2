"""Tell people of a new problem, and when it is over: maintenance calls what the setting NOTIFY names.

DJANGO_EVENTS = {"NOTIFY": ["mail_admins", "https://hooks.example.com/events", "shop.alerts.page"]}

One process runs this step at a time, and its row knows what each hook was told. A hook is called before that is written
down, so a process that dies in between has it told once more: at least once, never not at all.
"""

import hashlib
import json
import logging
import threading
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from django.core import mail
from django.db import connections
from django.utils.module_loading import import_string

from django_events import models
from django_events.conf import HookKind, kind_of_hook, settings
from django_events.log.inventory import next_scheduled, waiting
from django_events.observing.findings import Finding, Subject
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems

logger = logging.getLogger("django_events.maintenance")

STEP = "notify"
PATIENCE = 30.0  # seconds for a hook
WEBHOOK_TIMEOUT = 10.0  # seconds for each answer of a server
QUIET = {"retrying", "paused"}  # they come and go by themselves, or a person did it


class Notification(NamedTuple):
    """What a hook is told: the database, the problems that began, and those that are over, of which only the kind and
    the subject are known."""

    using: str
    began: list[Finding]
    over: list[Finding]

    @property
    def title(self) -> str:
        """`2 problems began, 1 is over`."""
        began = f"{len(self.began)} {'problem' if len(self.began) == 1 else 'problems'} began"
        over = f"{len(self.over)} {'is' if len(self.over) == 1 else 'are'} over"
        return ", ".join([began] * bool(self.began) + [over] * bool(self.over))

    @property
    def text(self) -> str:
        """A paragraph for each problem."""
        began = [f"{_title(one)}\n{one.what}\n{one.remedy}" for one in self.began]
        return "\n\n".join([*began, *(f"Over: {_title(one)}" for one in self.over)])

    def as_json(self) -> bytes:
        """For a webhook. `text` is what chats show."""
        began, over = [one.flat() for one in self.began], [one.flat() for one in self.over]
        said = {"text": f"{self.title}\n\n{self.text}", "database": self.using, "began": began, "over": over}
        return json.dumps(said, default=str).encode()


Hook = Callable[[Notification], object]
_running: set[str] = set()  # hooks that did not come back in time, and are not called again until they do


def notify(using: str) -> dict[str, Any]:
    """Look for problems, and tell each hook what is new to it. What it does not take is told again a minute later."""
    if not settings.NOTIFY:
        return {}
    hooks = {_name_of(entry): entry for entry in settings.NOTIFY}
    row = models.MaintenanceStep.objects.using(using).filter(name=STEP).first()
    known: dict[str, Any] = row.result.get("open", {}) if row else {}
    found = {_title(one): one for one in _problems(using)}
    failed: dict[str, str] = {}
    told: dict[str, set[str]] = {}
    for name, entry in hooks.items():
        knew = {title for title, one in known.items() if name in one["told"]}
        news = Notification(
            using,
            began=[one for title, one in found.items() if title not in knew],
            over=[_over(known[title]) for title in sorted(knew - set(found))],
        )
        told[name] = set(found)
        if (news.began or news.over) and (error := _call(name, entry, news)):
            failed[name], told[name] = error, knew
    titles = set(found).union(*told.values())
    is_open = {title: _kept(found.get(title), known.get(title), told, title) for title in sorted(titles)}
    return {"open": is_open, **({"failed": failed} if failed else {})}


def _problems(using: str) -> Iterable[Finding]:
    found = find_problems(using, waiting(using), next_scheduled(using), standings(using))
    return [one for one in found if one.kind not in QUIET]


def _title(one: Finding) -> str:
    where = "" if one.subject.partition is None else f", partition {one.subject.partition}"
    return f"{one.kind}: {one.subject}{where}" if str(one.subject) else one.kind


def _over(known: dict[str, Any]) -> Finding:
    return Finding(known["kind"], "ok", Subject(*known["subject"]), "", "", {})


def _kept(
    finding: Finding | None, known: dict[str, Any] | None, told: dict[str, set[str]], title: str
) -> dict[str, Any]:
    about = known if finding is None else {"kind": finding.kind, "subject": list(finding.subject)}
    return {**(about or {}), "told": sorted(name for name, titles in told.items() if title in titles)}


def _name_of(entry: str) -> str:
    """What stands in the log and the row: the address of a webhook is a secret."""
    is_secret = kind_of_hook(entry) is HookKind.WEBHOOK
    return f"webhook {hashlib.sha256(entry.encode()).hexdigest()[:8]}" if is_secret else entry


def _call(name: str, entry: str, news: Notification) -> str:
    """Call a hook in a thread of its own, so that one that hangs holds nothing up; returns what went wrong."""
    failed: list[str] = []

    def target() -> None:
        try:
            _hook(entry)(news)
        except Exception as error:
            failed.append(f"{type(error).__name__}: {error}".replace(entry, name))
        finally:
            connections.close_all()
            _running.discard(name)

    if name in _running:
        return "It has not come back yet."
    _running.add(name)
    thread = threading.Thread(target=target, daemon=True, name=f"notify {name}")
    thread.start()
    thread.join(PATIENCE)
    error = f"It took longer than {PATIENCE:.0f} s." if thread.is_alive() else next(iter(failed), "")
    if error:
        about = {"database": news.using, "step": STEP}
        logger.error("The hook %s can't be told of problems, it is tried again. %s", name, error, extra=about)
    return error


def _hook(entry: str) -> Hook:
    match kind_of_hook(entry):
        case HookKind.MAIL_ADMINS:
            return mail_admins
        case HookKind.WEBHOOK:
            return lambda news: post(entry, news)
    hook: Hook = import_string(entry)
    return hook


def mail_admins(news: Notification) -> None:
    """Mail the site's ADMINS."""
    mail.mail_admins(f"Events in {news.using}: {news.title}", news.text)


def post(url: str, news: Notification) -> None:
    """Post to a webhook."""
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(url, data=news.as_json(), headers=headers, method="POST")  # noqa: S310
    with urllib.request.urlopen(asked, timeout=WEBHOOK_TIMEOUT) as answer:  # noqa: S310
        answer.read(1)
