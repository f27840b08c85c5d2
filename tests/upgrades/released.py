"""The schemas of released versions, as `python -m tests.upgrades.release VERSION` wrote them."""

from pathlib import Path

FOLDER = Path(__file__).parent / "released"


def versions() -> list[str]:
    """Which versions are out, the oldest first."""
    return sorted((path.stem for path in FOLDER.glob("*.sql")), key=_numbers)


def dump_of(version: str) -> Path:
    return FOLDER / f"{version}.sql"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
