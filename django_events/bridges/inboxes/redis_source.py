"""Inboxes from Redis streams.

    inbox(payments, source=redis_source("bank.payments"), name="payments-in")

Entries are read behind an id, and no consumer group is needed. A stream has no time of its making, and the ids of one
that was made anew go on, or are the same, where a relay says them. So beside the id the inbox remembers a digest of
that entry, as long as it is there, and how many entries were added up to it: the stream says how many were ever added,
and what is between the two and isn't there was removed.

That is told when the rest of the stream is read, or its oldest entry is behind the id. As long as more than a batch is
behind and older entries are there, too, entries that were deleted between others can't be counted. So the inbox also
remembers the last id up to which all was there, as `whole`: what is found missing later, is missing behind that.

It needs redis, and a server of Redis 7 or newer: pip install 'django-events-pg[redis]'
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from django_events.bridges.brokers import check_package, options_of, said, unmade
from django_events.bridges.inboxes.sources import Found, GoneMessages, InboxMessage, Places, SourceUnavailable, by_name
from django_events.exceptions import NotReady

SECONDS = 10.0  # for a connection and for an answer, where the settings don't say
BATCH_BYTES = 32 * 2**20  # of a batch; a reading that has more makes the next one smaller
MOST_READ = 2**31  # entries, where their bytes set no limit
MILLISECONDS = 13  # digits of an id that is of the time, of the years 2001 to 2286
COUNTED = 1_000  # entries at a time, where they are counted


@dataclass(frozen=True, kw_only=True)
class RedisSource:
    """A stream of a Redis as the source of an inbox."""

    stream: str
    broker: str = "redis"

    def __str__(self) -> str:
        return f"{self.broker} {self.stream}"

    def problems(self) -> Iterator[str]:
        if not isinstance(self.stream, str) or not self.stream:
            yield f"redis_source has {self.stream!r}, expected the name of a stream."

    def check_installed(self) -> None:
        check_package("redis", "redis")

    def reader(self) -> "RedisReader":
        return RedisReader(self)


def redis_source(stream: str, *, broker: str = "redis") -> RedisSource:
    """An inbox's source: a stream of the Redis that `DJANGO_EVENTS["BROKERS"]` has under this name."""
    return RedisSource(stream=stream, broker=broker)


class _Stream(NamedTuple):
    """What a stream says of itself."""

    added: int  # how many entries it ever had
    length: int
    first: str | None  # the oldest entry that is left
    last: str  # the newest one that was ever added


class RedisReader:
    """One connection to a Redis, which reads."""

    def __init__(self, source: RedisSource) -> None:
        self._source = source
        self._options: Mapping[str, Any] = {}
        self._client: Any = None
        self._fitting = MOST_READ  # entries in one reading; less after one that was too large
        self._seconds = SECONDS
        self._names: list[bytes] = []  # of the fields of the last entry: most entries have those of the one before
        self._texts: list[str] = []  # the same, decoded

    def open(self) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        try:
            self._options = options_of(self._source.broker)
        except NotReady as error:
            raise SourceUnavailable(str(error)) from None
        defaults = {"socket_timeout": SECONDS, "socket_connect_timeout": SECONDS, "retry": Retry(NoBackoff(), 0)}
        options = {**defaults, **self._options, "decode_responses": False}
        self._seconds = options["socket_timeout"] or SECONDS
        url = options.pop("url", None)
        try:
            self._client = redis.Redis(**options) if url is None else redis.Redis.from_url(url, **options)
        except Exception as error:
            raise SourceUnavailable(f"Redis {self._source.broker!r}: {unmade(error, self._options)}.") from None
        self._client.set_response_callback("XRANGE", _entries)
        self._asked(lambda: self._client.ping())

    def begin(self, start: str) -> Places:
        stream, *_ = self._look(None, 1)
        if start not in ("beginning", "end") and not _is_id(start):
            raise SourceUnavailable(
                f"{start!r} is no id of a Redis stream, expected 'beginning', 'end', or one like 1700000000000-0."
            )
        if stream is None and _is_id(start):
            raise SourceUnavailable(
                f"The inbox is to begin behind {start}, and there is no stream {self._source.stream!r}. To begin with "
                "its first entry: manage.py events inbox restart NAME --from beginning"
            )
        if stream is None or start == "beginning":
            return self._places("0-0", 0 if stream is None else stream.added - stream.length)
        if start == "end":
            return self._places(stream.last, stream.added)
        if _parsed(start) > _parsed(stream.last):
            raise SourceUnavailable(
                f"The inbox is to begin behind {start}, and the stream {self._source.stream!r} ends at {stream.last}. "
                "To begin behind what it has now: manage.py events inbox restart NAME --from end"
            )
        passed = stream.added - self._count(start, stream.last)
        now, *_ = self._look(None, 1)  # after the count: what was trimmed meanwhile isn't in it
        if now is None or (
            now.added > now.length
            and _parsed(start) < _parsed(now.last)
            and (now.first is None or _parsed(now.first) > _parsed(start))
        ):
            raise SourceUnavailable(
                f"The inbox is to begin behind {start}, and the oldest entry of {self._source.stream!r} is "
                f"{now.first if now is not None else None}: entries behind {start} may have been removed, and how many "
                "can't be told. To take in what is left: manage.py events inbox restart NAME --from beginning"
            )
        return self._places(start, passed)

    def read(self, places: Places, most: int) -> Found:
        place = places[self._source.stream]
        after, passed, whole = place["id"], place["passed"], place["whole"]
        most = min(most, self._fitting)
        stream, last, entries = self._look(after, most)
        self._fitting = _most_that_fit(entries, most)
        if stream is None:
            if passed or after != "0-0":
                raise SourceUnavailable(
                    f"The stream {self._source.stream!r} is not there any more, and its entries up to {after} were "
                    f"taken in. {_ANEW}"
                )
            return Found([])
        digest = place.get("digest")
        if digest is not None and last and _digest(last[0][1]) != digest:
            raise SourceUnavailable(
                f"Entry {after} of the stream {self._source.stream!r} is not the one that the inbox has taken in: the "
                f"stream was deleted and made anew. {_ANEW}"
            )
        gone = self._gone(stream, after, passed, len(entries), most)
        messages = [
            self._message(entry_id.decode(), fields, passed + (gone or 0) + index, None if gone is not None else whole)
            for index, (entry_id, fields) in enumerate(entries, start=1)
        ]
        told = []
        if gone:
            following = messages[0].id if messages else f"none up to {stream.last}"
            place = {"id": after, "passed": passed + gone, "whole": after, "digest": digest}
            told = [GoneMessages(self._source.stream, gone, whole, following, place)]
        return Found(messages, told, stream.added - passed - (gone or 0))

    def wait(self, places: Places, seconds: float) -> None:
        after = places[self._source.stream]["id"]
        milliseconds = max(int(min(seconds, self._seconds / 2) * 1_000), 1)
        self._asked(lambda: self._client.xread({self._source.stream: after}, count=1, block=milliseconds))

    def close(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.close()

    def _gone(self, stream: _Stream, after: str, passed: int, found: int, most: int) -> int | None:
        """How many entries were removed before they were read; None if that can't be told now.

        SourceUnavailable if the stream is not the one of which so many were passed.
        """
        above = stream.added - passed  # added behind `after`
        if above < 0 or _parsed(stream.last) < _parsed(after):
            raise SourceUnavailable(
                f"The stream {self._source.stream!r} ends at {stream.last} and had {stream.added} entries, and "
                f"{passed} up to {after} were taken in: it was deleted and made anew, or its server has lost entries. "
                f"{_ANEW}"
            )
        if found < most:
            gone = above - found
        elif stream.first is not None and _parsed(stream.first) > _parsed(after):
            gone = above - stream.length
        else:
            return None
        if gone < 0:
            raise SourceUnavailable(
                f"The stream {self._source.stream!r} has {above - gone} entries behind {after}, and {above} were added "
                f"there since: it was deleted and made anew. {_ANEW}"
            )
        return gone

    def _look(self, after: str | None, most: int) -> tuple[_Stream | None, list[Any], list[Any]]:
        """What the stream says of itself, with the entry that has an id and those behind it, at one moment."""
        from redis.exceptions import ResponseError

        def ask() -> list[Any]:
            with self._client.pipeline(transaction=True) as both:
                both.xinfo_stream(self._source.stream)
                if after is not None:
                    both.xrange(self._source.stream, min=after, max=after)
                    both.xrange(self._source.stream, min=f"({after}", count=most)
                answers: list[Any] = both.execute(raise_on_error=False)
                return answers

        about, *entries = self._asked(ask)
        if isinstance(about, ResponseError) and "no such key" in str(about).lower():
            return None, [], []
        for answer in (about, *entries):
            if isinstance(answer, Exception):
                raise self._unavailable(answer)
        if "entries-added" not in about:
            raise SourceUnavailable("The server is older than Redis 7, which doesn't say how many entries were added.")
        first = about["first-entry"]
        stream = _Stream(
            added=about["entries-added"],
            length=about["length"],
            first=first[0].decode() if first else None,
            last=about["last-generated-id"].decode(),
        )
        last, following = entries or ([], [])
        return stream, last, following

    def _count(self, after: str, last: str) -> int:
        """How many entries are behind an id, up to another one. It is asked once, when an inbox begins there."""
        count = 0
        while entries := self._between(after, last):
            count, after = count + len(entries), entries[-1][0].decode()
        return count

    def _between(self, after: str, last: str) -> list[Any]:
        if _parsed(after) >= _parsed(last):
            return []
        found: list[Any] = self._asked(
            lambda: self._client.xrange(self._source.stream, min=f"({after}", max=last, count=COUNTED)
        )
        return found

    def _message(self, entry_id: str, fields: list[bytes], passed: int, whole: str | None) -> InboxMessage:
        if (names := fields[::2]) != self._names:
            self._names, self._texts = names, [name.decode("utf-8", "replace") for name in names]
        named = by_name(list(zip(self._texts, fields[1::2], strict=True)))
        key = named.get("key")
        return InboxMessage(
            id=entry_id,
            log=self._source.stream,
            place=partial(_place, entry_id, fields, passed, whole),
            key=None if key is None else key.decode("utf-8", "replace"),
            body=named.get("data"),
            headers={name.lower(): value.decode("utf-8", "replace") for name, value in named.items() if name != "data"},
            fields=named,
            sent_at=_moment(entry_id),
        )

    def _places(self, entry_id: str, passed: int) -> Places:
        return {self._source.stream: {"id": entry_id, "passed": passed, "whole": entry_id}}

    def _asked(self, question: Any) -> Any:
        """What the server answers; whatever fails is SourceUnavailable, without secrets."""
        try:
            return question()
        except Exception as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: BaseException) -> SourceUnavailable:
        return SourceUnavailable(f"Redis {self._source.broker!r}: {said(error, self._options)}")


_ANEW = (
    "To take in what it has now: manage.py events inbox restart NAME --from beginning, or --from the id of the last "
    "entry that is not to be taken in."
)


def _place(entry_id: str, fields: list[bytes], passed: int, whole: str | None) -> dict[str, Any]:
    """What the inbox remembers when it has taken an entry in."""
    return {"id": entry_id, "passed": passed, "whole": whole or entry_id, "digest": _digest(fields)}


def _digest(fields: list[bytes]) -> str:
    """Sixteen digits that another entry would not have."""
    said = b"".join(b"%d:" % len(one) + one for one in fields)
    return hashlib.blake2b(said, digest_size=8).hexdigest()


def _is_id(text: str) -> bool:
    milliseconds, dash, number = text.partition("-")
    return bool(dash) and all(part.isascii() and part.isdigit() for part in (milliseconds, number))


def _parsed(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number)


def _entries(answer: Any, **_: Any) -> Any:
    """Entries as the server has them: the client's dict would drop a field whose name comes twice."""
    return answer


def _most_that_fit(entries: list[Any], most: int) -> int:
    """How many entries to read the next time, by the size of these: as many as fit, or twice as many as there were."""
    size = sum(sum(map(len, fields)) for _, fields in entries)
    return max(1, len(entries) * BATCH_BYTES // size) if size > BATCH_BYTES else 2 * most


def _moment(entry_id: str) -> datetime | None:
    """When the entry was added, if its id is of the time."""
    milliseconds = entry_id.partition("-")[0]
    return datetime.fromtimestamp(int(milliseconds) / 1_000, UTC) if len(milliseconds) == MILLISECONDS else None
