"""`python -m tests.foreign PROJECT [LABELS]`: see the package."""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAILED = re.compile(r"^(?:FAIL|ERROR): (.+)$", re.MULTILINE)
# How suites say that there were more queries: Django's assertNumQueries, and a comparison by hand in Oscar's.
QUERIES = re.compile(
    r"AssertionError: \d+ != \d+ : \d+ quer(?:y|ies) executed, \d+ expected|assertTrue\(.*len\(queries\)"
)
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
        ),
        ("tests.unit", "tests.integration"),
    ),
}


class Suite:
    """The suite of a project, in a virtual environment of its own."""

    def __init__(self, project: Project, folder: Path, source: Path | None, django: str) -> None:
        self.project = project
        self.python = folder / "venv/bin/python"
        venv.create(folder / "venv", with_pip=True)
        self._pip("install", django, "psycopg[binary]", "django-pgtrigger", project.package, *project.needs)
        self.source = source or self._source(folder)

    def run(self, labels: list[str], *, events: bool) -> tuple[int, dict[str, bool]]:
        """How many tests ran; those that failed, and whether only the number of queries was another one."""
        said = subprocess.run(
            [self.python, "-m", "django", "test", "--noinput", "-v1", *labels],
            cwd=self.source / self.project.path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, self._paths)),
                "DJANGO_SETTINGS_MODULE": "foreign.settings",
                "FOREIGN_SETTINGS": self.project.settings,
                "FOREIGN_EVENTS": "yes" if events else "no",
                "FOREIGN_DATABASE": f"foreign_{os.getpid()}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        ).stdout
        ran = RAN.search(said)
        if ran is None:
            sys.exit(f"The suite did not run{' with events' if events else ''}:\n{said[-6000:]}")
        failed = {}
        for report in said.split("=" * 70)[1:]:
            if found := FAILED.search(report):
                failed[found[1]] = QUERIES.search(report) is not None
                self._keep(report, events=events)
        return int(ran[1]), failed

    @property
    def _paths(self) -> list[Path]:
        """Where modules are. Theirs may have a package `tests` too, so ours is reached as `foreign`.

        The code of a checkout comes before that of PyPI, which may be of another version than the tests.
        """
        return [self.source / self.project.path, self.source / "src", ROOT, ROOT / "tests"]

    def _keep(self, report: str, *, events: bool) -> None:
        with (self.python.parents[2] / f"failed-{'with' if events else 'without'}.log").open("a") as log:
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
        ran, before = suite.run(labels, events=False)
        ran_with, after = suite.run(labels, events=True)
    new = {name: queries for name, queries in after.items() if name not in before}
    print(f"{asked.project}: of {ran} tests {len(before)} fail without events, of {ran_with} {len(after)} with events.")
    print(f"Fail with events only: {len(new)}, {sum(new.values())} of them by nothing but the number of queries.")
    others = sorted(name for name, queries in new.items() if not queries)
    print("".join(f"  {name}\n" for name in others), end="")
    return 1 if others or ran != ran_with else 0


if __name__ == "__main__":
    sys.exit(main())
