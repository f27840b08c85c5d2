"""Servers of several versions, and PostgreSQL's own programs to take a database from one to another."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from testproject.private_postgres.binaries import available_binaries, major_version
from testproject.private_postgres.server import Server

MakeServer = Callable[..., Server]

# What a database consists of, under names that are the same wherever it is.
SCHEMA = """
SELECT 'relation', c.oid::regclass::text, concat_ws(' ', c.relkind, pg_get_userbyid(c.relowner),
    (SELECT string_agg(concat(pg_get_userbyid(grantee), ' ', privilege_type), ',' ORDER BY privilege_type)
        FROM aclexplode(c.relacl) WHERE grantee <> c.relowner), c.reloptions::text, toast.reloptions::text,
    pg_get_expr(c.relpartbound, c.oid), obj_description(c.oid, 'pg_class'))
FROM pg_class AS c LEFT JOIN pg_class AS toast ON toast.oid = c.reltoastrelid
WHERE c.relnamespace = 'public'::regnamespace
UNION ALL
SELECT 'column', a.attrelid::regclass || '.' || a.attname,
    concat_ws(' ', a.atttypid::regtype, a.attnotnull, a.attidentity, pg_get_expr(d.adbin, d.adrelid))
FROM pg_attribute AS a
JOIN pg_class AS c ON c.oid = a.attrelid AND c.relnamespace = 'public'::regnamespace
LEFT JOIN pg_attrdef AS d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
WHERE a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n'  -- PostgreSQL 18 lists NOT NULL here
UNION ALL
SELECT 'index', indexrelid::regclass::text, pg_get_indexdef(indexrelid)
FROM pg_index JOIN pg_class AS c ON c.oid = indexrelid AND c.relnamespace = 'public'::regnamespace
UNION ALL
SELECT 'trigger', tgrelid::regclass || '.' || tgname, concat_ws(' ', tgenabled, pg_get_triggerdef(oid))
FROM pg_trigger WHERE NOT tgisinternal
UNION ALL
SELECT 'function', oid::regprocedure::text, concat_ws(' ', pg_get_userbyid(proowner), proacl::text, md5(prosrc))
FROM pg_proc WHERE pronamespace = 'public'::regnamespace
ORDER BY 1, 2, 3
"""


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    """Start servers of their own for one test; they are gone when it ends."""
    with ExitStack() as servers:

        def make(binaries: Path | None = None, **options: str) -> Server:
            return servers.enter_context(Server(binaries=binaries, options=options))

        yield make


def newest() -> Path:
    """The programs of the newest PostgreSQL that is there."""
    return max(available_binaries(), key=major_version)


def oldest() -> Path:
    """The programs of the oldest one; a test that goes from one version to another is skipped if there is no other."""
    found = min(available_binaries(), key=major_version)
    if major_version(found) == major_version(newest()):
        pytest.skip(f"PostgreSQL {major_version(found)} is the only version here")
    return found


def previous() -> Path:
    """The programs of the version before the newest one; skipped like `oldest`."""
    oldest()
    return sorted(available_binaries(), key=major_version)[-2]


def program(
    binaries: Path, name: str, *arguments: str | Path, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of PostgreSQL's programs to its end; it must work."""
    done = subprocess.run(
        [binaries / name, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **(variables or {})},
    )
    assert done.returncode == 0, done.stderr
    return done


def schema_of(url: str) -> list[tuple[str, str, str]]:
    with psycopg.connect(url) as connection:
        return connection.execute(SCHEMA).fetchall()  # type: ignore[return-value]
