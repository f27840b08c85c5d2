"""Applying what was erased in the log to what was exported before, and noting it, whatever the copy is.

A copy's mark says up to which erasure it is done. An erasure counts when the log is blank, so that an export which
reads behind the mark can't bring anything back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django_events.exporting.erasures import Erasures, KeyNames, begin_record, finish_record, found
from django_events.reading.dsn import Connection
from django_events.reading.topics import TopicLog


@dataclass(frozen=True, kw_only=True)
class Erasing:
    """That erasures are to be applied: how records call the keys of a topic, and who does it, for the record.

    `without` are the numbers of some that are left out where their keys can't be found.
    """

    names: Callable[[str], KeyNames]
    by: str
    without: tuple[int, ...] = ()


@dataclass(kw_only=True)
class Applied:
    """What erasures did to the copies of topics: rows that were blanked, and erasures that were interrupted."""

    rows: int = 0
    erasures: int = 0
    interrupted: dict[str, list[int]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)  # by topic

    def apply(
        self,
        connection: Connection,
        log: TopicLog,
        wanted: Erasing,
        *,
        place: str,
        after: int,
        work: Callable[[Erasures], Mapping[str, Any]],
    ) -> None:
        """Apply the erasures of a topic behind one of them, by what `work` does, and note it before and afterwards.

        `work` answers with what it did: `rows`, and where there is something that it can't reach, `left`.
        """
        erasures = found(connection, log, after=after, names=wanted.names(log.name), without=wanted.without)
        self.interrupted.pop(log.name, None)  # a follower looks again and again
        if erasures.interrupted:
            self.interrupted[log.name] = erasures.interrupted
        if not erasures:
            return
        said = {"place": place, "from": after, "until": erasures.until}
        if erasures.without:
            said["without"] = erasures.without
        number = begin_record(connection, log, wanted.by, said)
        done = work(erasures)
        finish_record(connection, number, dict(done))
        self.rows += done["rows"]
        self.erasures += erasures.number
        if done["rows"] and done.get("left"):
            self.left[log.name] = done["left"]
