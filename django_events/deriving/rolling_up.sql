-- name: fold
-- Fold the events of a range of ids into the table of a roll-up that has groups: one row for each bucket and group.
--
-- Groups that were never seen are put down as rows of the bucket '-infinity', in the order of their first events, until
-- there are as many as the roll-up may have; those beyond are one group together. Each group of the range is looked up by
-- itself: an EXISTS would become a join, which reads all that are known for a single event. Rows are written in one order, so that
-- two sessions never wait for each other in a circle.
-- Literals: most_groups. Identifiers: table, columns, keys. Parts: read, aggregates, grouped_by, groups, known, beyond (the conditions
-- that a group is among them), placed, totals, ordinals, updates, seen.
-- Answers with how many events are in the range, how many of them are for the roll-up, when the first of these was logged,
-- and whether there was a group beyond the limit.
-- Relies on: the primary key of the log, (bucket, groups) of the table.
WITH grouped AS MATERIALIZED (
    SELECT {aggregates}
    FROM ({read}) AS read
    GROUP BY {grouped_by}
),
unknown AS MATERIALIZED (
    SELECT g.*
    FROM (SELECT {groups}, min(g.first_id) AS first_id FROM grouped AS g GROUP BY {groups}) AS g
    WHERE (SELECT true FROM {table} AS other WHERE other.bucket = '-infinity' AND {known} LIMIT 1) IS NULL
),
ranked AS MATERIALIZED (
    SELECT
        u.*,
        row_number() OVER (ORDER BY u.first_id)
            > {most_groups} - (SELECT count(*) FROM {table} AS other WHERE other.bucket = '-infinity') AS is_beyond
    FROM unknown AS u
),
made_known AS (
    INSERT INTO {table} (bucket, {keys}, count, skipped)
    SELECT '-infinity', {groups}, 0, 0
    FROM ranked AS g
    WHERE NOT g.is_beyond
),
folded AS (
    INSERT INTO {table} AS t (bucket, {keys}, {columns})
    SELECT g.bucket, {placed}, {totals}
    FROM grouped AS g
    LEFT JOIN ranked AS other ON other.is_beyond AND {beyond}
    GROUP BY {ordinals}
    ORDER BY {ordinals}
    ON CONFLICT (bucket, {keys}) DO UPDATE SET {updates}
)
SELECT
    ({seen}) AS seen,
    (SELECT coalesce(sum(g.events), 0)::bigint FROM grouped AS g) AS matching,
    (SELECT min(g.first_at) FROM grouped AS g) AS first_at,
    EXISTS (SELECT FROM ranked AS g WHERE g.is_beyond) AS is_full


-- name: fold_ungrouped
-- As `fold`, for a roll-up without groups: one row for each bucket.
--
-- Identifiers: table, columns. Parts: read, aggregates, totals, updates, seen.
-- Answers as `fold`.
-- Relies on: the primary key of the log, (bucket) of the table.
WITH grouped AS MATERIALIZED (
    SELECT {aggregates}
    FROM ({read}) AS read
    GROUP BY 1
),
folded AS (
    INSERT INTO {table} AS t (bucket, {columns})
    SELECT g.bucket, {totals}
    FROM grouped AS g
    GROUP BY g.bucket
    ORDER BY g.bucket
    ON CONFLICT (bucket) DO UPDATE SET {updates}
)
SELECT
    ({seen}) AS seen,
    (SELECT coalesce(sum(g.events), 0)::bigint FROM grouped AS g) AS matching,
    (SELECT min(g.first_at) FROM grouped AS g) AS first_at,
    false AS is_full


-- name: read
-- Part of `fold`: the events of a range, each with its time, its groups and its numbers; null where a value is none.
--
-- Each value is looked for once: the planner would repeat what isn't behind an OFFSET.
-- Literals: topic_id, after, upper. Identifiers: log. Parts: match, texts (what is looked for), columns (what is made of them).
-- Relies on: the primary key of the log.
SELECT {columns}
FROM (
    SELECT {texts}
    FROM {log} AS e
    WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper} AND {match}
    OFFSET 0
) AS found
OFFSET 0


-- name: text_of_path
-- Part of `read`: the first thing at a jsonpath in the value of an event `e`, as text; null where there is none, or null.
--
-- Literals: path. Identifiers: as_name.
jsonb_path_query_first(e.value, {path}::jsonpath, jsonb_build_object(), true) #>> ARRAY[]::text[] AS {as_name}


-- name: text_of_keys
-- Part of `read`: as `text_of_path`, for a path of keys alone, which is quicker. Where an array is on the way, only a
-- jsonpath looks into it.
--
-- Literals: keys, path. Identifiers: as_name.
coalesce(
    e.value #>> {keys}::text[],
    jsonb_path_query_first(e.value, {path}::jsonpath, jsonb_build_object(), true) #>> ARRAY[]::text[]
) AS {as_name}


-- name: text_of_column
-- Part of `read`: a column of an event `e`.
--
-- Identifiers: column, as_name.
e.{column} AS {as_name}


-- name: text_before
-- Part of `read`: what the key of an event `e` begins with, up to a text; all of it where the text is not in it.
--
-- Literals: until. Identifiers: as_name.
split_part(e.key, {until}, 1) AS {as_name}


-- name: group_of_text
-- Part of `read`: a group. Where there is none, it is the empty text.
--
-- Identifiers: as_name. Literals: longest.
left(coalesce(found.{as_name}, ''), {longest}) COLLATE "C" AS {as_name}


-- name: number_of_text
-- Part of `read`: a number, from a JSON number or from a text that is one; null for anything else.
--
-- Identifiers: as_name. Literals: number (a regular expression), longest.
CASE WHEN octet_length(found.{as_name}) <= {longest} AND found.{as_name} ~ {number} THEN found.{as_name}::numeric END AS {as_name}


-- name: time_of_text
-- Part of `read`: a time, from a text as ISO 8601 has it; null for anything else. Without an offset it is UTC.
--
-- Literals: time, offset (regular expressions).
CASE
        WHEN found.at ~ {time} THEN (found.at || CASE WHEN found.at ~ {offset} THEN '' ELSE ' UTC' END)::timestamptz
    END AS at


-- name: time_of_event
-- Part of `read`: the time when an event was published or logged.
--
-- Identifiers: column.
found.{column} AS at


-- name: bucket
-- Part of `fold`: the bucket that the time of an event is in. Days begin at midnight of UTC, and weeks on Monday.
--
-- Literals: every (an interval).
date_bin({every}::interval, read.at, '1900-01-01 00:00:00+00') AS bucket


-- name: bucket_of_untimed
-- Part of `fold`: as `bucket`, for a time in the value: an event without one is put down when it was published.
--
-- Literals: every (an interval).
date_bin({every}::interval, coalesce(read.at, read.published_at), '1900-01-01 00:00:00+00') AS bucket


-- name: is_timed
-- Part of `fold`: whether an event has a time.
read.at IS NOT NULL


-- name: is_number
-- Part of `fold`: whether an event has a number there.
--
-- Identifiers: number.
read.{number} IS NOT NULL


-- name: counts
-- Part of `fold`: how many events are in a bucket and group, those that are counted, and those with a value that is none.
--
-- Parts: is_timed, is_complete.
min(read.id) AS first_id,
        min(read.logged_at) AS first_at,
        count(*) AS events,
        count(*) FILTER (WHERE {is_timed}) AS counted,
        count(*) FILTER (WHERE NOT ({is_complete})) AS skipped


-- name: sum_of
-- Part of `fold`: the sum of the numbers of a bucket and group.
--
-- Identifiers: number, as_name. Parts: is_timed.
sum(read.{number}) FILTER (WHERE {is_timed}) AS {as_name}


-- name: min_of
-- Part of `fold`: the smallest of the numbers of a bucket and group.
--
-- Identifiers: number, as_name. Parts: is_timed.
min(read.{number}) FILTER (WHERE {is_timed}) AS {as_name}


-- name: max_of
-- Part of `fold`: the largest of the numbers of a bucket and group.
--
-- Identifiers: number, as_name. Parts: is_timed.
max(read.{number}) FILTER (WHERE {is_timed}) AS {as_name}


-- name: same_group
-- Part of `fold`: whether two rows are of the same group, as far as one column says.
--
-- Identifiers: group, column.
other.{column} = g.{group}


-- name: place
-- Part of `fold`: the group that events are counted in, which is another one beyond the limit.
--
-- Identifiers: group. Literals: beyond.
CASE WHEN other.is_beyond THEN {beyond} ELSE g.{group} END


-- name: total_counts
-- Part of `fold`: the counts of a row, of one group or of those beyond the limit.
sum(g.counted)::bigint, sum(g.skipped)::bigint


-- name: total_sum
-- Part of `fold`: a sum of a row.
--
-- Identifiers: name.
sum(g.{name})


-- name: total_min
-- Part of `fold`: a minimum of a row.
--
-- Identifiers: name.
min(g.{name})


-- name: total_max
-- Part of `fold`: a maximum of a row.
--
-- Identifiers: name.
max(g.{name})


-- name: add_counts
-- Part of `fold`: add to the counts of a row that is there.
count = t.count + excluded.count, skipped = t.skipped + excluded.skipped


-- name: add_sum
-- Part of `fold`: add to a sum of a row that is there; null while no number came.
--
-- Identifiers: name.
{name} = coalesce(t.{name} + excluded.{name}, t.{name}, excluded.{name})


-- name: add_min
-- Part of `fold`: lower a minimum of a row that is there.
--
-- Identifiers: name.
{name} = least(t.{name}, excluded.{name})


-- name: add_max
-- Part of `fold`: raise a maximum of a row that is there.
--
-- Identifiers: name.
{name} = greatest(t.{name}, excluded.{name})


-- name: seen_by_groups
-- Part of `fold`: how many events are in the range, all of which are for the roll-up.
SELECT coalesce(sum(g.events), 0)::bigint FROM grouped AS g


-- name: seen_in_log
-- Part of `fold`: how many events are in the range, where a filter leaves some out.
--
-- Literals: topic_id, after, upper. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT count(*) FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper}


-- name: present
-- How many events of a range of ids are in the log, how many of them are behind what retention and compaction may have
-- removed, and up to which id that is.
--
-- Literals: topic_id, after, upper. Identifiers: log.
-- Relies on: the primary keys of the log and of django_events_topichead.
SELECT count(e.id), count(e.id) FILTER (WHERE e.id > h.absent_until), max(h.absent_until)
FROM (
    SELECT greatest(id_floor, compacted_until) AS absent_until FROM django_events_topichead WHERE topic_id = {topic_id}
) AS h
LEFT JOIN {log} AS e ON e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper}


-- name: first_missing
-- The first id of a range that is not in the log.
--
-- Literals: topic_id, after, upper. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT expected.id
FROM generate_series({after}::bigint + 1, {upper}) AS expected (id)
WHERE NOT EXISTS (SELECT FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id = expected.id AND e.id > {after} AND e.id <= {upper})
ORDER BY expected.id
LIMIT 1


-- name: lock
-- The row of a roll-up, locked until the transaction ends: one session at a time folds into its table.
--
-- Parameters: name. Answers with its id, what its table is made by, how many groups it may have, and since when it has as many.
-- Relies on: django_events_rollup (name).
SELECT r.id, r.made_by, r.most_groups, r.full_since FROM django_events_rollup AS r WHERE r.name = %(name)s FOR UPDATE


-- name: note_full
-- Put down since when a roll-up counts further groups together.
--
-- Parameters: name.
-- Relies on: django_events_rollup (name).
UPDATE django_events_rollup SET full_since = clock_timestamp() WHERE name = %(name)s AND full_since IS NULL
RETURNING full_since


-- name: note_left_out
-- Count an event that could not be folded, with the error.
--
-- Parameters: name, error.
-- Relies on: django_events_rollup (name).
UPDATE django_events_rollup SET left_out = left_out + 1, left_out_at = clock_timestamp(), error = %(error)s
WHERE name = %(name)s
RETURNING left_out
