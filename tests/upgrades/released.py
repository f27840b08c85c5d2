"""The schemas of released versions, as `python -m tests.upgrades.release VERSION` wrote them."""

import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent / "released"
ROOT = Path(__file__).resolve().parents[2]
LAST_COMMIT = "the last commit with other code and the same migrations"
PACKAGE, MIGRATIONS = "django_events", "django_events/migrations"


def versions() -> list[str]:
    """Which versions are out, the oldest first."""
    return sorted((path.stem for path in FOLDER.glob("*.sql")), key=_numbers)


def dump_of(version: str) -> Path:
    return FOLDER / f"{version}.sql"


def beside() -> list[str]:
    """Whose code is run beside this one: the last commit's with other code, and the last release's."""
    return [LAST_COMMIT, *(f"v{version}" for version in versions()[-1:])]


def revision_of(name: str) -> str:
    """What git calls it; FileNotFoundError, which says why, if there is none.

    Until the first release 0001 is edited in place, so two commits share a schema only where their migrations are the
    same.
    """
    if name != LAST_COMMIT:
        return name
    done = _git("rev-list", "--first-parent", "HEAD", "--", PACKAGE)
    if done.returncode:
        raise FileNotFoundError(f"no history of git: {done.stderr.strip()}")
    commits = ["HEAD", *done.stdout.split()]  # and then the one before each
    for commit in [*commits, *(f"{one}^" for one in commits[1:])]:
        if not has_same_migrations(commit):
            continue
        if _git("diff", "--quiet", commit, "--", PACKAGE, ":!*.po", ":!*.md").returncode == 1:
            return commit
    raise FileNotFoundError(
        f"none of {len(commits)} commits has other code and the migrations of now: 0001 was edited in place since, or "
        "the clone is a shallow one"
    )


def has_same_migrations(revision: str) -> bool:
    """Whether a schema of that revision is one of now."""
    return _git("diff", "--quiet", revision, "--", MIGRATIONS).returncode == 0


def _git(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
