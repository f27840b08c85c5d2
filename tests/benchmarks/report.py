"""The table, or the same as JSON."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django.db import connection

from django_events.workers.wakeups import why_polling
from tests.benchmarks.harness import Figure, Row

SETTINGS = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
    "wal_compression",
    "jit",
    "max_prepared_transactions",
)
HEADER = ("id", "what", "measured", "against", "reference", "ratio", "(middle half)", "goal", "holds")


def machine() -> dict[str, Any]:
    """What the numbers were taken on."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name", [list(SETTINGS)])
        settings = dict(cursor.fetchall())
        cursor.execute("SHOW server_version")
        [[version]] = cursor.fetchall()
    return {
        "python": platform.python_version(),
        "postgresql": version,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "settings": settings,
        "polling": why_polling("default"),
    }


def as_table(facts: dict[str, Any], results: Sequence[tuple[Figure, Row]]) -> str:
    lines = [
        "PostgreSQL {postgresql}, Python {python}, {cores} cores, load {load}; ".format(**facts)
        + ", ".join(f"{name}={value}" for name, value in facts["settings"].items()),
        *([f"{facts['polling']} Latencies contain the wait for that."] if facts["polling"] else []),
        "",
    ]
    cells = [HEADER] + [
        (
            figure.id,
            row.what,
            _amount(row.measured, row.unit),
            row.against,
            "" if row.reference is None else _amount(row.reference, row.unit),
            "" if row.ratio is None else f"{row.ratio:.2f}",
            "" if row.spread is None else f"({row.spread[0]:.2f} to {row.spread[1]:.2f})",
            str(row.goal or ""),
            {True: "yes", False: "no", None: ""}[row.holds],
        )
        for figure, row in results
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join(lines)


def as_json(facts: dict[str, Any], results: Sequence[tuple[Figure, Row]]) -> str:
    figures = [
        {
            "id": figure.id,
            "description": figure.description,
            **asdict(row),
            "goal": str(row.goal) if row.goal else None,
            "holds": row.holds,
        }
        for figure, row in results
    ]
    return json.dumps({"machine": facts, "figures": figures}, indent=2, ensure_ascii=False)


def _amount(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value * 1e6:,.0f} µs"
    return f"{value:,.{0 if value >= 100 or value == int(value) else 2}f} {unit}"
