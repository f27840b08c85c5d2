"""In which shard a key is, and that an event is published there and nowhere else.

    alias = shard_of("customer-7")
    with transaction.atomic(using=alias):
        orders.publish(…, shard_by="customer-7", using=alias)

A shard is a database with our tables. The map says which shards there are; every one of them has a row with it. By
rendezvous hashing a new shard takes its share from all the others, and no other key moves.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from hashlib import blake2b
from typing import Any

from django.db import connections, transaction

from django_events import sql
from django_events.declarations import DeclaredTopic
from django_events.exceptions import InvalidEvent, NotReady, WrongShard
from django_events.models.buffer import writable
from django_events.publishing.storing import explained

SQL = sql.beside(__name__)


def shard_of(key: str, *, using: str | None = None) -> str:
    """The shard that a key belongs to, by the map in the database `using`; while the map changes, by the new one.

    It locks nothing, so it may be another one a moment later: `publish(…, shard_by=key)` is what decides.
    """
    using = writable(using)
    check_key(key)
    rows = sql.fetch(using, SQL.shard_map)
    if not rows:
        raise NotReady(
            f"The database {using!r} has no map of shards. Ask another one, with using=, or make the map: "
            f"manage.py events shards add NAME --execute"
        )
    shards, following = _decoded(rows[0])
    return owner(key, following or shards)


def owner(key: str, shards: Collection[str]) -> str:
    """The shard with the highest hash for a key: the same in each process, whatever the order of the shards."""
    return max(shards, key=lambda shard: (_weight(key, shard), shard))


def _decoded(row: tuple[Any, ...]) -> tuple[list[str], list[str] | None]:
    *_, shards, following = row
    return json.loads(shards), following and json.loads(following)


def _weight(key: str, shard: str) -> bytes:
    """A name can't have a zero byte, so no two pairs are hashed alike."""
    return blake2b(f"{shard}\0{key}".encode(), digest_size=8).digest()


def check_key(key: object) -> None:
    """InvalidEvent if this can't be the key of a shard."""
    if not isinstance(key, str):
        raise InvalidEvent(f"shard_by is {key!r:.60}, expected a text, like str(customer.pk).")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidEvent(f"shard_by is {key!a:.60}, which is no text in UTF-8.") from None


@contextmanager
def placed(using: str, topic: DeclaredTopic, keys: Iterable[str]) -> Iterator[None]:
    """A transaction, or the caller's, in which these keys stay in this database until it ends; WrongShard if they are
    in another one.
    """
    keys = sorted(set(keys))
    with nullcontext() if connections[using].in_atomic_block else transaction.atomic(using):
        with explained(using, topic):
            rows = sql.fetch(using, SQL.keep_map)
        _refuse_elsewhere(using, keys, rows)
        yield


def _refuse_elsewhere(using: str, keys: Sequence[str], rows: sql.Rows) -> None:
    again = "Nothing was published. Ask shard_of() for the shard, and publish in a transaction there."
    if not rows:
        raise WrongShard(
            f"The database {using!r} is no shard, so shard_by can't be used there; if it is being added, it is one in "
            f"a moment. {again}"
        )
    name, version = rows[0][:2]
    shards, following = _decoded(rows[0])
    for key in keys:
        before = owner(key, shards) if shards else None
        after = owner(key, following) if following else before
        if before == after == name:
            continue
        if before == after:
            raise WrongShard(
                f"Key {key!r:.100} belongs to the shard {after!r}, by version {version} of the map, and this is "
                f"{name!r}. {again}",
                shard=after,
            )
        raise WrongShard(
            f"Key {key!r:.100} moves to the shard {after!r} now, by version {version} of the map, which is being "
            f"changed: in a moment it is accepted there. {again} If this goes on, the change was interrupted: "
            "manage.py events shards says how it is finished.",
            shard=after,
        )
