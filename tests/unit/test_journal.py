"""The journal of a folder: what counts is decided once, and what no run can have written is refused."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from django_events.exceptions import Refused
from django_events.exporting.batches import Batches, Reached
from django_events.exporting.journal import KEPT, LAYOUT
from django_events.exporting.parts import Part, Parts
from django_events.exporting.storage import OfDisk

PART = Part(topic="things", incarnation="i", start=1, end=51)
OTHER = Part(topic="things", incarnation="i", start=51, end=101)


def parts(path: Path) -> Parts:
    return Parts(OfDisk(), str(path))


def planned(path: Path, *wanted: Part) -> Parts:
    journal = parts(path)
    journal.plan(wanted, "parquet", ("day",))
    return journal


def write(journal: Parts | Batches, text: str = "") -> str:
    """An attempt with a file in it, as Spark leaves it."""
    attempt = journal.attempt()
    folder = Path(journal.place_of(attempt))
    folder.mkdir(parents=True)
    (folder / "_SUCCESS").touch()
    (folder / "part-0.parquet").write_text(text or attempt)
    return attempt


def seen(path: Path) -> list[str]:
    """The files that readers find."""
    found = (file.relative_to(path) for file in path.rglob("*.parquet"))
    return sorted(str(file) for file in found if not any(name.startswith(("_", ".")) for name in file.parts))


def newest(path: Path) -> Path:
    return max((path / "_django_events/journal").glob("*/record.json"))


def test_an_attempt_is_seen_when_it_counts(tmp_path: Path) -> None:
    journal = planned(tmp_path, PART)
    attempt = write(journal)
    assert seen(tmp_path) == []

    journal.finish(PART, attempt, 50)

    assert seen(tmp_path) == ["topic=things/ids=000000000001-000000000050/part-0.parquet"]
    assert parts(tmp_path).done == {PART: 50}
    assert parts(tmp_path).unfinished == []
    assert not parts(tmp_path).has_left_over


def test_a_run_that_was_taken_over_adds_nothing(tmp_path: Path) -> None:
    frozen = planned(tmp_path, PART)
    late = write(frozen)
    second = parts(tmp_path)
    second.plan([OTHER], "parquet", ("day",))
    assert not Path(frozen.place_of(late)).exists()

    # It wakes up, and Spark writes on into the folder that was removed.
    (Path(frozen.place_of(late))).mkdir(parents=True)
    with pytest.raises(Refused, match=f"Another run has taken {tmp_path} over"):
        frozen.finish(PART, late, 50)
    with pytest.raises(Refused, match=f"Another run has taken {tmp_path} over"):
        frozen.plan([], "parquet", ("day",))
    for part in (PART, OTHER):
        second.finish(part, write(second), 50)

    assert len(seen(tmp_path)) == 2
    assert parts(tmp_path).has_left_over
    planned(tmp_path)
    assert not parts(tmp_path).has_left_over


def test_a_run_that_wakes_up_after_many_versions_adds_nothing(tmp_path: Path) -> None:
    frozen = planned(tmp_path, PART)
    second = planned(tmp_path)
    second.finish(PART, write(second), 50)
    before = seen(tmp_path)
    for _ in range(KEPT + 3):
        last = planned(tmp_path)
    assert len(list((tmp_path / "_django_events/journal").iterdir())) == KEPT

    attempt = write(frozen)
    with pytest.raises(Refused, match=f"Another run has taken {tmp_path} over"):
        frozen.finish(PART, attempt, 50)

    assert seen(tmp_path) == before
    last.plan([OTHER], "parquet", ("day",))
    assert parts(tmp_path).unfinished == [OTHER]


def test_what_was_decided_is_shown_by_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = planned(tmp_path, PART)
    attempt = write(journal)
    with monkeypatch.context() as patched:
        patched.setattr(journal, "_show", lambda attempt, folder: None)  # killed right before
        journal.finish(PART, attempt, 50)
    assert seen(tmp_path) == []

    planned(tmp_path)

    assert seen(tmp_path) == ["topic=things/ids=000000000001-000000000050/part-0.parquet"]
    journal._show(attempt, PART.folder)  # the one that was frozen goes on: it is done already
    assert len(seen(tmp_path)) == 1


def test_folders_that_were_removed_do_not_come_again(tmp_path: Path) -> None:
    journal = planned(tmp_path, PART)
    journal.finish(PART, write(journal), 50)
    OfDisk().remove(f"{tmp_path}/{PART.folder}")

    assert planned(tmp_path).unfinished == []
    assert seen(tmp_path) == []


def test_a_folder_in_the_way_is_said(tmp_path: Path) -> None:
    journal = planned(tmp_path, PART)
    (tmp_path / PART.folder).mkdir(parents=True)
    (tmp_path / PART.folder / "foreign.parquet").touch()

    with pytest.raises(Refused, match=r"ids=000000000001-000000000050 is there, and no run has written it"):
        journal.finish(PART, write(journal), 50)

    assert parts(tmp_path).unfinished == [PART]


def test_a_folder_that_comes_in_the_way_at_the_last_moment_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = planned(tmp_path, PART)
    attempt = write(journal)

    def make(disk: OfDisk, folder: str) -> None:
        (tmp_path / PART.folder).mkdir(parents=True)
        (tmp_path / PART.folder / "foreign.parquet").touch()

    with monkeypatch.context() as patched:
        patched.setattr(OfDisk, "keep", make)
        with pytest.raises(Refused, match=r"ids=000000000001-000000000050 is there, and no run has written it"):
            journal.finish(PART, attempt, 50)
    OfDisk().remove(f"{tmp_path}/{PART.folder}")
    planned(tmp_path)

    assert seen(tmp_path) == ["topic=things/ids=000000000001-000000000050/part-0.parquet"]


def test_what_a_version_says_is_on_the_disk_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the calls: a power failure may come between any two of them."""
    calls: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def kept(opened: int) -> None:
        calls.append(("keep", str(Path(f"/proc/self/fd/{opened}").readlink())))
        fsync(opened)

    def moved(source: Path, target: Path) -> None:
        calls.append(("move", str(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", kept)
    monkeypatch.setattr(os, "rename", moved)
    out = tmp_path / "new" / "out"
    journal = planned(out, PART)
    attempt = write(journal)
    own, versions = f"{out}/_django_events", f"{out}/_django_events/journal"
    begun = calls.index(("move", f"{versions}/000000000001"))
    assert {tmp_path, tmp_path / "new", out, Path(own)} <= {Path(path) for _, path in calls[:begun]}

    journal.finish(PART, attempt, 50)

    decided, shown = calls.index(("move", f"{versions}/000000000002")), calls.index(("move", f"{out}/{PART.folder}"))
    place = f"{own}/attempts/{attempt}"
    for path in (f"{place}/part-0.parquet", f"{place}/_SUCCESS", place, f"{own}/attempts"):
        assert ("keep", path) in calls[begun:decided]
    assert ("keep", versions) in calls[decided:shown]
    assert ("keep", f"{out}/topic=things") in calls[shown:]


@pytest.mark.parametrize("was", ["shown", "removed"])
def test_what_a_late_task_writes_where_a_part_was_is_cleared(tmp_path: Path, was: str) -> None:
    """A machine of Spark's that was frozen, or cut off, wakes up when its task was done elsewhere, and goes on."""
    journal = planned(tmp_path, PART)
    attempt = write(journal)
    journal.finish(PART, attempt, 50)
    if was == "removed":  # by the user, to keep the folder small
        OfDisk().remove(f"{tmp_path}/{PART.folder}")
    before = seen(tmp_path)

    late = Path(journal.place_of(attempt)) / "_temporary/0/_temporary/attempt_1/event_type=a/part-1.parquet"
    late.parent.mkdir(parents=True)
    late.touch()
    planned(tmp_path)

    assert seen(tmp_path) == before
    assert not parts(tmp_path).has_left_over


def test_files_that_spark_wrote_elsewhere_do_not_count(tmp_path: Path) -> None:
    journal = planned(tmp_path, PART)

    with pytest.raises(Refused, match="is not there, though it was written"):
        journal.finish(PART, journal.attempt(), 50)
    assert parts(tmp_path).unfinished == [PART]


def test_a_run_whose_files_a_later_one_has_cleared_is_told_of_that_one(tmp_path: Path) -> None:
    journal = planned(tmp_path, PART)
    attempt = write(journal)
    planned(tmp_path)  # it takes the folder over, and clears what others have left

    with pytest.raises(Refused, match="Another run has taken"):
        journal.finish(PART, attempt, 50)


@pytest.mark.slow
def test_a_run_that_is_taken_over_right_after_it_decided_is_not_told_that_nothing_was_added(tmp_path: Path) -> None:
    class Held(OfDisk):
        """A later run begins as soon as a version is there, before the one that added it looks again."""

        def add(self, file: str, text: str, draft: str) -> bool:
            added = super().add(file, text, draft)
            planned(tmp_path)
            return added

    first = planned(tmp_path, PART, OTHER)
    first._storage = Held()

    first.finish(PART, write(first), 50)

    assert parts(tmp_path).done == {PART: 50}
    assert len(seen(tmp_path)) == 1
    Path(first.place_of(late := first.attempt())).mkdir()
    with pytest.raises(Refused, match=f"Another run has taken {tmp_path} over"):
        first.finish(OTHER, late, 50)
    assert parts(tmp_path).unfinished == [OTHER]


def test_many_runs_at_once_decide_each_part_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any lock: each takes the folder over from the others, again and again."""
    monkeypatch.setattr(os, "fsync", lambda opened: None)  # a slow disk would let none of them get far
    wanted = [Part(topic="things", incarnation="i", start=n, end=n + 1) for n in range(1, 61)]
    planned(tmp_path, *wanted)

    def run(_: int) -> int:
        finished = 0
        while True:
            try:
                journal = planned(tmp_path)
                for part in journal.unfinished:
                    journal.finish(part, write(journal, str(part.start)), 1)
                    finished += 1
                return finished
            except (Refused, FileNotFoundError):  # what it was writing was cleared meanwhile
                continue

    with ThreadPoolExecutor(6) as pool:
        finished = list(pool.map(run, range(6)))

    assert sum(finished) <= len(wanted)  # a run may be taken over between its decision and its answer
    files = [tmp_path / file for file in seen(tmp_path)]
    assert sorted(int(file.read_text()) for file in files) == list(range(1, 61))
    assert len(parts(tmp_path).done) == 60


def test_a_run_that_wakes_up_while_it_reads_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(tmp_path, PART)

    def sleep(journal: Parts) -> int:
        monkeypatch.undo()
        number = journal._newest()
        for _ in range(KEPT + 1):
            planned(tmp_path)
        return number

    monkeypatch.setattr(Parts, "_newest", sleep)
    with pytest.raises(Refused, match=f"Another run has taken {tmp_path} over"):
        parts(tmp_path)


def test_a_run_that_wakes_up_while_it_clears_leaves_later_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = parts(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(frozen, "_tidy", lambda: None)  # it stops right before
        frozen.plan([PART], "parquet", ("day",))
    second = planned(tmp_path)
    attempt = write(second)
    with monkeypatch.context() as patched:
        patched.setattr(second, "_show", lambda attempt, folder: frozen._tidy())
        second.finish(PART, attempt, 50)

    planned(tmp_path)

    assert seen(tmp_path) == ["topic=things/ids=000000000001-000000000050/part-0.parquet"]


def test_a_follower_goes_on_where_the_files_end(tmp_path: Path) -> None:
    first = Batches(OfDisk(), str(tmp_path))
    first.begin("parquet", ("day",))
    first.finish(write(first), 7, {"things": Reached("i", 8)})

    again = Batches(OfDisk(), str(tmp_path), run=first.run)
    assert (again.count, again.rows, again.reached) == (1, 7, {"things": Reached("i", 8)})
    Batches(OfDisk(), str(tmp_path)).begin("parquet", ("day",))
    with pytest.raises(Refused, match=f"Another run has taken {tmp_path} over"):
        Batches(OfDisk(), str(tmp_path), run=first.run)
    with pytest.raises(Refused, match=f"Another run has taken {tmp_path} over"):
        again.finish(write(again), 7, {})
    assert seen(tmp_path) == ["batch=000000000000/part-0.parquet"]


@pytest.mark.parametrize(
    "changed",
    [
        {"parts": None},
        {"parts": [{}]},
        {"parts": [{"topic": "things", "incarnation": "i", "start": "1", "end": 51}]},
        {"parts": [{"topic": "things", "incarnation": "i", "start": True, "end": 51}]},
        {"parts": [{"topic": "things", "incarnation": "i", "start": 51, "end": 51}]},
        {"parts": [{"topic": "things", "incarnation": "i", "start": 0, "end": 51}]},
        {"parts": [{"topic": None, "incarnation": "i", "start": 1, "end": 51}]},
        {"parts": [{"topic": "things", "incarnation": "i", "start": 1, "end": 51, "rows": 50}]},
        {"parts": [{"topic": "things", "incarnation": "i", "start": 1, "end": 51, "rows": 51, "attempt": "a"}]},
        {"parts": [{"topic": "things", "incarnation": "i", "start": 1, "end": 51}] * 2},
        {"by": "day"},
        {"format": None},
        {"layout": "2"},
    ],
)
def test_a_record_that_no_run_writes_is_damage(tmp_path: Path, changed: dict[str, Any]) -> None:
    planned(tmp_path, PART)
    file = newest(tmp_path)
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))

    with pytest.raises(Refused, match="/_django_events/journal is damaged, or something else wrote it"):
        parts(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [{"batches": "1"}, {"batches": 1}, {"rows": -1}, {"attempt": "a"}, {"topics": {"things": {"incarnation": "i"}}}],
)
def test_a_record_that_no_follower_writes_is_damage(tmp_path: Path, changed: dict[str, Any]) -> None:
    Batches(OfDisk(), str(tmp_path)).begin("parquet", ())
    file = newest(tmp_path)
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))

    with pytest.raises(Refused, match="/_django_events/journal is damaged, or something else wrote it"):
        Batches(OfDisk(), str(tmp_path))


@pytest.mark.parametrize("says", ["erased", "values", "values of a follower"])
def test_a_process_that_knows_less_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    """It would write the next version without what it doesn't know."""
    made: Parts | Batches = Batches(OfDisk(), str(tmp_path)) if "follower" in says else parts(tmp_path)
    if says != "erased":
        made.values.refuse_other("typed", is_new=True)
    made.begin("parquet", ())
    if isinstance(made, Parts) and says == "erased":
        assert json.loads(newest(tmp_path).read_text())["layout"] == LAYOUT
        made.erased["things"] = 7
        made.begin("parquet", ())
    assert type(made)(OfDisk(), str(tmp_path)).format == "parquet"

    monkeypatch.setattr("django_events.exporting.journal.NEWER", LAYOUT)
    with pytest.raises(Refused, match="was written by a newer version"):
        type(made)(OfDisk(), str(tmp_path))


def test_a_folder_of_another_writer_is_refused(tmp_path: Path) -> None:
    planned(tmp_path, PART)

    with pytest.raises(Refused, match=r"holds what export_events writes\. Take another folder for stream_events"):
        Batches(OfDisk(), str(tmp_path))


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("topic=things/ids=1-2/part-0.parquet", "holds 'topic=things', and no journal that says what is in it"),
        ("part-0.parquet", "holds 'part-0.parquet', and no journal"),
        ("_django_events/journal/part-0.txt", "was begun by an older version of django_events"),
        ("_django_events/stream/part-0.txt", "was begun by an older version of django_events"),
    ],
)
def test_a_folder_of_something_else_is_refused(tmp_path: Path, there: str, said: str) -> None:
    (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / there).touch()

    with pytest.raises(Refused, match=said):
        parts(tmp_path)


@pytest.mark.parametrize("there", [".hidden", "_SUCCESS", "lost+found/x", "_django_events/checkpoint/metadata"])
def test_what_readers_pass_over_is_no_matter(tmp_path: Path, there: str) -> None:
    (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / there).touch()

    assert parts(tmp_path).is_new
