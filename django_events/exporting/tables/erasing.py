"""Erasing in a table of a lakehouse: rows are blanked in commits of the table, and then its mark of erasures is set."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from django_events.exceptions import Refused
from django_events.exporting.erasures import REPLACED, Erasures
from django_events.exporting.tables.table import Conflict, EventTable

ROWS_PER_COMMIT = 50_000
TRIES = 20  # for commits of others, which come first

LEFT_IN = {
    "delta": (
        "Versions of {topic} before {version} have the rows as they were, until --expire or VACUUM removes "
        "their files. If its delta.dataSkippingStatsColumns has key, the log has keys in its statistics until its old "
        "commits go."
    ),
    "iceberg": (
        "Snapshots of {topic} before {version} have the rows as they were, until --expire removes their files, "
        "or expire_snapshots and remove_orphan_files do."
    ),
}


def erase_in_table(table: EventTable, topic: str, format: str, erasures: Erasures) -> dict[str, Any]:
    """Blank what was erased, and set the mark; Refused if other tools commit all the time.

    After a conflict it begins again with what is there now: an export that had read before the erasure may have added
    its events. What was blanked before has nothing to lose any more.
    """
    rows = commits = 0
    for _ in range(TRIES):
        mark = table.mark()
        if mark is None:
            return {"rows": 0, "commits": 0}
        try:
            for some in _portions(table, erasures):
                rows += table.blank(some, mark)
                commits += 1
            if erasures.until > table.erased():
                table.say_erased(erasures.last, mark)
        except Conflict:
            continue
        return {"rows": rows, "commits": commits, "left": LEFT_IN[format].format(topic=topic, version=table.version())}
    raise Refused(f"Table {topic!r} had {TRIES} commits of others in turn. Run it again.")


def _portions(table: EventTable, erasures: Erasures) -> Iterator[pa.Table]:
    """What is to be blanked, in the order of the ids as far as the files have it, so much as one commit takes."""
    waiting = REPLACED.empty_table()
    for batch in table.keys(erasures.last_id):
        waiting = pa.concat_tables([waiting, erasures.chosen(batch)])
        while waiting.num_rows >= ROWS_PER_COMMIT:
            yield waiting.slice(0, ROWS_PER_COMMIT).sort_by("offset").combine_chunks()
            waiting = waiting.slice(ROWS_PER_COMMIT)
    if waiting.num_rows:
        yield waiting.sort_by("offset").combine_chunks()
