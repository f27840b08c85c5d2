"""The database that a command works on, and what goes wrong there as a message with an exit code."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, InterfaceError, connections

from django_events import sql
from django_events.exceptions import EventsError, UnknownName, rights_missing, rows_hidden
from django_events.models.buffer import writable
from django_events.models.databases import databases
from django_events.sql.search_path import tables_missing
from django_events.workers.loop import Exit, Unreachable


def all_named(named_ones: str | Sequence[str] | None, *, all_databases: bool = False) -> list[str]:
    """The aliases that --database names, each once, or with --all-databases all that hold topics."""
    asked = [named_ones] if isinstance(named_ones, str) else list(named_ones or ())
    if all_databases and asked:
        raise CommandError("Name databases, or say --all-databases, not both.", returncode=Exit.USAGE)
    if all_databases:
        return databases()
    return [named(one) for one in dict.fromkeys(asked)] or [named(None)]


def named(database: str | None) -> str:
    """The alias that --database names; by default the one where events are written."""
    using = writable(database)
    if using not in connections:
        known = ", ".join(connections)
        raise CommandError(f"There is no database {using!r}. Known are: {known}.", returncode=Exit.USAGE)
    if connections[using].vendor != "postgresql":
        raise CommandError(
            f"The database {using!r} is {connections[using].vendor}; events need PostgreSQL.", returncode=Exit.USAGE
        )
    return using


READ_ONLY = "is a standby, or read-only by default: point the alias at the primary, or promote it."


def add_databases(parser: CommandParser, *, several: str = "") -> None:
    """The options that say where: --database, which may be repeated, and --all-databases."""
    parser.add_argument(
        "--database",
        action="append",
        metavar="ALIAS",
        help=f"The database alias; by default where events are written.{several}",
    )
    parser.add_argument("--all-databases", action="store_true", help="All databases that hold topics.")


@contextmanager
def explained(using: str) -> Iterator[None]:
    """Turn errors that are to be expected into messages, with the exit code that says what to do about them."""
    try:
        yield
    except Unreachable as error:
        raise _unreachable(using, error) from error
    except (DatabaseError, InterfaceError) as error:
        match sql.kind_of(error):
            case sql.ErrorKind.LOST:
                raise _unreachable(using, error) from error
            case sql.ErrorKind.TABLE_GONE:
                said = tables_missing(using)
            case sql.ErrorKind.ROWS_HIDDEN:
                said = rows_hidden(connections[using].settings_dict["USER"], error)
            case sql.ErrorKind.FORBIDDEN:
                said = rights_missing(connections[using].settings_dict["USER"], error)
            case sql.ErrorKind.READ_ONLY:
                said = f"It {READ_ONLY} {sql.said(error)}"
            case _:
                said = sql.said(error)
        raise CommandError(f"Working on {using!r} failed. {said}", returncode=Exit.FAILED) from error
    except UnknownName as error:
        raise CommandError(str(error), returncode=Exit.USAGE) from error
    except EventsError as error:
        raise CommandError(str(error), returncode=Exit.FAILED) from error


def explained_if_alone(aliases: Sequence[str]) -> AbstractContextManager[None]:
    """`explained` for the only database: of several, each has errors of its own, and none ends the work of others."""
    return explained(aliases[0]) if len(aliases) == 1 else nullcontext()


def worst(codes: Iterable[int]) -> int:
    """The exit code for several databases: that of a failure, otherwise that of one which is out of reach."""
    return max(codes, key=_badness, default=Exit.DONE)


def _badness(code: int) -> int:
    return 0 if code == Exit.DONE else 1 if code == Exit.UNREACHABLE else 2


def _unreachable(using: str, error: Exception) -> CommandError:
    said = sql.said(error)
    return CommandError(f"The database {using!r} can't be reached. {said}", returncode=Exit.UNREACHABLE)
