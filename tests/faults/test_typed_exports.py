"""Followers that write typed columns, killed, frozen or without their lock, while a newer deploy adds columns."""

import json
import random
import signal
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from django_events import Draft, schema
from django_events.management.spark import LOCKED
from tests.integration.exporting.test_typed_exports import declared, export, rows
from tests.spark.test_batch import stored
from tests.support.disturbing import HOW, disturb, rounds, started, tried, wake
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.timeout(600)]

EVENTS, PER_COMMIT = 3_000, 250


@schema("counted")
class CountedSince(BaseModel):
    """As the newer deploy has it."""

    n: int
    share: Decimal
    parts: list[dict[str, int]] = []
    note: str | None = None


def draft(n: int) -> Draft:
    value: dict[str, Any] = {"n": n, "share": f"{n}.50", "parts": [{"a": n}]}
    if n % 7 == 0:
        value["n"] = f"no number: {n}"
    if n % 5 == 0:
        value["note"] = f"for the newer deploy: {n}"
    return Draft(value=value, type="counted" if n % 11 else "other")


@pytest.mark.requirement("X15")
@pytest.mark.requirement("X9")
@rounds(12, "delta", "iceberg")
def test_each_event_is_in_the_columns_once(
    log: Callable[..., Any], tmp_path: Path, format: str, round: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*map(draft, range(EVENTS)))
    rng, how, out = random.Random(round), HOW[round % len(HOW)], tmp_path / "out"
    words = ("--part", str(PER_COMMIT), "--columns", "typed")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.support.typed_settings")

    def newer() -> None:
        with declared(CountedSince):
            export(format, topic, out, *words)

    following = (topic, "--to", out, *words, "--follow", "--every", "0.1", "--format", format)
    with started(*following, said=tmp_path / "said") as first:
        enough = rng.randrange(1, EVENTS // PER_COMMIT)
        wait_until(lambda: first.poll() is not None or len(list(out.rglob("*.parquet"))) >= enough)
        disturb(first, how, after=rng.randrange(200))
        said = tried(newer)
        wake(first, how)
        assert said in ("", LOCKED) or "has taken" in said
        code, said = first.returncode, (tmp_path / "said").read_text()
    assert code == (-signal.SIGKILL if how == "killed" else 1), said
    assert "Traceback" not in said

    newer()
    found = rows(format, out)
    assert [row["offset"] for row in found] == [*range(1, EVENTS + 1)]
    for row, known in zip(found, stored(topic), strict=True):
        said_by_it = json.loads(known["value"])
        if row["rescued"] is None:
            told = row["data"]["counted"]
            assert (told["n"], told["share"]) == (said_by_it["n"], Decimal(said_by_it["share"]))
            assert (told.get("note"), [dict(one) for one in told["parts"]]) == (
                said_by_it.get("note"),
                said_by_it["parts"],
            )
        else:
            assert row["rescued"] == known["value"]
            assert known["type"] == "other" or not said_by_it.keys() <= {"n", "share", "parts"} or row["data"]
