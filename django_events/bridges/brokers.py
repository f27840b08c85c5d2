"""How to get to a broker: what the settings have under its name, where events go, and errors without secrets.

    DJANGO_EVENTS = {"BROKERS": {"redis": {"host": "10.0.0.5", "password": env("REDIS_PASSWORD"), "ssl": True}}}

Options go to the broker's client, but for those that a bridge has to say by itself.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote

from django_events.conf import settings
from django_events.exceptions import MessageRefused, NotReady, did_you_mean
from django_events.received import ReceivedEvent

HIDDEN = "•••"
LONGEST_REASON = 500
SHORT = 4  # characters: a secret with fewer is a part of words that say nothing of it
LONGEST_NAME = 1_000  # bytes of the name of a target: NATS takes 4,096 in a line with what else is there


def options_of(broker: str) -> dict[str, Any]:
    """The options of a broker; NotReady if the settings have none of this name."""
    try:
        return dict(settings.BROKERS[broker])
    except KeyError:
        raise NotReady(
            f"DJANGO_EVENTS['BROKERS'] has no {broker!r}. {did_you_mean(broker, settings.BROKERS)} "
            "Say there how to connect to it."
        ) from None


def check_package(package: str, extra: str) -> None:
    """NotReady if a client is not installed."""
    if find_spec(package) is None:
        raise NotReady(f"{package} is not installed: pip install 'django-events-pg[{extra}]'.")


def name_of(
    name: str | Callable[[ReceivedEvent], str], event: ReceivedEvent, allowed: re.Pattern[str], what: str
) -> str:
    """The name that a target has, or what its function says of an event; MessageRefused if that can be no name there.

    Keys and types are chosen by those who publish, and what a broker refuses in them would hold up all events behind.
    """
    if isinstance(name, str):
        return name
    found = name(event)
    if not isinstance(found, str) or not allowed.fullmatch(found) or not _can_be_sent(found):
        raise MessageRefused(f"What the function of the target says of this event is not {what}.")
    return found


def shown(broker: str, name: str | Callable[[ReceivedEvent], str]) -> str:
    """Where something goes, in a few words: a function decides for each event."""
    return f"{broker} {name if isinstance(name, str) else '(by a function)'}"


def _can_be_sent(name: str) -> bool:
    """Whether a name has no half of a character, and no more bytes than any broker takes in a line."""
    try:
        return len(name.encode()) <= LONGEST_NAME
    except UnicodeEncodeError:
        return False


def said(error: BaseException, options: Mapping[str, Any]) -> str:
    """What an error says, without anything that is secret in the options of a broker."""
    named = type(error).__name__
    return f"{named}: {masked(str(error), options)}"[:LONGEST_REASON] if str(error) else named


def masked(text: str, options: Mapping[str, Any]) -> str:
    """A text without anything that is secret in the options of a broker, and not too long.

    A short secret is masked where it stands by itself: within other words nothing is said by it. What is left around
    a single character would tell which one it is, so then nothing of the text is left.
    """
    for secret in sorted(set(_secrets(options)), key=len, reverse=True):
        if len(secret) >= SHORT:
            text = text.replace(secret, HIDDEN)
        elif (by_itself := _by_itself(secret)).search(text) is not None:
            text = HIDDEN if len(secret) == 1 else by_itself.sub(HIDDEN, text)
    return text[:LONGEST_REASON]


def _by_itself(secret: str) -> re.Pattern[str]:
    """A secret that isn't a part of a longer word or number. A character that is escaped in front of it is none."""
    before = rf"(?:(?<!\w)|{_ESCAPED})" if re.match(r"\w", secret) else ""
    behind = r"(?!\w)" if re.search(r"\w\Z", secret) else ""
    return re.compile(before + re.escape(secret) + behind)


def unmade(error: BaseException, options: Mapping[str, Any]) -> str:
    """What an error of making a client says: its words may have a part of a login, so its type and options."""
    named = sorted(name for name in options if name in str(error))
    about = f" about {', '.join(map(repr, named))}" if named else ""
    return f"{type(error).__name__}{about}: no client can be made from what the settings have"


def _secrets(options: Any, name: str = "") -> Iterator[str]:
    """All texts in options that may be secret: all but those that say where the broker is, and how to check it."""
    if isinstance(options, Mapping):
        for inner, value in options.items():
            yield from _secrets(value, str(inner))
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _secrets(value, name)
    elif isinstance(options, bytes):
        yield from _secrets(options.decode("utf-8", "replace"), name)
    elif isinstance(options, str) and options:
        if "@" in options:
            # Clients split a login with "/", "#" or "?" in it elsewhere, and their errors have a part of it.
            login = options.rpartition("@")[0].rpartition("//")[2]
            for part in (login, login.partition(":")[2], login.partition(":")[0], *_SPLITTING.split(login)):
                yield from (found for found in (part, unquote(part)) if found)
        if any(word in name.lower() for word in _SECRET):
            yield options


_ESCAPED = r"(?<=\\[nrtb0])|(?<=\\x[0-9a-fA-F]{2})|(?<=%[0-9a-fA-F]{2})"  # as Python and addresses write them
_SPLITTING = re.compile(r"[/#?:@]")
_SECRET = ("password", "secret", "token", "key", "nkey", "seed", "credential", "passwd", "username", "user")
