"""Write down the schema and some data of a version that is being released.

    python -m tests.upgrades.release 1.2

makes tests/upgrades/released/1.2.sql by the code that is here now. Commit it with the tag v1.2: from then on each
test run restores it, migrates it, and lets the code of the tag work on the new schema.
"""

import re
import subprocess
import sys
from pathlib import Path

from testproject.private_postgres.binaries import available_binaries, major_version
from testproject.private_postgres.server import Server
from tests.upgrades.flow import ROOT, Code, leave_in_the_middle
from tests.upgrades.released import dump_of

SESSION = re.compile(r"^(\\(un)?restrict .*|SET (transaction_timeout|default_table_access_method) .*)\n", re.MULTILINE)


def write(version: str, path: Path) -> Path:
    """Dump a database in the middle of its work; refused where there is one already, because releases don't change."""
    if path.exists():
        raise SystemExit(f"{path} is there already. A released schema does not change: release another version.")
    if not re.fullmatch(r"\d+(\.\d+)+", version):
        raise SystemExit(f"{version!r} is no version, expected one like 1.2 or 1.2.3.")
    binaries = min(available_binaries(), key=major_version)  # newer servers take it too
    with Server(binaries=binaries) as server:
        code = Code(ROOT, server.url)
        code.manage("migrate", "-v0")
        leave_in_the_middle(code)
        dump = subprocess.run(
            [binaries / "pg_dump", "--no-owner", "--inserts", "--rows-per-insert=100", f"--dbname={server.url}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    path.parent.mkdir(exist_ok=True)
    path.write_text(SESSION.sub("", dump))
    return path


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("Usage: python -m tests.upgrades.release VERSION")
    print(write(sys.argv[1], dump_of(sys.argv[1])))
