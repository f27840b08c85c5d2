-- name: rows
-- Figures of a roll-up by larger buckets, in their order.
--
-- Literals: limit, offset. Parts: counted, begins, columns, source, order.
-- Relies on: (bucket, groups) of the table.
WITH counted AS MATERIALIZED (
    {counted}
)
SELECT extract(epoch FROM {begins})::bigint AS bucket, {columns}
FROM {source}
ORDER BY {order}
LIMIT {limit} OFFSET {offset}


-- name: count_rows
-- How many rows there are.
--
-- Parts: rows.
SELECT count(*) FROM ({rows}) AS counted_rows


-- name: counted
-- Part of `rows`: what was counted in the span, by bucket and group.
--
-- Literals: start, end (which is not in it). Identifiers: table. Parts: bin, columns, chosen, ordinals.
-- Relies on: (bucket, groups) of the table.
SELECT {bin} AS _at, {columns}
    FROM {table} AS r
    WHERE r.bucket >= {start}::timestamptz AND r.bucket < {end}::timestamptz AND {chosen}
    GROUP BY {ordinals}


-- name: counted_rows
-- Part of `rows`: only buckets and groups in which something was counted.
counted AS c


-- name: filled_rows
-- Part of `rows`: all buckets of the span, of each group in it.
--
-- Parts: bins, groups, same.
(
    SELECT bins.at AS _at, of_groups.*
    FROM {bins} AS bins (at)
    CROSS JOIN ({groups}) AS of_groups
) AS g
LEFT JOIN counted AS c ON c._at = g._at AND {same}


-- name: groups
-- Part of `rows`: the groups of the span.
--
-- Identifiers: groups.
SELECT DISTINCT {groups} FROM counted


-- name: no_groups
-- Part of `rows`: all groups together.
SELECT


-- name: is_same_group
-- Part of `rows`: whether what was counted is of a group, as far as one column says.
--
-- Identifiers: column.
c.{column} = g.{column}


-- name: is_in_group
-- Part of `rows`: whether a row of the table is of a group that was asked for.
--
-- Identifiers: column. Literals: group.
r.{column} = {group}


-- name: total_counts
-- Part of `rows`: the counts of all rows of the table that are in a bucket.
sum(r.count)::bigint AS count, sum(r.skipped)::bigint AS skipped


-- name: total_sum
-- Part of `rows`: a sum.
--
-- Identifiers: name.
sum(r.{name}) AS {name}


-- name: total_min
-- Part of `rows`: a minimum.
--
-- Identifiers: name.
min(r.{name}) AS {name}


-- name: total_max
-- Part of `rows`: a maximum.
--
-- Identifiers: name.
max(r.{name}) AS {name}


-- name: counts
-- Part of `rows`: the counts, which are 0 where there is no row.
coalesce(c.count, 0) AS count, coalesce(c.skipped, 0) AS skipped


-- name: sum_or_zero
-- Part of `rows`: a sum, which is 0 where there was no number.
--
-- Identifiers: name.
coalesce(c.{name}, 0) AS {name}


-- name: extreme
-- Part of `rows`: a minimum or a maximum, which is null where there was no number.
--
-- Identifiers: name.
c.{name}


-- name: ascending
-- Part of `rows`: an order.
--
-- Literals: ordinal.
{ordinal}


-- name: descending
-- Part of `rows`: an order, the largest first.
--
-- Literals: ordinal.
{ordinal} DESC NULLS LAST


-- name: begins
-- Part of `rows`: when a bucket begins.
--
-- Identifiers: row.
{row}._at


-- name: begins_locally
-- Part of `rows`: when a bucket begins that is named by the clock of a time zone. Where clocks are set back over its
-- beginning, it is the earlier of the two moments, from which on events are in it.
--
-- Identifiers: row. Literals: tz.
({row}._at AT TIME ZONE {tz}) - CASE
        WHEN (({row}._at AT TIME ZONE {tz}) - interval '1 hour') AT TIME ZONE {tz} = {row}._at THEN interval '1 hour'
        ELSE interval '0'
    END


-- name: bin_of_time
-- Part of `rows`: the bucket of an hour at most, counted from a midnight of the time zone.
--
-- Literals: start, every, tz.
date_bin({every}::interval, r.bucket, date_trunc('day', {start}::timestamptz, {tz}))


-- name: bin_of_clock
-- Part of `rows`: the bucket of several hours, by the clock of a time zone.
--
-- Literals: every, tz.
date_bin({every}::interval, r.bucket AT TIME ZONE {tz}, timestamp '1900-01-01')


-- name: bin_of_calendar
-- Part of `rows`: the day, week, month, quarter or year, by the calendar of a time zone.
--
-- Literals: unit, tz.
date_trunc({unit}, r.bucket AT TIME ZONE {tz})


-- name: times
-- Part of `rows`: all buckets of the span, as `bin_of_time` has them.
--
-- Literals: start, end, every, tz.
generate_series(
        date_bin({every}::interval, {start}::timestamptz, date_trunc('day', {start}::timestamptz, {tz})),
        {end}::timestamptz - interval '1 microsecond',
        {every}::interval
    )


-- name: clock
-- Part of `rows`: all buckets of the span, as `bin_of_clock` has them.
--
-- Literals: start, end, every, tz.
generate_series(
        date_bin({every}::interval, {start}::timestamptz AT TIME ZONE {tz}, timestamp '1900-01-01'),
        ({end}::timestamptz - interval '1 microsecond') AT TIME ZONE {tz},
        {every}::interval
    )


-- name: calendar
-- Part of `rows`: all buckets of the span, as `bin_of_calendar` has them.
--
-- Literals: start, end, unit, tz, step.
generate_series(
        date_trunc({unit}, {start}::timestamptz AT TIME ZONE {tz}),
        ({end}::timestamptz - interval '1 microsecond') AT TIME ZONE {tz},
        {step}::interval
    )
