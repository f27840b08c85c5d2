"""The catalogue that Iceberg's tables are in: one of SQLite in their folder, or one that PyIceberg is told of."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError

from django_events.exceptions import Invalid, Refused
from django_events.exporting.paths import read_as_data
from django_events.exporting.storage import make_folder

NAMESPACE = "events"
CATALOG = "catalog.db"
LATER = {"init_catalog_tables": "false"}  # they are made beside others that make them
MOST_RACES = 5  # in which others make what a catalogue needs: two tables, and a namespace

T = TypeVar("T")


@dataclass(frozen=True)
class Namespace:
    """Where in a catalogue the tables are; and in which folder, if the catalogue is there too."""

    catalog: Catalog
    name: str
    folder: str | None = None


def in_folder(folder: str) -> Namespace:
    """A catalogue in the folder of its tables, in SQLite: for one machine."""
    make_folder(Path(folder))
    found = read_as_data(path.name for path in Path(folder).iterdir())
    if found and CATALOG not in found:
        raise Refused(f"{folder} holds {found[0]!r}, and no catalogue that knows of it. Take an empty folder.")
    where = {"uri": f"sqlite:///{folder}/{CATALOG}", "warehouse": f"file://{folder}"}
    return Namespace(_with_tables(SqlCatalog("django_events", **where, **LATER)), NAMESPACE, folder)


def configured(name: str, namespace: str) -> Namespace:
    """A catalogue that PyIceberg is told of, by `.pyiceberg.yaml` or the environment."""
    try:
        return Namespace(_with_tables(load_catalog(name, **LATER)), namespace)
    except ValueError:  # its text has the address, and with it a password
        raise Invalid(
            f"PyIceberg can't open catalogue {name!r}. Expected its address in .pyiceberg.yaml, or as "
            f"PYICEBERG_CATALOG__{name.upper()}__URI, beginning with http://, https://, thrift://, sqlite:// or "
            "postgresql://, or with a `type` beside it."
        ) from None


def _with_tables(catalog: Catalog) -> Catalog:
    """A catalogue in a database has its own tables now. PyIceberg makes them too, when it opens one for a reader."""
    if isinstance(catalog, SqlCatalog):
        try:
            beside_others(catalog.create_tables)
        except Exception:
            catalog.close()
            raise
    return catalog


def beside_others(make: Callable[[], T]) -> T:
    """Make what PyIceberg sees isn't there. Of two that do at once the database refuses one: it is there then."""
    for _ in range(MOST_RACES):
        try:
            return make()
        except (IntegrityError, OperationalError, ProgrammingError) as error:
            if not _is_taken(error):
                raise
    return make()


def _is_taken(error: DBAPIError) -> bool:
    """Whether something is there already: a row, or a table, as PostgreSQL's clients or SQLite say it."""
    refused = type(error.orig).__name__
    return isinstance(error, IntegrityError) or refused == "DuplicateTable" or "already exists" in str(error)
