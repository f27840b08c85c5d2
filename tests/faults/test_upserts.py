"""Tables of states whose exporters are killed, frozen or without their lock: the newest event of each key.

Typed columns become more with each deploy: the table was begun by one that knew fewer fields than the follower, and the
runs beside it know more.
"""

import json
import random
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from django_events import Draft, schema
from django_events.management.spark import LOCKED
from tests.integration.exporting.test_typed_exports import declared
from tests.integration.exporting.test_upserts import publish, states
from tests.support.disturbing import HOW, disturb, rounds, started, tried, wake
from tests.support.processes import wait_until
from tests.support.tables import TYPED, read_back, run
from tests.support.typed_app.described import Counted

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.timeout(600)]

EVENTS, PER_COMMIT, KEYS = 4_000, 250, 300


@schema("counted")
class CountedAtFirst(BaseModel):
    """As the deploy has it that begins the table."""

    n: int
    share: Decimal


@schema("counted")
class CountedAtLast(BaseModel):
    """As the deploy has it whose runs come beside the follower, and after it."""

    n: int
    share: Decimal
    parts: list[dict[str, int]] = []
    note: str | None = None


@pytest.mark.requirement("X15")
@pytest.mark.parametrize("columns", ["text", "typed"])
@rounds(12, "delta", "iceberg")
def test_each_key_has_its_newest_event(
    log: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, round: int, columns: str
) -> None:
    rng, how, out = random.Random(round), HOW[round % len(HOW)], tmp_path / "out"
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.support.typed_settings")

    def deployed(model: type[BaseModel]) -> AbstractContextManager[None]:
        return declared(model) if columns == "typed" else nullcontext()

    topic = log(*(drawn(rng) for _ in range(PER_COMMIT)))
    words = (topic, "--to", out, "--part", PER_COMMIT, "--upsert", "--columns", columns)
    with deployed(CountedAtFirst):
        run(*words, format=format)
    publish(topic, *(drawn(rng) for _ in range(EVENTS - PER_COMMIT)))
    with (
        deployed(CountedAtLast),
        started(*words, "--follow", "--every", "0.1", "--format", format, said=tmp_path / "said") as first,
    ):
        there, rows_there = len(files(out)), len(files(out, "*.parquet"))
        enough = rng.choice([0, rng.randrange(1, EVENTS // PER_COMMIT - 1)])
        wait_until(
            lambda: (
                first.poll() is not None
                or (len(files(out)) > there and len(files(out, "*.parquet")) >= rows_there + enough)
            )
        )
        assert first.poll() is None, (tmp_path / "said").read_text()
        disturb(first, how, after=rng.randrange(200))
        said = tried(lambda: run(*words, format=format))
        publish(topic, *(drawn(rng) for _ in range(100)))
        if how == "frozen":
            again = tried(lambda: run(*words, format=format))
            assert {said, again} <= {"", LOCKED}
        wake(first, how)
        assert said in ("", LOCKED) or "has taken" in said
        code, told = first.returncode, (tmp_path / "said").read_text()
    assert code == (-signal.SIGKILL if how == "killed" else 1), told
    assert "Traceback" not in told

    publish(topic, *(drawn(rng) for _ in range(100)))
    with deployed((CountedAtLast, Counted)[round % 2]):
        run(*words, format=format)

    if columns == "text":
        assert read_back(out, format) == states(topic)
        return
    found, expected = read_back(out, format, columns=TYPED), states(topic)
    assert [row["offset"] for row in found] == [known["offset"] for known in expected]
    for row, known in zip(found, expected, strict=True):
        value, typed = known.pop("value"), (with_all_fields(row.pop("data")), row.pop("rescued"))
        assert row == known
        deploys = [CountedAtFirst] if row["offset"] <= PER_COMMIT else [Counted, CountedAtLast]
        assert typed in [typed_by(model, known["type"], value) for model in deploys], (row["offset"], value)


def with_all_fields(data: dict[str, Any] | None) -> dict[str, Any] | None:
    """As if the newest deploy had written to it: a follower that is disturbed late leaves nothing to do."""
    return data and {"counted": {**dict.fromkeys(CountedAtLast.model_fields), **data["counted"]}}


def typed_by(model: type[BaseModel], kind: str, value: str) -> tuple[dict[str, Any] | None, str | None]:
    """What a deploy that has this model makes of a value, with all fields of the table: `data` and `rescued`."""
    if kind == "other":
        return None, value
    known = json.loads(value)
    fits = {name: field for name, field in known.items() if name in model.model_fields}
    if isinstance(fits["n"], str):
        del fits["n"]
    fields = {name: fits.get(name) for name in CountedAtLast.model_fields}
    fields["share"] = Decimal(known["share"])
    fields["parts"] = fits.get("parts") and [list(one.items()) for one in fits["parts"]]  # as Arrow gives maps
    return {"counted": fields}, None if fits == known else value


def drawn(rng: random.Random) -> Draft:
    """An event of one of the keys: what fits, or doesn't, or what only some deploys know of, or nothing."""
    n = rng.randrange(1_000_000)
    value: dict[str, Any] | None = {"n": n, "share": f"{n}.50"}
    if rng.random() < 0.5:
        value["parts"] = [{"a": n}]
    if rng.random() < 0.3:
        value["note"] = f"for the newest deploy: {n}"
    if rng.random() < 0.1:
        value["n"] = f"no number: {n}"
    if rng.random() < 0.2:
        value = None
    return Draft(value=value, key=str(rng.randrange(KEYS)), type="counted" if rng.random() < 0.9 else "other")


def files(folder: Path, of: str = "*") -> list[Path]:
    return [path for path in folder.rglob(of) if path.is_file()]
