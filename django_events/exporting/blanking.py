"""Blanking rows as an erasure blanks events: payload and metadata go, the place, the type and the times stay."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# The metadata of an erased event, whatever its time: no others have that length, and these signs at their places.
ERASED_METADATA = '{"erased": "____-__-__T__:__:__Z"}'

# What an erasure leaves. All else is the payload, or was made of it.
LEFT = {"partition", "offset", "number", "timestamp", "type", "key", "metadata", "published_at", "day", "topic"}


def blanked(rows: pa.Table, erased: pa.Table) -> tuple[pa.Table, int]:
    """Rows in which those of `erased` (`offset`, `key`, `metadata`) have no payload, and how many of them had one.

    What was erased before keeps its metadata, as in the log, and only gets the key. An event whose JSON couldn't be
    read has no payload here either, and metadata that tell of it: these go.
    """
    at = pc.index_in(rows["offset"], value_set=erased["offset"])
    is_erased = pc.is_valid(at)
    payload = [name for name in rows.column_names if name not in LEFT]
    metadata = rows["metadata"].cast(pa.string())
    has_payload = ~is_of_erased(metadata)
    for name in payload:
        has_payload |= pc.is_valid(rows[name]).to_numpy(zero_copy_only=False)
    is_filled = pc.and_(is_erased, pa.array(has_payload))
    new_keys = erased["key"].take(at)
    old_keys = rows["key"].cast(pa.string())
    is_renamed = pc.and_(is_erased, pc.fill_null(pc.not_equal(new_keys, old_keys), False))
    changed = int(pc.sum(pc.or_(is_filled, is_renamed)).as_py() or 0)
    if not changed:
        return rows, 0
    columns = {name: rows[name] for name in rows.column_names}
    for name in payload:
        columns[name] = pc.if_else(is_filled, pa.scalar(None, rows[name].type), rows[name])
    columns["key"] = pc.if_else(is_renamed, new_keys, old_keys).cast(rows["key"].type)
    columns["metadata"] = pc.if_else(is_filled, erased["metadata"].take(at), metadata).cast(rows["metadata"].type)
    return pa.table(columns, schema=rows.schema), changed


def is_of_erased(metadata: "pa.ChunkedArray | pa.Array") -> "np.typing.NDArray[np.bool_]":
    """Of metadata as text those that an erasure has left."""
    found = pc.fill_null(pc.match_like(metadata, ERASED_METADATA), False)
    return np.asarray(found.to_numpy(zero_copy_only=False), bool)
