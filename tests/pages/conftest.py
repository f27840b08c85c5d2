"""Sites of pages, each with a database of its own."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from testproject.private_postgres.server import Server
from tests.pages.site import Site

MakeSite = Callable[[str], Site]


@pytest.fixture(scope="module")
def make_site(fault_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeSite]:
    """Make the site of a page; its processes end and its database goes with the module."""
    made: list[tuple[Site, str]] = []

    def make(page: str) -> Site:
        name = f"pages_{len(made)}"
        with psycopg.connect(fault_server.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {name}")
        url = urlunsplit(urlsplit(fault_server.url)._replace(path=f"/{name}"))
        site = Site(url, Path(tmp_path_factory.mktemp("site")), page)
        made.append((site, name))
        return site

    yield make
    for site, name in made:
        site.end()
        with suppress(psycopg.Error), psycopg.connect(fault_server.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
