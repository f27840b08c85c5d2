"""The times that a cron expression names in a time zone.

Where the clock is put forward, a time of the day that doesn't exist is taken for the first moment after the gap. Where
it is put back, one that exists twice is taken for the first of the two. Expressions whose minute or hour begins with a
star name periods instead: they go by the time that passes.
"""

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

WINDOWS = (timedelta(hours=1), timedelta(days=2), timedelta(days=40), timedelta(days=500))


def ticks_after(cron: str, tz: str, moment: datetime) -> Iterator[datetime]:
    """The ticks after this moment, in the time zone; none any more if there is none in 50 years."""
    last = moment
    for tick in CronSim(cron, moment.astimezone(ZoneInfo(tz))):
        # Begun in the second one of two hours of a name, it counts from the first one: those ticks are over.
        if tick.astimezone(UTC) > last:
            last = tick.astimezone(UTC)
            yield tick


def newest_ticks(cron: str, tz: str, first: datetime, until: datetime, *, most: int) -> list[datetime]:
    """Of the ticks from `first`, which is one, to `until` the newest `most`, in the order of their times."""
    for window in WINDOWS:  # so that few are counted, however long ago the first one was
        if (start := until - window) <= first:
            break
        newest = _newest(cron, tz, start, until, most)
        if len(newest) == most:
            return newest
    return [first.astimezone(ZoneInfo(tz)), *_newest(cron, tz, first, until, most)][-most:]


def _newest(cron: str, tz: str, start: datetime, until: datetime, most: int) -> list[datetime]:
    found: deque[datetime] = deque(maxlen=most)
    for tick in ticks_after(cron, tz, start):
        if tick.astimezone(UTC) > until:
            break
        found.append(tick)
    return list(found)


def wrong_cron(cron: object) -> str | None:
    """Why this is no cron expression, or None."""
    if not isinstance(cron, str) or len(cron.split()) != 5:
        return "expected five fields: minute, hour, day of the month, month, day of the week"
    try:
        found = next(iter(CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC))), None)
    except CronSimError as error:
        return str(error)
    return None if found else "there is no such day"


def is_zone(tz: object) -> bool:
    """Whether this names a time zone that this machine knows."""
    try:
        return isinstance(tz, str) and bool(ZoneInfo(tz))
    except (KeyError, ValueError, OSError):
        return False
