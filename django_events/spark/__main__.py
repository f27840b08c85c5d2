"""`python -m django_events.spark PATH.zip`: what Spark's executors need of this package, for --py-files."""

import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parents[1]
BESIDE = ("__init__.py", "exceptions.py", "matching.py", "statements.py")


def bundle(path: Path) -> int:
    """Write the archive; returns how many files are in it."""
    found = (
        [HERE / name for name in BESIDE] + sorted((HERE / "sql").glob("*.sql")) + sorted((HERE / "spark").rglob("*"))
    )
    found += sorted((HERE.parent / "pyspark_django_events").rglob("*.py"))
    files = [file for file in found if file.is_file() and "__pycache__" not in file.parts]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file, file.relative_to(HERE.parent))
    return len(files)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".zip"):
        sys.exit("Say where the archive goes: python -m django_events.spark PATH.zip")
    target = Path(sys.argv[1])
    sys.stdout.write(f"{target} holds {bundle(target)} files, for spark-submit --py-files.\n")
