"""`python -m tests.foreign PROJECT [LABELS]`: see the package."""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAILED = re.compile(r"^(?:FAIL|ERROR): (.+)$", re.MULTILINE)
# How suites say that there were more queries: Django's assertNumQueries, and a comparison by hand in Oscar's.
QUERIES = re.compile(
    r"AssertionError: \d+ != \d+ : \d+ quer(?:y|ies) executed, \d+ expected|assertTrue\(.*len\(queries\)"
)
# How suites say that they save outside of a transaction, which an @outbox refuses: capture() is for such code.
AUTOCOMMIT = "NotInTransaction: "
RAN = re.compile(r"^Ran (\d+) tests?", re.MULTILINE)


@dataclass(frozen=True)
class Project:
    package: str
    settings: str
    needs: tuple[str, ...]
    labels: tuple[str, ...]
    path: str = "."  # where its modules are in its source


PROJECTS = {
    "guardian": Project(
        "django-guardian", "guardian.testapp.testsettings", ("django-environ",), ("guardian.testapp.tests",)
    ),
    "wagtail": Project(
        "wagtail",
        "wagtail.test.settings",
        ("Jinja2", "freezegun", "responses", "django-pattern-library", "boto3"),
        (
            "wagtail.tests.test_page_model",
            "wagtail.tests.test_signals",
            "wagtail.documents",
            "wagtail.contrib.redirects",
        ),
    ),
    "oscar": Project(
        "django-oscar",
        "tests.settings",
        (
            "django-webtest",
            "factory-boy",
            "psycopg",
            "sorl-thumbnail",
            "easy-thumbnails",
            "coverage",
            "freezegun",
            "whoosh",
            "pysolr",
            "pytest",
            "pytz",
        ),
        ("tests.unit", "tests.integration"),
    ),
}


# What is published: nothing, the changes of all tables, and these and the saves of all models.
WITHOUT, CAPTURED, OUTBOX = "without", "captured", "captured and outbox"


class Suite:
    """The suite of a project, in a virtual environment of its own."""

    def __init__(self, project: Project, folder: Path, source: Path | None, django: str) -> None:
        self.project = project
        self.python = folder / "venv/bin/python"
        self.ours = folder / "ours"
        venv.create(folder / "venv", with_pip=True)
        self._pip("install", django, "psycopg[binary]", "django-pgtrigger", project.package, *project.needs)
        self.source = source or self._source(folder)
        self.ours.mkdir(exist_ok=True)
        (self.ours / "foreign").unlink(missing_ok=True)
        (self.ours / "foreign").symlink_to(Path(__file__).parent)

    def run(self, labels: list[str], events: str) -> tuple[int, dict[str, str]]:
        """How many tests ran; those that failed, and by what, where that is expected."""
        with tempfile.TemporaryDirectory() as media:
            said = subprocess.run(
                [self.python, "-m", "django", "test", "--noinput", "-v1", *labels],
                cwd=self.source / self.project.path,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(map(str, self._paths)),
                    "DJANGO_SETTINGS_MODULE": "foreign.settings",
                    "FOREIGN_SETTINGS": self.project.settings,
                    "FOREIGN_EVENTS": events,
                    "FOREIGN_DATABASE": f"foreign_{os.getpid()}",
                    "FOREIGN_MEDIA": media,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            ).stdout
        ran = RAN.search(said)
        if ran is None:
            sys.exit(f"The suite did not run ({events}):\n{said[-6000:]}")
        failed = {}
        for report in said.split("=" * 70)[1:]:
            if found := FAILED.search(report):
                failed[found[1]] = _cause(report)
                self._keep(report, events)
        return int(ran[1]), failed

    @property
    def _paths(self) -> list[Path]:
        """Where modules are. Theirs may have a package `tests` too, so ours is reached as `foreign`, by a link.

        Our `tests` is no such folder: it has a package `typing`, which would hide Python's own. The code of a checkout
        comes before that of PyPI, which may be of another version than the tests.
        """
        return [self.source / self.project.path, self.source / "src", ROOT, self.ours]

    def _keep(self, report: str, events: str) -> None:
        with (self.python.parents[2] / f"failed-{events.replace(' ', '-')}.log").open("a") as log:
            log.write(report)

    def _source(self, folder: Path) -> Path:
        self._pip("download", "--no-deps", "--no-binary", self.project.package, self.project.package, "-d", folder)
        [archive] = folder.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder / "source", filter="data")
        [source] = (folder / "source").iterdir()
        return source

    def _pip(self, *arguments: object) -> None:
        subprocess.run([self.python, "-m", "pip", "-q", *map(str, arguments)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", choices=PROJECTS)
    parser.add_argument("labels", nargs="*", help="Which of its tests; by default a part that takes minutes.")
    parser.add_argument("--source", type=Path, help="A checkout of the project; by default its source on PyPI.")
    parser.add_argument("--django", default="Django>=5.2,<6", help="What to give to pip.")
    parser.add_argument("--keep", type=Path, help="A folder for the environment and the logs, which stays.")
    asked = parser.parse_intermixed_args()
    project = PROJECTS[asked.project]
    with tempfile.TemporaryDirectory() as scratch:
        suite = Suite(project, asked.keep or Path(scratch), asked.source, asked.django)
        labels = asked.labels or list(project.labels)
        ran, before = suite.run(labels, WITHOUT)
        print(f"{asked.project}: of {ran} tests {len(before)} fail without events.", flush=True)
        return max([_compare(suite, labels, events, ran, before) for events in (CAPTURED, OUTBOX)])


def _compare(suite: Suite, labels: list[str], events: str, ran: int, before: dict[str, str]) -> int:
    """Run the suite with events, and say what fails only then; 1 if that is more than is expected."""
    ran_with, after = suite.run(labels, events)
    new = {name: cause for name, cause in after.items() if name not in before}
    causes = Counter(cause for cause in new.values() if cause)
    told = ", ".join(f"{number} by {cause}" for cause, number in causes.items()) or "none by what is expected"
    print(f"{events}: of {ran_with} {len(after)} fail. Only with events: {len(new)}, {told}.", flush=True)
    others = sorted(name for name, cause in new.items() if not cause)
    print("".join(f"  {name}\n" for name in others), end="", flush=True)
    return 1 if others or ran != ran_with else 0


def _cause(report: str) -> str:
    """Why a test may fail with events: an outbox asks, and refuses to save where a crash could lose the event."""
    if AUTOCOMMIT in report:
        return "saving outside of a transaction"
    return "the number of queries" if QUERIES.search(report) else ""


if __name__ == "__main__":
    sys.exit(main())
