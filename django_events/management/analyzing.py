"""Running a job of Spark on the log of a database, and what it answers with."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django_events.management.reporting import Report, table
from django_events.management.spark import dsn_of
from django_events.reading.dsn import Dsn
from django_events.spark.jobs.registry import Job
from django_events.spark.session import session

SHOWN = 100


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What to compute, from what, and what for."""

    job: Job
    using: str
    options: Mapping[str, Any] = field(default_factory=dict)
    topics: Sequence[str] = ()
    source: str | None = None
    typing: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None
    format: str = "table"
    limit: int | None = None

    def run(self, *, master: str | None, remote: str | None) -> Report:
        """Compute it in a session of its own, or in the one that is open."""
        dsn = dsn_of(self.using)
        if self.source is None or self.job.reads != ("events",):
            with Dsn(dsn).connected():  # Spark would take long to say that there is no database
                pass
        with session(f"analyze_events {self.job.name}", master=master, remote=remote) as spark:
            from django_events.spark.jobs import results
            from django_events.spark.jobs.inputs import Inputs

            inputs = Inputs(spark=spark, dsn=dsn, topics=self.topics, path=self.source, typing=self.typing)
            frame = self.job.function(*inputs.of(self.job), **self.options)
            if self.target is not None:
                results.write(frame if self.limit is None else frame.limit(self.limit), self.target, self.format)
                return Report(None, f"Written to {self.target}.")
            shown = SHOWN if self.limit is None and self.format == "table" else self.limit
            found = results.rows(frame if shown is None else frame.limit(shown + 1))
            return self._report(frame.columns, found, shown)

    def _report(self, columns: Sequence[str], found: Sequence[dict[str, Any]], shown: int | None) -> Report:
        rows = found[:shown]
        notes = [f"There are more than these {shown:,}: --limit shows them."] if len(found) > len(rows) else []
        values = [list(row.values()) for row in rows]
        if self.format == "csv":
            return Report(rows, _csv(columns, values), notes)
        return Report(rows, table(columns, values) if rows else "No rows.", notes)


def _csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_in_utc(value) for value in row] for row in rows)
    return text.getvalue().removesuffix("\n")


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
