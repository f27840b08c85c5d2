-- name: as_text_if_readable
-- Part of a SELECT: a JSON column as text; null where making the text could take gigabytes.
--
-- A number of 131,072 digits before the point and 16,383 behind it is stored in a dozen bytes. No program reads an
-- integer of more than 4,300 digits, so a value with one is not made into text. Looking for one takes twice as long as
-- making the text does, so it is left out where the value is small, unpacked; and where it isn't 64 times as large, so
-- are the digits behind the point. What is left out can make 10,000 bytes of text of one, and 1,400.
-- The division is where the digits show: 1 with that many of them, divided by 3 and multiplied by it, is as far from 1
-- as the last one, up to the thousandth.
-- A jsonpath that looks everywhere goes as deep as the value does, and what is 12,000 deep is too deep for the server's
-- stack: that would fail the whole statement, so 5,000 is the end. A list in a list takes 8 bytes at least.
-- Literals: small (bytes), too_deep (a jsonpath to what is deeper). Identifiers: json (the column).
CASE
    WHEN pg_column_size({json}) <= {small} AND pg_column_compression({json}) IS NULL
        THEN {json}::text
    WHEN {json} IS NULL THEN NULL
    ELSE (
        SELECT
            CASE
                WHEN pg_column_size(unpacked.value) <= {small} THEN unpacked.value::text
                WHEN pg_column_size(unpacked.value) > 40000 AND jsonb_path_exists(unpacked.value, {too_deep}) THEN NULL
                WHEN jsonb_path_exists(unpacked.value, 'strict $.** ? (@.abs() >= 1e4300)') THEN NULL
                WHEN pg_column_size(unpacked.value) > 64 * {small}
                    AND jsonb_path_exists(unpacked.value, 'strict $.** ? (1 - (@ * 0 + 1) / 3 * 3 < 1e-900)')
                    THEN NULL
                ELSE unpacked.value::text
            END
        FROM (SELECT jsonb_path_query_first({json}, 'strict $') AS value OFFSET 0) AS unpacked
    )
END


-- name: batch_end
-- The last event of the batch that a worker read behind a position, without reading what is in it.
--
-- Literals: after, upper, most. Identifiers: log. Parts: events (which events `e` are in the partition), match.
-- Relies on: (partition, id) or the primary key of the log.
SELECT max(batch.id)
FROM (
    SELECT e.id
    FROM {log} AS e
    WHERE {events} AND e.id > {after} AND e.id <= {upper} AND {match}
    ORDER BY e.id
    LIMIT {most}
) AS batch


-- name: bounds
-- The first and the last id of a topic's log, null where it is empty, and the id that it had reached then.
--
-- In one statement: read before the log, the floor would be too low where all segments are dropped in between.
-- Planning min(id) of a log with segments takes much longer than planning its first row.
-- Answers also with the id up to which the log is compacted. Literals: topic_id. Identifiers: log.
-- Relies on: the primary keys of the log and of django_events_topichead.
SELECT
    {topic_id} AS topic_id,
    (SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id LIMIT 1) AS first_id,
    (SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id DESC LIMIT 1) AS last_id,
    h.id_floor,
    h.compacted_until
FROM (VALUES (1)) AS one (row)
LEFT JOIN django_events_topichead AS h ON h.topic_id = {topic_id}


-- name: clock
-- The database's clock.
--
-- Relies on: nothing.
SELECT clock_timestamp()


-- name: count_behind
-- How many events a topic's log has behind an id, up to another one.
--
-- Literals: topic_id, after, upper. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT count(*) FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper}


-- name: end_holder
-- End the transaction of a worker that lost its lease, so that its locks go too.
--
-- Answers with a row for each that was found, and whether it could be told to end.
-- Parameters: token (the lost one).
-- Relies on: nothing but the lock table. `hold` took the lock; a session waits for its end by `wait_for_holder`
-- has it in another mode.
SELECT pid, pg_terminate_backend(pid)
FROM pg_locks
WHERE locktype = 'advisory'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid::bigint = %(token)s::bigint >> 32
    AND objid::bigint = %(token)s::bigint & 4294967295
    AND objsubid = 1
    AND mode = 'ExclusiveLock'
    AND granted
    AND pid <> pg_backend_pid()


-- name: ends_of_partitions
-- The last number of each partition of a topic that has events.
--
-- Only for topics of several partitions. As in `numbers`, the topic isn't named in the condition: the planner
-- would rather walk back through the primary key, which is far where a partition is quiet.
-- Literals: topic_id, partitions. Identifiers: log.
-- Relies on: (partition, id) of the log.
SELECT {topic_id} AS topic_id, part.partition, last.number AS ends_at
FROM generate_series(0, {partitions} - 1) AS part (partition)
CROSS JOIN LATERAL (
    SELECT e.number
    FROM {log} AS e
    WHERE e.partition = part.partition
    ORDER BY e.id DESC
    LIMIT 1
) AS last


-- name: extent_of_segment
-- How large a segment is on disk, its indexes included, and when its first and its last event were logged.
--
-- Identifiers: segment. Literals: name.
-- Relies on: the primary key of the segment.
SELECT
    {name} AS name,
    pg_total_relation_size({name}::regclass),
    (SELECT e.logged_at FROM {segment} AS e ORDER BY e.topic_id, e.id LIMIT 1),
    (SELECT e.logged_at FROM {segment} AS e ORDER BY e.topic_id DESC, e.id DESC LIMIT 1)


-- name: first_id
-- The first id that a topic's log still has.
--
-- Literals: topic_id. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT (SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id LIMIT 1)


-- name: first_in_hand
-- Part of a SELECT beside a lease `l` of deliveries: the first of them that its worker has in hand, and since when.
--
-- Each is looked up by itself: see `deliveries_of_token`.
-- Relies on: the primary key of django_events_delivery.
SELECT min(d.event_id) AS event_id, min(d.last_at) AS since
FROM jsonb_array_elements_text(l.event_ids) AS held (id)
CROSS JOIN LATERAL (
    SELECT d.event_id, d.last_at
    FROM django_events_delivery AS d
    WHERE d.consumer_id = l.consumer_id AND d.event_id = held.id::bigint AND d.token = l.token
    LIMIT 1
) AS d


-- name: event_of_position
-- Part of a SELECT: which event a leased position `p` of a stream of consumer `c` and topic `t` is at, null if that isn't known.
--
-- The next id behind the position is of another partition where several are read by themselves. While a dead letter is to be
-- handled again, the worker may have that in hand.
-- Relies on: django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL.
CASE
    WHEN EXISTS (SELECT FROM django_events_deadletter AS d WHERE d.consumer_id = c.id AND d.redrive_at IS NOT NULL) THEN NULL
    WHEN p.attempted IS NOT NULL THEN p.attempted
    WHEN p.partition = -1 OR (t.partitions = 1 AND p.barrier IS NULL) THEN p.position + 1
END


-- name: holds
-- Whether a jsonpath predicate holds for a value, as it would in a filter.
--
-- Parameters: value (JSON as text), where.
-- Relies on: nothing.
SELECT coalesce(%(value)s::jsonb @@ %(where)s::jsonpath, false)


-- name: leases
-- Who has a lease of these consumers, and whether it is still good.
--
-- Parameters: consumer_ids, partition (null for all).
-- Relies on: django_events_position (consumer_id, partition), django_events_deliverylease (consumer_id).
SELECT token, holder, leased_until > clock_timestamp() AS leased
FROM django_events_position
WHERE consumer_id = ANY(%(consumer_ids)s::int[])
    AND token IS NOT NULL
    AND (%(partition)s::int IS NULL OR partition = %(partition)s::int)
UNION ALL
SELECT token, holder, leased_until > clock_timestamp()
FROM django_events_deliverylease
WHERE consumer_id = ANY(%(consumer_ids)s::int[]) AND coalesce(%(partition)s::int, -1) = -1
ORDER BY token


-- name: last_readable
-- The last id of a topic that can be read behind a position: nothing can appear at or below it any more.
--
-- The position is a literal, so that the planner opens no older segment.
-- Literals: topic_id, after. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id > {after} ORDER BY e.id DESC LIMIT 1


-- name: in_its_partition
-- Part of a condition on an event `e` of a topic's own log: it is of the partition of a position `p`.
--
-- Relies on: (partition, id) of the log.
e.partition = p.partition


-- name: next_events
-- The next events of a partition after an id, in order: a part of `bounded`.
--
-- Bounds are literals, so that the planner opens only the segments between them.
-- Literals: after, upper, most. Identifiers: log. Parts: events (which events `e` are in the partition), match.
-- Relies on: (partition, id) or the primary key of the log.
SELECT {event_columns of e}
FROM {log} AS e
WHERE {events} AND e.id > {after} AND e.id <= {upper} AND {match}
ORDER BY e.id
LIMIT {most}


-- name: in_partition
-- Part of a condition on an event `e` of a topic's own log: it is of one partition.
--
-- Literals: partition.
-- Relies on: (partition, id) of the log.
e.partition = {partition}


-- name: in_topic
-- Part of a condition on an event `e`: it is of one topic, for a reader of all its partitions.
--
-- Literals: topic_id.
-- Relies on: the primary key of the log.
e.topic_id = {topic_id}


-- name: last_id
-- The last id of a topic's log.
--
-- Identifiers: log; topic_id and floor are literals.
-- Relies on: the primary key of the log.
SELECT coalesce((SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id DESC LIMIT 1), {floor})


-- name: lock_head
-- Become the one writer of a topic for this transaction, waiting for the one before.
--
-- Parameters: topic_id.
-- Relies on: the primary key of django_events_topichead.
SELECT topic_id FROM django_events_topichead WHERE topic_id = %(topic_id)s FOR UPDATE


-- name: lock_heads
-- Become the one writer of these topics for this transaction, leaving out those that have one.
--
-- Parameters: topic_ids.
-- Relies on: the primary key of django_events_topichead.
SELECT topic_id
FROM django_events_topichead
WHERE topic_id = ANY(%(topic_ids)s::int[])
ORDER BY topic_id
FOR UPDATE SKIP LOCKED


-- name: lock_positions
-- Keep workers from claiming these positions until the transaction ends, and see who has a lease.
--
-- Parameters: consumer_ids, partition (null for all).
-- Answers with the token, the holder, and whether the lease is still good.
-- Relies on: django_events_position (consumer_id, partition).
SELECT token, holder, coalesce(leased_until > clock_timestamp(), false) AS leased
FROM django_events_position
WHERE consumer_id = ANY(%(consumer_ids)s::int[])
    AND (%(partition)s::int IS NULL OR partition = %(partition)s::int)
ORDER BY consumer_id, partition
FOR UPDATE


-- name: logged_before
-- Whether an event was logged before a moment, and its id. The database compares: a site without time zones reads other
-- times.
--
-- The id is a literal, so that the planner opens one segment.
-- Parameters: moment. Literals: topic_id, id. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT e.logged_at < %(moment)s, e.id FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id = {id}


-- name: meets
-- Part of a SELECT: whether an event `e` is for a consumer `c`, by its filter as it is registered.
--
-- Relies on: nothing but the two rows.
(
    (
        c.types IS NULL
        OR c.types @> to_jsonb(e.type)
        OR EXISTS (SELECT FROM jsonb_array_elements_text(c.type_expressions) AS x WHERE e.type ~ x)
    )
    AND (
        c.keys IS NULL
        OR coalesce(c.keys @> to_jsonb(e.key), false)
        OR EXISTS (SELECT FROM jsonb_array_elements_text(c.key_expressions) AS x WHERE e.key ~ x)
    )
    AND (
        c."where" IS NULL
        OR coalesce(jsonb_path_match(e.value, c."where"::jsonpath, coalesce(c.vars, jsonb_build_object()), true), false)
    )
    AND (
        c.metadata IS NULL
        OR coalesce(jsonb_path_match(e.metadata, c.metadata::jsonpath, coalesce(c.vars, jsonb_build_object()), true), false)
    )
)


-- name: meets_unknown
-- Part of a SELECT: in the place of `meets`, where the predicate of some consumer fails on the event: null for all with a predicate.
--
-- Relies on: nothing but the two rows.
(
    (
        c.types IS NULL
        OR c.types @> to_jsonb(e.type)
        OR EXISTS (SELECT FROM jsonb_array_elements_text(c.type_expressions) AS x WHERE e.type ~ x)
    )
    AND (
        c.keys IS NULL
        OR coalesce(c.keys @> to_jsonb(e.key), false)
        OR EXISTS (SELECT FROM jsonb_array_elements_text(c.key_expressions) AS x WHERE e.key ~ x)
    )
    AND ((c."where" IS NULL AND c.metadata IS NULL) OR NULL)
)


-- name: next_logged_before
-- As `logged_before`, for the next event behind an id that is not there: it was removed.
--
-- The id is a literal, so that the planner opens no older segment.
-- Parameters: moment. Literals: topic_id, id. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT e.logged_at < %(moment)s, e.id
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id > {id}
ORDER BY e.id
LIMIT 1


-- name: notify
-- Tell the sessions that listen to the log that something happened, when this transaction commits.
--
-- Parameters: channel, payload (see LOG_CHANNEL).
SELECT pg_notify(%(channel)s, %(payload)s)


-- name: number_at
-- The number of the last event of a partition between two ids, if there is one.
--
-- Literals: partition, after, upper. Identifiers: log.
-- Relies on: (partition, id) of the log.
SELECT e.number
FROM {log} AS e
WHERE e.partition = {partition} AND e.id > {after} AND e.id <= {upper}
ORDER BY e.id DESC
LIMIT 1


-- name: open
-- Before a COPY into the buffer: look the topic up, and wake the transfer if it sleeps.
--
-- Parameters: topic, wake (null: decide by the server). Answers with the topic's id.
-- Relies on: django_events_topic (name).
SELECT django_events_open(%(topic)s::text, %(wake)s::boolean)


-- name: owners_in_buffer
-- Part of a WITH RECURSIVE: the ids of the topics that events in the buffer are of, and a null at the end.
--
-- Relies on: the primary key of the buffer (topic_id, id), of which one entry is read for each topic.
owner AS (
    (SELECT b.topic_id AS id FROM django_events_bufferedevent AS b ORDER BY b.topic_id LIMIT 1)
    UNION ALL
    SELECT (
        SELECT b.topic_id FROM django_events_bufferedevent AS b WHERE b.topic_id > owner.id ORDER BY b.topic_id LIMIT 1
    )
    FROM owner
    WHERE owner.id IS NOT NULL
)


-- name: prepared
-- The prepared transactions that hold rows which workers and transfers write, one table of each.
--
-- One that only published is no matter: no session waits for it. Where it holds a position, or what a worker has in hand, the
-- consumer and its topic are named, otherwise they are null.
-- Parameters: age (an interval; a younger one is left out).
-- Relies on: the views of the server, and few enough positions and leases to look at all of them.
SELECT DISTINCT ON (x.gid)
    x.gid, x.owner::text, c.relname::text, clock_timestamp() - x.prepared, consumer.name, consumer.topic
FROM pg_prepared_xacts AS x
JOIN pg_locks AS own ON own.locktype = 'transactionid' AND own.transactionid = x.transaction AND own.pid IS NULL
JOIN pg_locks AS l ON l.virtualtransaction = own.virtualtransaction AND l.pid IS NULL AND l.locktype = 'relation'
JOIN pg_class AS c ON c.oid = l.relation
LEFT JOIN LATERAL (
    SELECT r.name, t.name AS topic
    FROM (
        SELECT p.consumer_id FROM django_events_position AS p WHERE p.xmax = x.transaction
        UNION ALL
        SELECT h.consumer_id FROM django_events_deliverylease AS h WHERE h.xmax = x.transaction
    ) AS held
    JOIN django_events_consumer AS r ON r.id = held.consumer_id
    JOIN django_events_topic AS t ON t.id = r.topic_id
    LIMIT 1
) AS consumer ON true
WHERE x.database = current_database()
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND l.mode NOT IN ('AccessShareLock')
    AND c.relname IN (
        'django_events_position', 'django_events_delivery', 'django_events_deliverylease', 'django_events_consumer',
        'django_events_topichead'
    )
    AND x.prepared < clock_timestamp() - %(age)s::interval
ORDER BY x.gid, c.relname


-- name: read_committed
-- As the first statement of a transaction: each statement sees what was committed before it,
-- whatever the site's default is.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED


-- name: read_dead_letters
-- The events of dead letters that are handled again, in order: a part of `bounded`.
--
-- Parameters: consumer_id, event_ids.
-- Relies on: django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL.
SELECT
    d.event_id AS id, {copied_columns of d}
FROM django_events_deadletter AS d
WHERE d.consumer_id = %(consumer_id)s AND d.redrive_at IS NOT NULL AND d.event_id = ANY(%(event_ids)s::bigint[])
ORDER BY d.event_id


-- name: redrive_of_queue
-- Part of a condition on a dead letter `d` of a queue consumer `c`: it is to be handled again now, and has no delivery.
--
-- In order, an older dead letter of the same key comes first, also if it isn't to be redriven; and while the key is in
-- a worker's claimed deliveries, of which the oldest is first, it would be handled beside another event of the key.
-- It is asked for as in `claim_ordered`, in the order that only the index of keys has.
-- Relies on: django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL and (consumer_id, key,
-- event_id), the primary key of django_events_delivery and (consumer_id, key, event_id) WHERE key IS NOT NULL.
d.consumer_id = c.id
AND d.redrive_at <= clock_timestamp()
AND NOT EXISTS (
    SELECT FROM django_events_delivery AS own WHERE own.consumer_id = d.consumer_id AND own.event_id = d.event_id
)
AND NOT (
    c.ordered AND (
        EXISTS (
            SELECT FROM django_events_deadletter AS older
            WHERE older.consumer_id = d.consumer_id AND older.key = d.key AND older.event_id < d.event_id
        )
        OR (
            SELECT CASE WHEN oldest.key = d.key THEN oldest.token END
            FROM django_events_delivery AS oldest
            WHERE oldest.consumer_id = d.consumer_id
                AND oldest.key IS NOT NULL
                AND (oldest.key, oldest.event_id) > (
                    d.key,
                    (
                        SELECT own.position
                        FROM django_events_position AS own
                        WHERE own.consumer_id = d.consumer_id AND own.partition = -1
                    )
                )
            ORDER BY oldest.key, oldest.event_id
            LIMIT 1
        ) IS NOT NULL
    )
)


-- name: see_all
-- As a statement of a transaction before others: they fail where row-level security would hide rows from this role.
SET LOCAL row_security = off


-- name: server_settings
-- Settings as a session of this role begins with them, in their units; those that it may not see are left out.
--
-- Parameters: names.
-- Relies on: the views of the server.
SELECT s.name, s.reset_val FROM pg_settings AS s WHERE s.name = ANY(%(names)s)


-- name: session_as_told
-- Part of a SELECT: who a session `a` is, or the owner of a prepared transaction `x`, and what the session began last.
--
-- `does` is a word or two: not more, because the rest may be of an event.
-- Relies on: the views of the server.
coalesce(x.gid, '') AS name,
coalesce(a.usename::text, x.owner::text, '') AS role,
coalesce(a.application_name, '') AS application,
coalesce(host(a.client_addr), '') AS address,
coalesce(a.state, '') AS state,
coalesce(a.xact_start, x.prepared) AS since,
coalesce(upper(substring(a.query FROM '^\s*([[:alpha:]]+(\s+[[:alpha:]]+|))')), '') AS does


-- name: set_locally
-- Change settings of the server until this transaction ends; answers with what they were.
--
-- Waiting for the disk is only ever switched on: a site that waits for its standbys keeps doing so.
-- Parameters: names, values (arrays of one length).
SELECT
    name,
    current_setting(name),
    set_config(
        name,
        CASE WHEN name = 'synchronous_commit' AND current_setting(name) <> 'off' THEN current_setting(name) ELSE value END,
        true
    )
FROM unnest(%(names)s::text[], %(values)s::text[]) AS setting (name, value)


-- name: snapshot
-- As the first statement of a transaction that only reads: everything in it sees the same moment. It waits for no
-- lock for long, and takes as long as it takes. Those behind it need no snapshot, so locks can be taken before there is one.
-- A host that vanishes keeps neither the snapshot nor a lock.
--
-- Literals: vanished_after (how long it may say nothing, or take no answer).
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL lock_timeout = '2s';
SET LOCAL statement_timeout = 0;
SET LOCAL jit = off;
SET LOCAL row_security = off;
SET LOCAL idle_in_transaction_session_timeout = {vanished_after};
SET LOCAL tcp_user_timeout = {vanished_after}


-- name: stand_still
-- Let no worker claim deliveries of these queue consumers until the transaction ends; wait for those that do now.
--
-- Who puts older deliveries in, or takes some away, needs it: a claim by key has to see all that are older.
-- Parameters: consumer_ids.
-- Relies on: nothing but the lock table. `enter` takes the other side of the lock.
SELECT pg_advisory_xact_lock(561, id) FROM unnest(%(consumer_ids)s::int[]) AS id ORDER BY id


-- name: state_of_position
-- Part of a SELECT: what goes on in a position `p` of a consumer `c`. A queue goes on while some of it is retried.
--
-- Relies on: nothing but the two rows.
CASE
    WHEN p.stopped_at IS NOT NULL THEN 'stopped'
    WHEN c.mode = 'queue' AND c.paused_at IS NULL AND p.retry_at IS NOT NULL THEN 'retrying'
    WHEN p.token IS NOT NULL AND p.leased_until > clock_timestamp() THEN 'handling'
    WHEN c.paused_at IS NOT NULL THEN 'paused'
    WHEN p.token IS NOT NULL THEN 'lost'
    WHEN p.retry_at IS NOT NULL THEN 'retrying'
    ELSE 'idle'
END


-- name: topics
-- The topics of the database, by name.
--
-- Relies on: django_events_topic (name).
SELECT t.name, t.id, t.incarnation::text
FROM django_events_topic AS t


-- name: try_predicate
-- Let PostgreSQL read a jsonpath predicate, and try it on a value of each kind.
--
-- Parameters: where, vars.
SELECT jsonb_path_match(value, %(where)s::jsonpath, %(vars)s::jsonb, true)
FROM (
    VALUES
        ('null'::jsonb), ('true'), ('1'), ('"text"'), ('[]'), ('[1]'), (jsonb_build_object()), (jsonb_build_object('a', 1))
) AS sample (value)


-- name: untrusted
-- What lets a role other than the owner of the tables have code run by all who use them: of what kind, what it is, and
-- the SQL that ends it.
--
-- Superusers and the owner of the database are trusted. "$user" is looked for as it is written in the search_path.
-- Relies on: the catalog's own indexes.
WITH home AS (
    SELECT c.relnamespace AS schema, c.relowner AS owner
    FROM pg_class AS c
    WHERE c.oid = to_regclass('django_events_topic')
),
trusted AS (
    SELECT r.oid
    FROM pg_roles AS r, home
    WHERE r.rolsuper OR r.oid = home.owner OR r.rolname = 'pg_database_owner'
        OR r.oid = (SELECT d.datdba FROM pg_database AS d WHERE d.datname = current_database())
),
path AS (
    SELECT s.oid, s.nspname, s.nspowner, s.nspacl
    FROM pg_namespace AS s, home
    WHERE (s.oid = home.schema OR s.nspname = ANY(current_schemas(false))) AND NOT starts_with(s.nspname, 'pg_')
),
ours AS (
    SELECT c.oid, c.relname, c.relkind, c.relowner
    FROM pg_class AS c, home
    WHERE c.relnamespace = home.schema AND starts_with(c.relname, 'django_events_') AND c.relkind IN ('r', 'p', 'S', 'v')
),
functions AS (
    SELECT p.oid, p.proname, p.proowner, p.proacl, p.prosecdef, p.pronamespace
    FROM pg_proc AS p
    JOIN path ON path.oid = p.pronamespace
    WHERE p.proname IN (
        'django_events_open', 'django_events_checked', 'django_events_publish', 'django_events_schedule',
        'django_events_is_new', 'django_events_topic_id',
        'django_events_make_segment', 'django_events_cut_segment', 'django_events_drop_segment', 'django_events_log_of',
        'django_events_make_segment_of', 'django_events_cut_segment_of', 'django_events_drop_segment_of',
        'django_events_make_table_of', 'django_events_segments_of', 'django_events_rewrite_segments',
        'django_events_swap_segments', 'django_events_rewrite_segments_of', 'django_events_swap_segments_of',
        'django_events_analyze_rewritten', 'django_events_analyze_rewritten_of',
        'django_events_claim', 'django_events_ack', 'django_events_nack', 'django_events_extend',
        'django_events_claim_of', 'django_events_ack_of', 'django_events_nack_of', 'django_events_extend_of',
        'django_events_under_token', 'django_events_lease_of', 'django_events_fill_of', 'django_events_end_of',
        'django_events_count_of', 'django_events_bury_of', 'django_events_settle_of', 'django_events_read_of'
    )
)
SELECT 'schema', format('%%s may create in the schema %%I', role.name, path.nspname),
    format('REVOKE CREATE ON SCHEMA %%I FROM %%s', path.nspname, role.name)
FROM path
CROSS JOIN LATERAL aclexplode(path.nspacl) AS acl
CROSS JOIN LATERAL (
    SELECT CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END AS name
) AS role
WHERE acl.privilege_type = 'CREATE' AND acl.grantee <> path.nspowner AND acl.grantee NOT IN (SELECT oid FROM trusted)
UNION ALL
SELECT 'schema', format('%%I owns the schema %%I', pg_get_userbyid(path.nspowner), path.nspname),
    format('ALTER SCHEMA %%I OWNER TO %%I', path.nspname, pg_get_userbyid(home.owner))
FROM path, home
WHERE path.nspowner NOT IN (SELECT oid FROM trusted)
UNION ALL
SELECT 'database', format('%%s may create schemas, also with the name of a login, which comes first in the search_path', role.name),
    format('REVOKE CREATE ON DATABASE %%I FROM %%s', d.datname, role.name)
FROM pg_database AS d
CROSS JOIN LATERAL aclexplode(d.datacl) AS acl
CROSS JOIN LATERAL (
    SELECT CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END AS name
) AS role
WHERE d.datname = current_database() AND acl.privilege_type = 'CREATE'
    AND acl.grantee NOT IN (SELECT oid FROM trusted)
    AND strpos(current_setting('search_path'), '$user') > 0
UNION ALL
SELECT 'function', format('The function %%s of %%I has the name of one of ours', f.oid::regprocedure, pg_get_userbyid(f.proowner)),
    format('DROP FUNCTION %%s', f.oid::regprocedure)
FROM functions AS f, home
WHERE f.pronamespace <> home.schema OR f.proowner <> home.owner
UNION ALL
SELECT 'function', format('PUBLIC may call %%s, which has the rights of its owner', f.oid::regprocedure),
    format('REVOKE EXECUTE ON FUNCTION %%s FROM PUBLIC', f.oid::regprocedure)
FROM functions AS f
WHERE f.prosecdef AND (f.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(f.proacl) AS acl WHERE acl.grantee = 0))
UNION ALL
SELECT 'owner', format('%%s belongs to %%I', min(ours.oid::regclass::text), pg_get_userbyid(ours.relowner))
        || CASE count(*) WHEN 1 THEN '' ELSE format(', and %%s more of our tables', count(*) - 1) END,
    format('REASSIGN OWNED, or ALTER TABLE … OWNER TO %%I', pg_get_userbyid(home.owner))
FROM ours, home
WHERE ours.relowner <> home.owner
GROUP BY ours.relowner, home.owner
UNION ALL
SELECT 'code', format('The trigger %%I on %%s, which is not ours, calls %%s of %%I', t.tgname, ours.oid::regclass, p.oid::regproc, pg_get_userbyid(p.proowner)),
    format('DROP TRIGGER %%I ON %%s', t.tgname, ours.oid::regclass)
FROM ours
JOIN pg_trigger AS t ON t.tgrelid = ours.oid AND NOT t.tgisinternal AND t.tgparentid = 0
JOIN pg_proc AS p ON p.oid = t.tgfoid
CROSS JOIN home
WHERE NOT starts_with(p.proname, 'pgtrigger_') OR p.proowner <> home.owner OR p.pronamespace <> home.schema
UNION ALL
SELECT 'code', format('The policy %%I on %%s is not ours', y.polname, ours.oid::regclass),
    format('DROP POLICY %%I ON %%s', y.polname, ours.oid::regclass)
FROM ours
JOIN pg_policy AS y ON y.polrelid = ours.oid
UNION ALL
SELECT 'code', format('The rule %%I on %%s is not ours', w.rulename, ours.oid::regclass),
    format('DROP RULE %%I ON %%s', w.rulename, ours.oid::regclass)
FROM ours
JOIN pg_rewrite AS w ON w.ev_class = ours.oid AND ours.relkind IN ('r', 'p')
ORDER BY 1, 2
