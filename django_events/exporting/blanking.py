"""Blanking rows as an erasure blanks events: payload and metadata go, the place, the type and the times stay."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# What an erasure leaves. All else is the payload, or was made of it.
LEFT = {"partition", "offset", "number", "timestamp", "type", "key", "metadata", "published_at", "day", "topic"}


def blanked(rows: pa.Table, erased: pa.Table) -> tuple[pa.Table, int]:
    """Rows in which those of `erased` (`offset`, `key`, `metadata`) have no payload, and how many of them had one.

    What was blank before keeps its metadata, as in the log, and only gets the key.
    """
    at = pc.index_in(rows["offset"], value_set=erased["offset"])
    is_erased = pc.is_valid(at)
    payload = [name for name in rows.column_names if name not in LEFT]
    has_payload = np.zeros(rows.num_rows, bool)
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
    metadata = rows["metadata"].cast(pa.string())
    columns["metadata"] = pc.if_else(is_filled, erased["metadata"].take(at), metadata).cast(rows["metadata"].type)
    return pa.table(columns, schema=rows.schema), changed
