"""Counted things in the reader's language: `3 events`, `at least 10,000 dead letters`."""

from django.utils.translation import gettext, ngettext


def events(number: int, *, more: bool = False) -> str:
    return _at_least(ngettext("%(number)s event", "%(number)s events", number), number, more)


def dead_letters(number: int, *, more: bool = False) -> str:
    return _at_least(ngettext("%(number)s dead letter", "%(number)s dead letters", number), number, more)


def topics(number: int) -> str:
    return _at_least(ngettext("%(number)s topic", "%(number)s topics", number), number)


def consumers(number: int) -> str:
    return _at_least(ngettext("%(number)s consumer", "%(number)s consumers", number), number)


def attempts(number: int) -> str:
    return _at_least(ngettext("%(number)s attempt", "%(number)s attempts", number), number)


def times(number: int) -> str:
    return _at_least(ngettext("%(number)s time", "%(number)s times", number), number)


def others(number: int) -> str:
    return _at_least(ngettext("%(number)s other", "%(number)s others", number), number)


def _at_least(phrase: str, number: int, more: bool = False) -> str:
    counted = phrase % {"number": f"{number:,}"}
    return gettext("at least %(counted)s") % {"counted": counted} if more else counted
