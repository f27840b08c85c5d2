"""What the commands for Spark and files share: the address of the database, what goes wrong, how far it is."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from errno import EACCES, EDQUOT, EIO, ENOSPC, ENOTDIR, EPERM, EROFS, ESTALE, EXDEV
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import psycopg
from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.db import connections
from psycopg import pq
from psycopg.conninfo import make_conninfo

from django_events.exceptions import EventsError, Invalid, UnknownName
from django_events.exporting.paths import PATTERN, spelled, split
from django_events.phrases import duration
from django_events.reading.dsn import HIDDEN
from django_events.workers.loop import Exit

if TYPE_CHECKING:
    from django_events.exporting.erasures import KeyNames

PACKAGES = {"deltalake", "pyiceberg", "sqlalchemy", "pyspark", "pyarrow", "pandas", "numpy", "py4j"}
FULL = "The disk is full. What was finished stays; make room and run the same again, and the rest is written."
LOCKED = (
    "The catalogue of the tables is locked by another process, in SQLite's file: one that was frozen in the middle of "
    "a commit has it until it goes on or ends. Nothing was added. End that process and run the same again, or keep the "
    "tables in a catalogue of your own, by --catalog."
)
# The first is the part of deltalake in Rust; the last ones are how PyIceberg asks a catalogue and an object store.
OF_TABLES = {"_internal", "deltalake", "pyiceberg", "sqlalchemy", "requests", "urllib3", "botocore", "aiobotocore"}
# What the libraries of tables may quote of an address or of their settings.
CONFIDENTIAL = r"(?:password|passwd|secret|token|credential|access.?key|account.?key|\bsig)"
SECRETS = (
    re.compile(r"(?P<before>://[^\s/:@'\"]*:)[^\s'\"]+(?=@)"),
    re.compile(rf"(?P<before>{CONFIDENTIAL}[\w.-]*['\"]?\s*[=:]\s*['\"]?)[^\s,;&'\")}}]+", re.IGNORECASE),
)
# What a file system says that is no mistake of ours.
OF_DISKS = {
    ENOSPC: FULL,
    EDQUOT: f"{FULL} It is the quota of this user.",
    EACCES: "Permission denied. Say another folder, or run as who may.",
    EPERM: "Permission denied. Say another folder, or run as who may.",
    EROFS: "That file system is mounted for reading only. Say another folder.",
    ENOTDIR: "There is a file where a folder is to be made. Say another path.",
    EXDEV: (
        "A folder below it is on another disk, by a link or a mount, and files get their names in one step, which "
        "takes one file system. What counts is not lost: move that folder back, and run the same again."
    ),
    EIO: "The disk reports an error: look at it before anything else.",
    ESTALE: "The server of that file system has forgotten the file: it may have been restarted. Run it again.",
}
USAGE = {"Invalid", "UnknownName"}


def names_of_keys(topic: str) -> "KeyNames":
    """How the records of erasures call the keys of a topic."""
    from django_events.exporting.erasures import KeyNames
    from django_events.operating.erasing import pseudonyms

    return KeyNames(pseudonyms.secret_names(), partial(pseudonyms.digests, topic))


def add_spark(parser: CommandParser) -> None:
    """Where Spark runs, and which database is read."""
    parser.add_argument("--master", help="A cluster, like spark://host:7077; by default Spark runs in this process.")
    parser.add_argument("--remote", help="A server of Spark Connect, like sc://host:15002.")
    parser.add_argument("--database", help="The database alias; by default where events are written.")


def dsn_of(using: str) -> str:
    """The address of an alias as Spark's workers need it. It holds the password: never show it."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()} - {"client_encoding"}
    parameters = {k: v for k, v in connections[using].get_connection_params().items() if k in known}
    if role := connections[using].settings_dict["OPTIONS"].get("assume_role"):
        # Django says SET ROLE when it has connected.
        escaped = re.sub(r"([\\\s])", r"\\\1", role)
        parameters["options"] = f"{parameters.get('options') or ''} -c role={escaped}".strip()
    return make_conninfo("", **parameters)


def local(path: str, *, option: str, master: str | None, remote: str | None) -> str:
    """One spelling of a path: in full and looked at before Spark starts on this machine, as it is said elsewhere."""
    scheme, machine, rest = split(path)
    said = f"{option} is {path!r}"
    if not path.strip():
        raise usage(f"{said}, expected a folder. Is a variable not set?")
    if (machine and scheme == "file") or re.match("file:(?!/)", path, re.I):
        raise usage(f"{said}, expected a whole path behind file:, like file:///data/events.")
    if remote or not (master or "local").startswith("local") or scheme not in ("", "file"):
        if not scheme and not rest.startswith("/"):
            raise usage(f"{said}: say the whole path. Spark runs elsewhere, where this folder is another one.")
        place = spelled(path)
    else:
        place = str(_on_this_machine(rest, said))
    if not machine and place.removeprefix(f"{scheme}:") in ("", "/"):
        raise usage(f"{said}, the root of a file system: say a folder in it.")
    if found := next((character for character in place if character in PATTERN), None):
        raise usage(
            f"{option} is {place!r}, and {found!r} in it is a pattern to Spark: it would not find what it wrote. Say a "
            f"path without {' '.join(PATTERN)}"
        )
    return place


def _on_this_machine(path: str, said: str) -> Path:
    """In full; a usage error if no folder can be there."""
    try:
        folder = Path(re.sub("^//+", "/", path)).resolve()
        existing = next(p for p in (folder, *folder.parents) if p.exists() or p.is_symlink())
    except OSError as error:
        raise usage(f"{said}: {error.strerror}.") from None
    except RuntimeError:  # until Python 3.12
        raise usage(f"{said}, a symbolic link that leads back to itself. Say where the folder is.") from None
    if existing.is_symlink():
        raise usage(f"{said}, a symbolic link that leads back to itself. Say where the folder is.")
    if not existing.is_dir():
        raise usage(f"{existing} is a file: events can't be exported into it.")
    return folder


def usage(message: str) -> CommandError:
    """The error for arguments of the command line that can't be used."""
    return CommandError(message, returncode=Exit.USAGE)


@contextmanager
def explained(extra: str = "spark") -> Iterator[None]:
    """Turn what goes wrong with Spark or files into a sentence, with the exit code that says what to do about it."""
    try:
        yield
    except (Invalid, UnknownName) as error:
        raise CommandError(str(error), returncode=Exit.USAGE) from error
    except EventsError as error:
        raise CommandError(str(error), returncode=Exit.FAILED) from error
    except psycopg.OperationalError as error:
        raise CommandError(str(error), returncode=Exit.UNREACHABLE) from error
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            raise
        message = f"{error.name} is not installed. Run: pip install 'django-events-pg[{extra}]'"
        raise CommandError(message, returncode=Exit.FAILED) from error
    except KeyboardInterrupt:
        message = "Interrupted. What was finished stays; run the same again, and the rest is written."
        raise CommandError(message, returncode=Exit.FAILED) from None
    except OSError as error:
        is_of_a_connection = isinstance(error, ConnectionError)
        if is_of_a_connection and extra == "spark":
            raise _of_spark(error) from error
        # Those of requests are OSErrors.
        if type(error).__module__.partition(".")[0] in OF_TABLES or (is_of_a_connection and extra == "lake"):
            raise _of_a_table(error) from None
        if error.errno not in OF_DISKS:
            raise
        where = f" ({error.filename2 or error.filename})" if error.filename else ""
        raise CommandError(f"{OF_DISKS[error.errno]}{where}", returncode=Exit.FAILED) from error
    except Exception as error:
        module = type(error).__module__.partition(".")[0]
        if module in OF_TABLES:
            raise _of_a_table(error) from None  # whose text may have a password
        if module not in ("pyspark", "py4j", "grpc"):
            raise
        raise _of_spark(error) from error


def _of_a_table(error: Exception) -> CommandError:
    said = " ".join(str(error).split())
    for secret in SECRETS:
        said = secret.sub(rf"\g<before>{HIDDEN}", said)
    if "database is locked" in said:
        return CommandError(LOCKED, returncode=Exit.FAILED)
    if "No space left on device" in said or "disk is full" in said:
        return CommandError(FULL, returncode=Exit.FAILED)
    message = f"The table can't be read or written: {said} What was committed stays; run the same again."
    return CommandError(message, returncode=Exit.FAILED)


def _of_spark(error: Exception) -> CommandError:
    from django_events.spark.errors import kind, told

    found = kind(error)
    code = Exit.USAGE if found in USAGE else Exit.UNREACHABLE if found == "OperationalError" else Exit.FAILED
    return CommandError(told(error), returncode=code)


class ProgressLine:
    """The progress of a run: rows, rate and time left, in a line that changes, or in one now and then."""

    EVERY = 0.5

    def __init__(self, share: Callable[[], float], out: OutputWrapper, *, quiet: bool) -> None:
        self._share = share  # how much of the part is done
        self._out, self._quiet = out, quiet
        self._started = time.monotonic()
        self._done = self._total = self._part = 0
        self._name = ""
        self._over = Event()
        self._thread = Thread(target=self._watch, name="django_events progress", daemon=True)

    def __enter__(self) -> "ProgressLine":
        if not self._quiet and self._out.isatty():
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._show("\r\033[K")

    def __call__(self, done: int, total: int, part: Any) -> None:
        """A part begins, or ended."""
        self._done, self._total, self._part, self._name = done, total, len(part), part.topic
        if not self._quiet and not self._out.isatty() and done:
            self._show(f"{self._line(done)}\n")

    def _watch(self) -> None:
        while not self._over.wait(self.EVERY):
            self._show(f"\r\033[K{self._line(self._done + int(self._part * self._share()))}")
            self._out.flush()

    def _show(self, text: str) -> None:
        self._out.write(text, style_func=str, ending="")  # progress is no error, so it isn't coloured like one

    def _line(self, done: int) -> str:
        done = min(done, self._total)
        passed = time.monotonic() - self._started
        rate = done / passed if passed else 0.0
        left = f", {duration(timedelta(seconds=round((self._total - done) / rate)))} left" if rate else ""
        share = 100 * done // self._total if self._total else 100
        return f"{self._name}: {done:,} of {self._total:,} events ({share} %), {rate:,.0f}/s{left}"
