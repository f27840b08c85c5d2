"""The functions by which programs in any language claim and settle events of a queue, as 0001 makes them.

They are made of the statements that Python's workers run, by `consuming/programs/worker_functions.py`. The text stays
what it is: where a statement changes, the next migration replaces the functions.
"""

CREATE_WORKER_FUNCTIONS = r"""
CREATE FUNCTION django_events_read_of(
    log regclass, topic_id integer, consumer_id integer, ids bigint[], bytes bigint
) RETURNS TABLE (
    id bigint, partition integer, number bigint, type varchar, key varchar, value text, body bytea, metadata text,
    published_at text, logged_at text, cut boolean, size bigint
)
LANGUAGE plpgsql AS $function$
BEGIN
    RETURN QUERY EXECUTE format(
        $bounded$
SELECT
    e.id, e.partition, e.number, e.type, e.key,
    CASE WHEN e.total <= $4 THEN e.value END,
    CASE WHEN e.total <= $4 THEN e.body END,
    CASE WHEN e.total <= $4 THEN e.metadata END,
    e.published_at::text, e.logged_at::text,
    e.total > $4, e.size::bigint
FROM (
    SELECT e.*, sum(e.weight) OVER (ORDER BY e.id ROWS UNBOUNDED PRECEDING) AS total
    FROM (
        SELECT
            e.id, e.partition, e.number, e.type, e.key, e.value, e.body, e.metadata, e.published_at, e.logged_at,
            e.size,
            CASE
                WHEN e.metadata IS NULL OR (e.value IS NULL AND e.has_value) THEN $4::float8 + 1
                ELSE octet_length(e.metadata)::float8
                    + coalesce(octet_length(e.value), 0) + coalesce(octet_length(e.body), 0)
            END AS weight
        FROM (
            SELECT
                e.id, e.partition, e.number, e.type, e.key, e.body, e.published_at, e.logged_at, e.size,
                e.value IS NOT NULL AS has_value,
                CASE WHEN e.stored <= $4 THEN CASE
    WHEN pg_column_size("e"."value") <= 4000 AND pg_column_compression("e"."value") IS NULL
        THEN "e"."value"::text
    WHEN "e"."value" IS NULL THEN NULL
    ELSE (
        SELECT
            CASE
                WHEN pg_column_size(unpacked.value) <= 4000 THEN unpacked.value::text
                WHEN pg_column_size(unpacked.value) > 40000 AND jsonb_path_exists(unpacked.value, 'strict $.**{5001}') THEN NULL
                WHEN jsonb_path_exists(unpacked.value, 'strict $.** ? (@.abs() >= 1e4300)') THEN NULL
                WHEN pg_column_size(unpacked.value) > 64 * 4000
                    AND jsonb_path_exists(unpacked.value, 'strict $.** ? (1 - (@ * 0 + 1) / 3 * 3 < 1e-900)')
                    THEN NULL
                ELSE unpacked.value::text
            END
        FROM (SELECT jsonb_path_query_first("e"."value", 'strict $') AS value OFFSET 0) AS unpacked
    )
END END AS value,
                CASE WHEN e.stored <= $4 THEN CASE
    WHEN pg_column_size("e"."metadata") <= 4000 AND pg_column_compression("e"."metadata") IS NULL
        THEN "e"."metadata"::text
    WHEN "e"."metadata" IS NULL THEN NULL
    ELSE (
        SELECT
            CASE
                WHEN pg_column_size(unpacked.value) <= 4000 THEN unpacked.value::text
                WHEN pg_column_size(unpacked.value) > 40000 AND jsonb_path_exists(unpacked.value, 'strict $.**{5001}') THEN NULL
                WHEN jsonb_path_exists(unpacked.value, 'strict $.** ? (@.abs() >= 1e4300)') THEN NULL
                WHEN pg_column_size(unpacked.value) > 64 * 4000
                    AND jsonb_path_exists(unpacked.value, 'strict $.** ? (1 - (@ * 0 + 1) / 3 * 3 < 1e-900)')
                    THEN NULL
                ELSE unpacked.value::text
            END
        FROM (SELECT jsonb_path_query_first("e"."metadata", 'strict $') AS value OFFSET 0) AS unpacked
    )
END END AS metadata
            FROM (
                SELECT e.*, sum(e.size) OVER (ORDER BY e.id ROWS UNBOUNDED PRECEDING) AS stored
                FROM (
                    SELECT
                        e.*,
                        pg_column_size(e.metadata)::float8
                            + coalesce(pg_column_size(e.value), 0) + coalesce(octet_length(e.body), 0) AS size
                    FROM (SELECT * FROM (
SELECT e.id, e.partition, e.number, e.type, e.key, e.value, e.body, e.metadata, e.published_at, e.logged_at
FROM %1$s AS e
WHERE e.topic_id = $1 AND e.id = ANY($2::bigint[]) AND e.id >= %2$s AND e.id <= %3$s
ORDER BY e.id
        ) AS there
        UNION ALL
        SELECT again.id, again.partition, again.number, again.type, again.key, again.value, again.body, again.metadata, again.published_at, again.logged_at FROM (
SELECT
    d.event_id AS id, d.partition, d.number, d.type, d.key, d.value, d.body, d.metadata, d.published_at, d.logged_at
FROM django_events_deadletter AS d
WHERE d.consumer_id = $3 AND d.redrive_at IS NOT NULL AND d.event_id = ANY($2::bigint[])
ORDER BY d.event_id
        ) AS again
        WHERE again.id NOT IN (
            SELECT e.id FROM %1$s AS e WHERE e.topic_id = $1 AND e.id = ANY($2) AND e.id >= %2$s AND e.id <= %3$s
        )) AS e
                ) AS e
            ) AS e
            WHERE e.stored - e.size <= $4
            OFFSET 0
        ) AS e
    ) AS e
) AS e
WHERE e.total - e.weight <= $4
ORDER BY e.id
        $bounded$,
        log, (SELECT min(i) FROM unnest(ids) AS i), (SELECT max(i) FROM unnest(ids) AS i)
    ) USING topic_id, ids, consumer_id, bytes;
END
$function$;

CREATE FUNCTION django_events_settle_of(
    given_consumer_id integer,
    given_token bigint,
    given_done bigint[],
    given_ends boolean,
    given_released bigint[] DEFAULT ARRAY[]::bigint[],
    given_passed bigint DEFAULT NULL,
    given_outcome text DEFAULT NULL,
    given_failed bigint DEFAULT NULL,
    given_attempts integer DEFAULT 0,
    given_pause interval DEFAULT NULL,
    given_error text DEFAULT '',
    given_history boolean DEFAULT true,
    given_lock boolean DEFAULT true
) RETURNS bigint
LANGUAGE plpgsql AS $function$
DECLARE
    line record;
BEGIN
    FOR line IN
WITH mine AS MATERIALIZED (
    SELECT token, holder FROM django_events_deliverylease WHERE token = given_token FOR UPDATE
),
done AS (
    DELETE FROM django_events_delivery AS d
    USING mine
    WHERE d.consumer_id = given_consumer_id
        AND d.event_id = ANY(given_done::bigint[])
        AND d.event_id >= (SELECT min(id) FROM unnest(given_done::bigint[]) AS id)
        AND d.event_id <= (SELECT max(id) FROM unnest(given_done::bigint[]) AS id)
        AND d.token = mine.token
    RETURNING d.event_id, d.received_at, d.first_at, d.last_at, d.attempts, d.delivered
),
past AS (
    INSERT INTO django_events_pastdelivery (
        consumer_id, event_id, received_at, first_at, last_at, processed_at, attempts, delivered, outcome, worker
    )
    SELECT
        given_consumer_id, done.event_id, done.received_at, done.first_at, done.last_at, clock_timestamp(),
        greatest(done.attempts, 1), done.delivered,
        CASE WHEN done.event_id = given_passed THEN given_outcome ELSE 'handled' END, mine.holder
    FROM done
    CROSS JOIN mine
    WHERE given_history
        AND EXISTS (SELECT FROM django_events_consumer AS c WHERE c.id = given_consumer_id AND c.history IS NOT NULL)
),
redriven AS (
    DELETE FROM django_events_deadletter AS d
    USING mine
    WHERE d.consumer_id = given_consumer_id AND d.redrive_at IS NOT NULL AND d.event_id = ANY(given_done::bigint[])
),
failed AS (
    UPDATE django_events_delivery AS d
    SET
        token = NULL,
        visible_at = clock_timestamp() + given_pause::interval,
        attempts = given_attempts,
        error = given_error
    FROM mine
    WHERE d.consumer_id = given_consumer_id AND d.event_id = given_failed AND d.token = mine.token
    RETURNING d.event_id, d.received_at, d.first_at, d.last_at, d.attempts
),
released AS (
    UPDATE django_events_delivery AS d
    SET token = NULL
    FROM mine
    WHERE d.consumer_id = given_consumer_id AND d.event_id = ANY(given_released::bigint[]) AND d.token = mine.token
),
ended AS (
    DELETE FROM django_events_deliverylease AS l USING mine WHERE l.token = mine.token AND given_ends
)
, opened AS MATERIALIZED (
    SELECT django_events_open(c.outcomes) AS topic_id, c.name AS consumer, t.name AS topic
    FROM django_events_consumer AS c
    JOIN django_events_topic AS t ON t.id = c.topic_id
    WHERE c.id = given_consumer_id
        AND c.outcomes IS NOT NULL
        AND given_history
        AND (EXISTS (SELECT FROM done) OR EXISTS (SELECT FROM failed))
),
became AS (
    SELECT
        CASE WHEN done.event_id = given_passed THEN given_outcome ELSE 'handled' END AS type,
        done.event_id, done.received_at, done.first_at, done.last_at, greatest(done.attempts, 1) AS attempt
    FROM done
    UNION ALL
    SELECT 'failed', f.event_id, f.received_at, f.first_at, f.last_at, greatest(f.attempts, 1) FROM failed AS f
),
told AS (
    INSERT INTO django_events_bufferedevent (topic_id, type, key, value, metadata)
    SELECT
        opened.topic_id, became.type, opened.topic || '/' || became.event_id,
        jsonb_build_object(
            'consumer', opened.consumer, 'topic', opened.topic, 'event', became.event_id, 'attempt', became.attempt,
            'waited', extract(epoch FROM became.first_at - became.received_at),
            'lasted', extract(epoch FROM now.at - became.last_at),
            'took', extract(epoch FROM now.at - became.received_at),
            'worker', mine.holder,
            'error', CASE WHEN became.type <> 'handled' THEN split_part(given_error, ':', 1) END
        ),
        jsonb_build_object()
    FROM opened
    CROSS JOIN became
    CROSS JOIN mine
    CROSS JOIN (SELECT clock_timestamp() AS at) AS now
    ORDER BY became.event_id
)
SELECT
    (SELECT count(*) FROM done),
    current_setting('django_events.token', true) = given_token::text,
    CASE WHEN given_lock THEN pg_try_advisory_xact_lock(given_token) END
FROM mine
    LOOP
        IF line."case" IS NOT FALSE AND line.count = cardinality(given_done) THEN
            RETURN line.count;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'The lease of the token % was lost: it was taken over or rewound. Nothing was settled.', given_token
        USING ERRCODE = 'DE004';
END
$function$;

CREATE FUNCTION django_events_bury_of(
    log regclass, topic_id integer, consumer_id integer, event_id bigint, attempts integer, error text
) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    EXECUTE format(
        $bury$
WITH again AS (
    UPDATE django_events_deadletter
    SET
        attempts = $4, error = $5, traceback = $6,
        fingerprint = $7, dead_at = clock_timestamp(), redrive_at = NULL
    WHERE consumer_id = $3 AND event_id = $2
    RETURNING id
),
anew AS (
    INSERT INTO django_events_deadletter (
        consumer_id, event_id, partition, number, type, key, value, body, metadata, published_at, logged_at, attempts, error, traceback, fingerprint
    )
    SELECT
        $3, e.id, e.partition, e.number, e.type, e.key, e.value, e.body, e.metadata, e.published_at, e.logged_at, $4, $5, $6, $7
    FROM %1$s AS e
    WHERE e.topic_id = $1 AND e.id = $2 AND NOT EXISTS (SELECT FROM again)
    RETURNING id
)
SELECT id FROM again UNION ALL SELECT id FROM anew
        $bury$,
        log
    ) USING
        topic_id, event_id, consumer_id, attempts, left(error, 2000), right(error || E'\n', 20000),
        left(
            regexp_replace(
                rtrim(substring(btrim(error, E' \t\r\n') FROM '^[^\n\r]*')),
                $differing$(?<![0-9a-z])(?:[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}|0x[0-9a-f]+|(?=[a-f]*[0-9])[0-9a-f]{8,})(?![0-9a-z])|[0-9]+$differing$,
                '#', 'gi'
            ),
            300
        );
END
$function$;

CREATE FUNCTION django_events_count_of(
    given_consumer_id integer, given_handled bigint, given_failed bigint, given_dead_lettered bigint
) RETURNS void
LANGUAGE plpgsql AS $function$
DECLARE
    given_ignored CONSTANT bigint := 0;
    line record;
    before CONSTANT text := current_setting('lock_timeout');
BEGIN
    FOR line IN
SELECT p.position
FROM django_events_position AS p
WHERE p.consumer_id = given_consumer_id AND p.partition = -1
FOR NO KEY UPDATE OF p SKIP LOCKED
    LOOP
        FOR line IN
UPDATE django_events_position AS p
SET
    position = greatest(p.position, least(oldest.event_id - 1, CASE WHEN NOT c.live THEN c.filled_until END)),
    number = greatest(p.position, least(oldest.event_id - 1, CASE WHEN NOT c.live THEN c.filled_until END)),
    handled = p.handled + given_handled,
    failed = p.failed + given_failed,
    ignored = p.ignored + given_ignored,
    dead_lettered = p.dead_lettered + given_dead_lettered,
    served_at = clock_timestamp()
FROM django_events_consumer AS c
LEFT JOIN LATERAL (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = c.id
        AND d.event_id > (
            SELECT own.position FROM django_events_position AS own WHERE own.consumer_id = c.id AND own.partition = -1
        )
    ORDER BY d.event_id
    LIMIT 1
) AS oldest ON true
WHERE c.id = given_consumer_id
    AND p.consumer_id = c.id
    AND p.partition = -1
    AND (
        given_handled + given_failed + given_ignored > 0
        OR least(oldest.event_id - 1, CASE WHEN NOT c.live THEN c.filled_until END) > p.position
    )
RETURNING p.position
        LOOP
            NULL;
        END LOOP;
        RETURN;
    END LOOP;
    PERFORM set_config('lock_timeout', '500ms', true);
    BEGIN
        FOR line IN
UPDATE django_events_position
SET
    handled = handled + given_handled,
    failed = failed + given_failed,
    ignored = ignored + given_ignored,
    dead_lettered = dead_lettered + given_dead_lettered,
    served_at = clock_timestamp()
WHERE consumer_id = given_consumer_id AND partition = -1
RETURNING id
        LOOP
            NULL;
        END LOOP;
    EXCEPTION WHEN lock_not_available THEN
        NULL;
    END;
    PERFORM set_config('lock_timeout', before, true);
END
$function$;

CREATE FUNCTION django_events_end_of(given_token bigint) RETURNS void
LANGUAGE plpgsql AS $function$
DECLARE
    line record;
BEGIN
    FOR line IN
SELECT pid, pg_terminate_backend(pid)
FROM pg_locks
WHERE locktype = 'advisory'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid::bigint = given_token::bigint >> 32
    AND objid::bigint = given_token::bigint & 4294967295
    AND objsubid = 1
    AND mode = 'ExclusiveLock'
    AND granted
    AND pid <> pg_backend_pid()
    LOOP
        NULL;
    END LOOP;
    FOR line IN
SELECT pg_advisory_xact_lock_shared(given_token)
    LOOP
        NULL;
    END LOOP;
EXCEPTION WHEN lock_not_available OR insufficient_privilege THEN
    NULL;
END
$function$;

CREATE FUNCTION django_events_fill_of(
    log regclass, given_topic_id integer, given_consumer_id integer
) RETURNS boolean
LANGUAGE plpgsql AS $function$
DECLARE
    line record;
    after bigint;
    upper bigint;
    last bigint;
    made bigint;
    there bigint;
    beyond bigint;
    given_most bigint;
    given_filled_until bigint;
    given_live CONSTANT boolean := false;
    room bigint := 5000;
BEGIN
    FOR line IN
SELECT c.filled_until, c.max_pending, c.waits_from
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
WHERE c.id = given_consumer_id AND NOT c.live AND p.stopped_at IS NULL AND c.paused_at IS NULL
    AND (c.held_until IS NULL OR c.held_until <= clock_timestamp())
FOR NO KEY UPDATE OF c SKIP LOCKED
    LOOP
        after := line.filled_until;
        given_most := line.max_pending;
    END LOOP;
    IF after IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format($last$SELECT e.id FROM %1$s AS e WHERE e.topic_id = %2$s AND e.id > %3$s ORDER BY e.id DESC LIMIT 1$last$, log, given_topic_id, after) INTO last;
    last := coalesce(last, after);
    IF given_most IS NOT NULL THEN
        FOR line IN
SELECT count(*)
FROM (
    SELECT
    FROM django_events_consumer AS c
    JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
    JOIN django_events_delivery AS d ON d.consumer_id = c.id AND d.event_id > p.position
    WHERE c.id = given_consumer_id AND (c.live OR d.event_id <= c.filled_until)
    ORDER BY d.event_id
    LIMIT given_most::bigint
) AS pending
        LOOP
            room := given_most - line.count;
        END LOOP;
        IF room < (given_most + 1) / 2 THEN
            room := 0;
        END IF;
    END IF;
    upper := least(last, after + 5000, after + room);
    IF upper = after THEN
        RETURN false;
    END IF;
    EXECUTE format(
        $fill$
WITH made AS (
    INSERT INTO django_events_delivery (consumer_id, event_id, key, received_at, visible_at)
    SELECT
        %2$s, e.id, CASE WHEN c.ordered THEN e.key END, clock_timestamp(),
        CASE WHEN e.logged_at + c.delay > clock_timestamp() THEN e.logged_at + c.delay END
    FROM %1$s AS e
    JOIN django_events_consumer AS c ON c.id = %2$s
    WHERE e.topic_id = %3$s AND e.id > %4$s AND e.id <= %5$s AND (c.types IS NULL OR c.types @> to_jsonb(e.type)
            OR EXISTS (SELECT FROM jsonb_array_elements_text(c.type_expressions) AS x WHERE e.type ~ x))
        AND (c.keys IS NULL OR c.keys @> to_jsonb(e.key)
            OR EXISTS (SELECT FROM jsonb_array_elements_text(c.key_expressions) AS x WHERE e.key ~ x))
        AND (c."where" IS NULL
            OR coalesce(jsonb_path_match(e.value, c."where"::jsonpath, coalesce(c.vars, jsonb_build_object()), true), false))
        AND (c.metadata IS NULL
            OR coalesce(jsonb_path_match(e.metadata, c.metadata::jsonpath, coalesce(c.vars, jsonb_build_object()), true), false))
    ORDER BY e.id
    ON CONFLICT (consumer_id, event_id) DO NOTHING
    RETURNING event_id
)
SELECT
    (SELECT count(*) FROM made),
    (SELECT count(*) FROM %1$s AS e WHERE e.topic_id = %3$s AND e.id > %4$s AND e.id <= %5$s)
        $fill$,
        log, given_consumer_id, given_topic_id, after, upper
    ) INTO made, there;
    IF there < upper - after THEN
        beyond := least(upper, greatest(after, (
            SELECT greatest(h.id_floor, h.compacted_until) FROM django_events_topichead AS h WHERE h.topic_id = given_topic_id
        )));
        EXECUTE format($counted$SELECT count(*) FROM %1$s AS e WHERE e.topic_id = %2$s AND e.id > %3$s AND e.id <= %4$s$counted$, log, given_topic_id, beyond, upper) INTO there;
        IF there < upper - beyond AND beyond = least(upper, greatest(after, (
            SELECT greatest(h.id_floor, h.compacted_until) FROM django_events_topichead AS h WHERE h.topic_id = given_topic_id
        ))) THEN
            RAISE EXCEPTION 'One of the events % to % of a topic is missing: it is not in %, and retention has not dropped it.',
                after + 1, upper, log USING ERRCODE = 'DE006';
        END IF;
    END IF;
    given_filled_until := upper;
    FOR line IN
UPDATE django_events_consumer SET filled_until = given_filled_until, live = given_live WHERE id = given_consumer_id
RETURNING id
    LOOP
        NULL;
    END LOOP;
    RETURN true;
END
$function$;

CREATE FUNCTION django_events_lease_of(
    log regclass,
    topic_id integer,
    given_consumer_id integer,
    ordered boolean,
    given_most integer,
    given_lease interval,
    given_holder text,
    given_since timestamptz,
    given_until timestamptz,
    OUT token bigint,
    OUT lost_token bigint,
    OUT ids bigint[],
    OUT attempts integer[],
    OUT keys text[]
)
LANGUAGE plpgsql SET enable_sort = off AS $function$
#variable_conflict use_column
DECLARE
    given_ours CONSTANT bigint[] := ARRAY[]::bigint[];
    given_async_commit CONSTANT boolean := false;
    given_token bigint;
    given_after bigint := 0;
    given_window integer := greatest(200, 2 * given_most);
    line record;
    ends bigint;
    frozen boolean;
    ended boolean := false;
BEGIN
    LOOP
        given_token := ('x' || right(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint & 9223372036854775807;
        token := given_token;
        FOR line IN
SELECT
    set_config(
        'django_events.claims',
        CASE WHEN pg_try_advisory_xact_lock_shared(561, given_consumer_id) THEN given_consumer_id::text ELSE '' END,
        true
    ),
    set_config('enable_sort', 'off', true)
        LOOP
            NULL;
        END LOOP;
        FOR line IN
WITH lost AS MATERIALIZED (
    SELECT l.token, l.event_ids
    FROM django_events_deliverylease AS l
    JOIN django_events_consumer AS c ON c.id = l.consumer_id
    JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
    WHERE l.consumer_id = given_consumer_id
        AND l.leased_until <= clock_timestamp()
        AND l.token <> ALL(given_ours::bigint[])
        AND current_setting('django_events.claims', true) = given_consumer_id::text
        AND p.stopped_at IS NULL
        AND c.paused_at IS NULL
        AND (c.held_until IS NULL OR c.held_until <= clock_timestamp())
        AND true
    ORDER BY l.leased_until
    LIMIT 1
    FOR UPDATE OF l SKIP LOCKED
),
taken AS (
    UPDATE django_events_deliverylease AS l
    SET token = given_token, leased_until = clock_timestamp() + given_lease, holder = given_holder
    FROM lost
    WHERE l.token = lost.token
),
deliveries AS (
    UPDATE django_events_delivery AS d
    SET token = given_token, delivered = d.delivered + 1, last_at = clock_timestamp()
    FROM lost
    WHERE d.consumer_id = given_consumer_id
        AND d.event_id = ANY(
            ARRAY(SELECT event.id::bigint FROM lost, jsonb_array_elements_text(lost.event_ids) AS event (id))
        )
        AND d.token = lost.token
    RETURNING d.event_id, d.attempts, d.key
)
SELECT lost.token, deliveries.event_id, deliveries.attempts, deliveries.key
FROM lost
LEFT JOIN deliveries ON true
ORDER BY deliveries.event_id
        LOOP
            lost_token := line.token;
            IF line.event_id IS NOT NULL THEN
                ids := ids || line.event_id;
                attempts := attempts || line.attempts;
                keys := keys || line.key::text;
            END IF;
        END LOOP;
        IF lost_token IS NOT NULL THEN
            PERFORM django_events_end_of(lost_token);
            IF ids IS NULL THEN
                DELETE FROM django_events_deliverylease AS l WHERE l.token = given_token;
                lost_token := NULL;
                CONTINUE;
            END IF;
            RETURN;
        END IF;
        ends := NULL;
        IF ordered THEN
            FOR line IN
WITH open AS MATERIALIZED (
    SELECT c.id, p.position, CASE WHEN c.live THEN 9223372036854775807 ELSE c.filled_until END AS upper
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
WHERE c.id = given_consumer_id
    AND c.paused_at IS NULL
    AND (c.held_until IS NULL OR c.held_until <= clock_timestamp())
    AND p.stopped_at IS NULL
    AND current_setting('django_events.claims', true) = given_consumer_id::text
    AND NOT EXISTS (SELECT FROM django_events_deliverylease AS mine WHERE mine.token = given_token)
        AND c.ordered
        AND true
),
seen AS MATERIALIZED (
    SELECT
        d.event_id, d.key,
        d.token IS NULL
        AND (d.visible_at IS NULL OR d.visible_at <= statement_timestamp())
        AND (given_since::timestamptz IS NULL OR d.received_at >= given_since::timestamptz)
        AND (given_until::timestamptz IS NULL OR d.received_at < given_until::timestamptz) AS free
    FROM django_events_delivery AS d
    WHERE d.consumer_id = (SELECT open.id FROM open)
        AND d.event_id > greatest(given_after, (SELECT open.position FROM open))
        AND d.event_id <= (SELECT open.upper FROM open)
    ORDER BY d.event_id
    LIMIT given_window
),
due AS MATERIALIZED (
    SELECT d.event_id, d.key
    FROM django_events_delivery AS d
    WHERE d.consumer_id = (SELECT open.id FROM open)
        AND d.visible_at <= statement_timestamp()
        AND d.token IS NULL
        AND d.event_id <= (SELECT open.upper FROM open)
        AND (given_since::timestamptz IS NULL OR d.received_at >= given_since::timestamptz)
        AND (given_until::timestamptz IS NULL OR d.received_at < given_until::timestamptz)
    ORDER BY d.visible_at
    LIMIT given_most
),
runs AS MATERIALIZED (
    SELECT
        seen.event_id, seen.key,
        row_number() OVER run AS rank,
        bool_and(seen.free) OVER run AS free,
        true AS leads
    FROM seen
    WINDOW run AS (PARTITION BY coalesce('k' || seen.key, seen.event_id::text) ORDER BY seen.event_id)
    UNION ALL
    SELECT due.event_id, due.key, 1, true, false FROM due WHERE due.event_id NOT IN (SELECT seen.event_id FROM seen)
),
first_of_key AS MATERIALIZED (
    SELECT runs.event_id, runs.key, runs.leads
    FROM runs
    LEFT JOIN LATERAL (
        SELECT d.event_id
        FROM django_events_delivery AS d
        WHERE d.consumer_id = given_consumer_id
            AND d.key IS NOT NULL
            AND (d.key, d.event_id) > (runs.key, (SELECT open.position FROM open))
        ORDER BY d.key, d.event_id
        LIMIT 1
    ) AS oldest ON true
    WHERE runs.rank = 1 AND runs.free AND (runs.key IS NULL OR oldest.event_id = runs.event_id)
),
wanted AS MATERIALIZED (
    SELECT first_of_key.event_id, first_of_key.key, first_of_key.leads FROM first_of_key
    UNION ALL
    SELECT runs.event_id, runs.key, true
    FROM runs
    WHERE runs.rank > 1 AND runs.free AND (runs.key NOT IN (SELECT first_of_key.key FROM first_of_key WHERE first_of_key.leads)) IS FALSE
    ORDER BY event_id
    LIMIT given_most
),
got AS MATERIALIZED (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = given_consumer_id
        AND d.event_id = ANY(ARRAY(SELECT wanted.event_id FROM wanted))
        AND d.event_id >= (SELECT min(wanted.event_id) FROM wanted)
        AND d.event_id <= (SELECT max(wanted.event_id) FROM wanted)
        AND d.token IS NULL
        AND (d.visible_at IS NULL OR d.visible_at <= statement_timestamp())
    FOR UPDATE OF d SKIP LOCKED
),
picked AS MATERIALIZED (
    SELECT run.event_id
    FROM (
        SELECT mine.*, bool_and(mine.got) OVER (PARTITION BY mine.key ORDER BY mine.event_id) AS led
        FROM (
            SELECT wanted.event_id, wanted.key, wanted.event_id IN (SELECT got.event_id FROM got) AS got FROM wanted
        ) AS mine
    ) AS run
    WHERE run.got AND (run.led OR run.key IS NULL)
),
lease AS (
    INSERT INTO django_events_deliverylease (token, consumer_id, leased_until, holder, event_ids)
    SELECT given_token, given_consumer_id, clock_timestamp() + given_lease, given_holder, jsonb_agg(picked.event_id)
    FROM picked
    HAVING count(*) > 0
),
claimed AS (
    UPDATE django_events_delivery AS d
    SET
        token = given_token,
        visible_at = NULL,
        delivered = d.delivered + 1,
        first_at = coalesce(d.first_at, clock_timestamp()),
        last_at = clock_timestamp()
    WHERE d.consumer_id = given_consumer_id
        AND d.event_id = ANY(ARRAY(SELECT picked.event_id FROM picked))
        AND d.event_id >= (SELECT min(picked.event_id) FROM picked)
        AND d.event_id <= (SELECT max(picked.event_id) FROM picked)
    RETURNING d.event_id, d.attempts, d.key
)
SELECT
    claimed.event_id, claimed.attempts, claimed.key, next.after,
    CASE WHEN given_async_commit AND max(claimed.attempts) OVER () = 0 THEN set_config('synchronous_commit', 'off', true) END
FROM (
    SELECT
        CASE
            WHEN (SELECT count(*) FROM wanted) >= given_most
                THEN (SELECT max(wanted.event_id) FROM wanted WHERE wanted.leads)
            WHEN count(*) = given_window THEN max(seen.event_id)
        END AS after
    FROM seen
) AS next
LEFT JOIN claimed ON true
ORDER BY claimed.event_id
            LOOP
                ends := line.after;
                IF line.event_id IS NOT NULL THEN
                    ids := ids || line.event_id;
                    attempts := attempts || line.attempts;
                    keys := keys || line.key::text;
                END IF;
            END LOOP;
        ELSE
            FOR line IN
WITH open AS MATERIALIZED (
    SELECT c.id, p.position, CASE WHEN c.live THEN 9223372036854775807 ELSE c.filled_until END AS upper
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
WHERE c.id = given_consumer_id
    AND c.paused_at IS NULL
    AND (c.held_until IS NULL OR c.held_until <= clock_timestamp())
    AND p.stopped_at IS NULL
    AND current_setting('django_events.claims', true) = given_consumer_id::text
    AND NOT EXISTS (SELECT FROM django_events_deliverylease AS mine WHERE mine.token = given_token)
        AND NOT c.ordered
        AND true
),
due AS MATERIALIZED (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = (SELECT open.id FROM open)
        AND d.visible_at <= statement_timestamp()
        AND d.token IS NULL
        AND d.event_id <= (SELECT open.upper FROM open)
        AND (given_since::timestamptz IS NULL OR d.received_at >= given_since::timestamptz)
        AND (given_until::timestamptz IS NULL OR d.received_at < given_until::timestamptz)
    ORDER BY d.visible_at
    LIMIT given_most
    FOR UPDATE SKIP LOCKED
),
fresh AS MATERIALIZED (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = (SELECT open.id FROM open)
        AND d.event_id > greatest(given_after, (SELECT open.position FROM open))
        AND d.event_id <= (SELECT open.upper FROM open)
        AND d.visible_at IS NULL
        AND d.token IS NULL
        AND (given_since::timestamptz IS NULL OR d.received_at >= given_since::timestamptz)
        AND (given_until::timestamptz IS NULL OR d.received_at < given_until::timestamptz)
    ORDER BY d.event_id
    LIMIT greatest(given_most - (SELECT count(*) FROM due), 0)
    FOR UPDATE SKIP LOCKED
),
picked AS MATERIALIZED (
    SELECT event_id FROM due
    UNION ALL
    SELECT event_id FROM fresh
),
lease AS (
    INSERT INTO django_events_deliverylease (token, consumer_id, leased_until, holder, event_ids)
    SELECT given_token, given_consumer_id, clock_timestamp() + given_lease, given_holder, jsonb_agg(picked.event_id)
    FROM picked
    HAVING count(*) > 0
),
claimed AS (
    UPDATE django_events_delivery AS d
    SET
        token = given_token,
        visible_at = NULL,
        delivered = d.delivered + 1,
        first_at = coalesce(d.first_at, clock_timestamp()),
        last_at = clock_timestamp()
    WHERE d.consumer_id = given_consumer_id
        AND d.event_id = ANY(ARRAY(SELECT picked.event_id FROM picked))
        AND d.event_id >= (SELECT min(picked.event_id) FROM picked)
        AND d.event_id <= (SELECT max(picked.event_id) FROM picked)
    RETURNING d.event_id, d.attempts, d.key
)
SELECT
    claimed.event_id, claimed.attempts, claimed.key, (SELECT max(fresh.event_id) FROM fresh),
    CASE WHEN given_async_commit AND max(claimed.attempts) OVER () = 0 THEN set_config('synchronous_commit', 'off', true) END
FROM claimed
ORDER BY claimed.event_id
            LOOP
                ids := ids || line.event_id;
                attempts := attempts || line.attempts;
                keys := keys || line.key::text;
            END LOOP;
        END IF;
        IF ids IS NOT NULL THEN
            RETURN;
        END IF;
        IF ends IS NOT NULL THEN
            given_after := ends;
            given_window := least(2 * given_window, 20000);
            CONTINUE;
        END IF;
        given_after := 0;
        frozen := false;
        IF NOT ended THEN
            FOR line IN
SELECT token
FROM django_events_deliverylease
WHERE consumer_id = given_consumer_id AND leased_until <= clock_timestamp() AND token <> ALL(given_ours::bigint[])
            LOOP
                PERFORM django_events_end_of(line.token);
                frozen := true;
            END LOOP;
            ended := true;
        END IF;
        CONTINUE WHEN frozen;
        CONTINUE WHEN given_since IS NULL AND given_until IS NULL
            AND django_events_fill_of(log, topic_id, given_consumer_id);
        RETURN;
    END LOOP;
END
$function$;

CREATE FUNCTION django_events_under_token(
    given_token bigint,
    OUT consumer_id integer,
    OUT topic_id integer,
    OUT ordered boolean,
    OUT lease interval,
    OUT retry jsonb,
    OUT ids bigint[],
    OUT attempts integer[],
    OUT keys text[]
)
LANGUAGE plpgsql AS $function$
#variable_conflict use_column
DECLARE
    line record;
BEGIN
    SELECT l.consumer_id INTO consumer_id FROM django_events_deliverylease AS l WHERE l.token = given_token FOR UPDATE;
    IF consumer_id IS NULL THEN
        RETURN;
    END IF;
    FOR try IN 1..100 LOOP
        EXIT WHEN pg_try_advisory_xact_lock(given_token);
        PERFORM pg_sleep(0.005);
    END LOOP;
    SELECT c.topic_id, c.ordered, c.lease, c.retry INTO topic_id, ordered, lease, retry
    FROM django_events_consumer AS c WHERE c.id = consumer_id;
    ids := ARRAY[]::bigint[];
    FOR line IN
SELECT d.event_id, d.attempts, d.key
FROM django_events_deliverylease AS l
CROSS JOIN LATERAL jsonb_array_elements_text(l.event_ids) AS held (id)
CROSS JOIN LATERAL (
    SELECT d.event_id, d.attempts, d.key
    FROM django_events_delivery AS d
    WHERE d.consumer_id = l.consumer_id AND d.event_id = held.id::bigint AND d.token = l.token
    LIMIT 1
) AS d
WHERE l.token = given_token
ORDER BY d.event_id
    LOOP
        ids := ids || line.event_id;
        attempts := attempts || line.attempts;
        keys := keys || line.key::text;
    END LOOP;
END
$function$;

CREATE FUNCTION django_events_claim_of(
    root regclass,
    consumer text,
    given_most integer,
    lease interval,
    of_topic text,
    worker text,
    since timestamptz,
    until timestamptz,
    most_bytes bigint
) RETURNS TABLE (
    token bigint, topic text, id bigint, attempt integer, type text, key text, value jsonb, body bytea, metadata jsonb,
    published_at timestamptz, logged_at timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET row_security = off
SET plan_cache_mode = force_custom_plan SET lock_timeout = '5s'
AS $function$
#variable_conflict use_column
DECLARE
    whose record;
    log regclass;
    got record;
    line record;
    one record;
    given_consumer_id integer;
    given_consumer_ids integer[];
    given_token bigint;
    given_event_id bigint;
    given_kept bigint[];
    given_rest bigint[];
    given_new_token bigint;
    at integer;
    number integer;
    careful boolean;
    why text;
    known boolean := false;
BEGIN
    PERFORM set_config(
        'search_path', 'pg_catalog, ' || quote_ident(n.nspname) || ', pg_temp', true
    )
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = root;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'Events are claimed and settled at READ COMMITTED: a transaction at % does not see what others claim meanwhile.',
            upper(current_setting('transaction_isolation')) USING ERRCODE = '25001';
    END IF;
    IF given_most IS NULL OR given_most NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'most is %, expected a number from 1 to 10000.', given_most USING ERRCODE = '22023';
    END IF;
    IF lease NOT BETWEEN interval '1 second' AND interval '1 day' THEN
        RAISE EXCEPTION 'lease is %, expected an interval from 1 second to 1 day.', lease USING ERRCODE = '22023';
    END IF;
    IF most_bytes IS NULL OR most_bytes < 0 THEN
        RAISE EXCEPTION 'most_bytes is %, expected a number from 0.', most_bytes USING ERRCODE = '22023';
    END IF;
    FOR whose IN
        SELECT c.id, c.topic_id, t.name::text AS topic, c.mode, c.ordered, c.lease, (c.retry ->> 'attempts')::integer AS attempts
        FROM django_events_consumer AS c
        JOIN django_events_topic AS t ON t.id = c.topic_id
        WHERE c.name = consumer AND (of_topic IS NULL OR t.name = of_topic)
        ORDER BY c.id
    LOOP
        IF whose.mode <> 'queue' THEN
            RAISE EXCEPTION 'Consumer "%" is no queue: its events have no status of their own.', consumer
                USING ERRCODE = 'DE005', HINT = 'Declare it with mode="queue", or by queue(), to claim its events.';
        END IF;
        known := true;
        log := django_events_log_of(root, whose.topic_id);
        given_consumer_id := whose.id;
        given_consumer_ids := ARRAY[whose.id];
        FOR line IN
UPDATE django_events_position
SET served_at = clock_timestamp()
WHERE id = ANY(
    ARRAY(
        SELECT p.id
        FROM django_events_position AS p
        JOIN django_events_consumer AS c ON c.id = p.consumer_id
        WHERE p.consumer_id = ANY(given_consumer_ids::int[])
            AND p.partition = -1
            AND c.expires_after IS NOT NULL
            AND (p.served_at IS NULL OR p.served_at < clock_timestamp() - least(c.expires_after / 10, interval '1 minute'))
        FOR NO KEY UPDATE OF p SKIP LOCKED
    )
)
RETURNING id
        LOOP
            NULL;
        END LOOP;
        LOOP
            got := django_events_lease_of(
                log, whose.topic_id, whose.id, whose.ordered, given_most, coalesce(lease, whose.lease),
                left(coalesce(
                    worker, coalesce(nullif(current_setting('application_name'), ''), 'SQL') || ':' || pg_backend_pid()
                ), 200),
                since, until
            );
            EXIT WHEN got.ids IS NULL;
            given_token := got.token;
            at := 1;
            WHILE at <= cardinality(got.ids) LOOP
                given_event_id := got.ids[at];
                careful := got.lost_token IS NOT NULL OR got.attempts[at] > 0;
                why := NULL;
                given_kept := ARRAY[]::bigint[];
                IF NOT careful THEN
                    FOR line IN
                        SELECT e.*
                        FROM django_events_read_of(
                            log, whose.topic_id, whose.id,
                            (
                                SELECT array_agg(run.id)
                                FROM unnest(got.ids, got.attempts) WITH ORDINALITY AS run (id, attempts, index)
                                WHERE run.index >= at AND run.index < coalesce(
                                    (
                                        SELECT min(next.index)
                                        FROM unnest(got.attempts) WITH ORDINALITY AS next (attempts, index)
                                        WHERE next.index > at AND next.attempts > 0
                                    ),
                                    cardinality(got.ids) + 1
                                )
                            ),
                            most_bytes
                        ) AS e
                    LOOP
                        IF line.cut THEN
                            careful := given_kept = ARRAY[]::bigint[] AND line.id = given_event_id;
                            EXIT;
                        END IF;
                        EXIT WHEN given_kept = ARRAY[]::bigint[] AND line.id <> given_event_id;
                        given_kept := given_kept || line.id;
                        RETURN QUERY SELECT
                            given_token, whose.topic, line.id, 1, line.type::text, line.key::text, line.value::jsonb, line.body,
                            line.metadata::jsonb, line.published_at::timestamptz, line.logged_at::timestamptz;
                    END LOOP;
                END IF;
                IF careful THEN
                    number := got.attempts[at];
                    IF number >= whose.attempts THEN
                        why := format(
                            'WorkerEnded: No attempt is left. %s are counted, and the last one never came back: its worker '
                            'ended or froze.', number
                        );
                    ELSE
                        FOR line IN
UPDATE django_events_delivery
SET attempts = attempts + 1
WHERE consumer_id = given_consumer_id AND event_id = given_event_id AND token = given_token
RETURNING attempts,
    CASE
        WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true)
    END
                        LOOP
                            number := line.attempts;
                        END LOOP;
                        SELECT e.* INTO one FROM django_events_read_of(
                            log, whose.topic_id, whose.id, ARRAY[given_event_id], 1::bigint << 50
                        ) AS e;
                        IF one.id IS NOT NULL AND one.cut THEN
                            why := format(
                                'UnreadableEvent: The payload of event %s/%s, %s bytes as they are stored, can''t be read: '
                                'it has numbers of more than 4,300 digits, or 900 decimals, or is nested more than 5,000 deep, which is not made into text. It stays in the log, and so does the copy that a dead letter has.',
                                whose.topic, given_event_id, to_char(one.size, 'FM999,999,999,999,999')
                            );
                        ELSIF one.id IS NOT NULL THEN
                            given_kept := ARRAY[given_event_id];
                            RETURN QUERY SELECT
                                given_token, whose.topic, one.id, number, one.type::text, one.key::text, one.value::jsonb, one.body,
                                one.metadata::jsonb, one.published_at::timestamptz, one.logged_at::timestamptz;
                        END IF;
                    END IF;
                END IF;
                IF given_kept <> ARRAY[]::bigint[] THEN
                    given_rest := ARRAY(SELECT left_over.id FROM unnest(got.ids[at:]) AS left_over (id) WHERE left_over.id <> ALL(given_kept));
                    IF given_rest <> ARRAY[]::bigint[] AND got.lost_token IS NULL THEN
                        PERFORM django_events_settle_of(whose.id, given_token, ARRAY[]::bigint[], false, given_rest);
                    ELSIF given_rest <> ARRAY[]::bigint[] THEN
                        given_new_token := ('x' || right(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint
                            & 9223372036854775807;
                        FOR line IN
WITH mine AS MATERIALIZED (
    UPDATE django_events_deliverylease
    SET event_ids = to_jsonb(given_kept::bigint[])
    WHERE token = given_token
    RETURNING consumer_id, holder
),
parted AS (
    UPDATE django_events_delivery AS d
    SET token = given_new_token
    FROM mine
    WHERE d.consumer_id = given_consumer_id AND d.event_id = ANY(given_rest::bigint[]) AND d.token = given_token
    RETURNING d.event_id
),
lease AS (
    INSERT INTO django_events_deliverylease (token, consumer_id, leased_until, holder, event_ids)
    SELECT given_new_token, mine.consumer_id, clock_timestamp(), mine.holder, jsonb_agg(parted.event_id)
    FROM mine
    CROSS JOIN parted
    GROUP BY mine.consumer_id, mine.holder
)
SELECT mine.consumer_id FROM mine
                        LOOP
                            NULL;
                        END LOOP;
                    END IF;
                    RETURN;
                END IF;
                IF why IS NOT NULL THEN
                    PERFORM django_events_settle_of(
                        whose.id, given_token, ARRAY[given_event_id], at = cardinality(got.ids),
                        given_passed => given_event_id, given_outcome => 'dead'
                    );
                    PERFORM django_events_bury_of(log, whose.topic_id, whose.id, given_event_id, number, why);
                    PERFORM django_events_count_of(whose.id, 0, 1, 1);
                ELSIF given_event_id > (
                    SELECT greatest(h.id_floor, h.compacted_until) FROM django_events_topichead AS h
                    WHERE h.topic_id = whose.topic_id
                ) THEN
                    RAISE EXCEPTION 'Event %/% is missing: it is not in the log, and retention has not dropped it.',
                        whose.topic, given_event_id USING ERRCODE = 'DE006';
                ELSE
                    PERFORM django_events_settle_of(
                        whose.id, given_token, ARRAY[given_event_id], at = cardinality(got.ids), given_history => false
                    );
                END IF;
                at := at + 1;
            END LOOP;
        END LOOP;
    END LOOP;
    IF NOT known THEN
        RAISE EXCEPTION 'There is no queue consumer "%"% in this database.',
            consumer, coalesce(format(' of topic "%s"', of_topic), '')
            USING ERRCODE = 'DE005', HINT = 'Declare it in an app''s events.py and run manage.py migrate.';
    END IF;
END
$function$;

CREATE FUNCTION django_events_ack_of(root regclass, given_token bigint, of_ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET row_security = off
SET plan_cache_mode = force_custom_plan SET lock_timeout = '5s'
AS $function$
DECLARE
    held record;
    done bigint[];
BEGIN
    PERFORM set_config(
        'search_path', 'pg_catalog, ' || quote_ident(n.nspname) || ', pg_temp', true
    )
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = root;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'Events are claimed and settled at READ COMMITTED: a transaction at % does not see what others claim meanwhile.',
            upper(current_setting('transaction_isolation')) USING ERRCODE = '25001';
    END IF;
    held := django_events_under_token(given_token);
    IF held.ids IS NULL THEN
        RAISE EXCEPTION 'No events are claimed under the token %: they were settled, or the lease was over and another worker took '
        'them over, or they were rewound. Nothing was changed.', given_token USING ERRCODE = 'DE004';
    END IF;
    done := ARRAY(SELECT h.id FROM unnest(held.ids) AS h (id) WHERE of_ids IS NULL OR h.id = ANY(of_ids) ORDER BY h.id);
    IF cardinality(done) > 0 THEN
        PERFORM django_events_settle_of(
            held.consumer_id, given_token, done, cardinality(done) = cardinality(held.ids)
        );
        PERFORM django_events_count_of(held.consumer_id, cardinality(done), 0, 0);
    END IF;
    RETURN done;
END
$function$;

CREATE FUNCTION django_events_nack_of(root regclass, given_token bigint, of_ids bigint[], delay interval, error text)
RETURNS bigint[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET row_security = off
SET plan_cache_mode = force_custom_plan SET lock_timeout = '5s'
AS $function$
DECLARE
    held record;
    asked bigint[];
    failed bigint;
    at integer;
    attempt integer;
    said text;
    seconds double precision;
    blocked bigint[];
    pauses jsonb;
BEGIN
    PERFORM set_config(
        'search_path', 'pg_catalog, ' || quote_ident(n.nspname) || ', pg_temp', true
    )
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = root;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'Events are claimed and settled at READ COMMITTED: a transaction at % does not see what others claim meanwhile.',
            upper(current_setting('transaction_isolation')) USING ERRCODE = '25001';
    END IF;
    IF delay NOT BETWEEN interval '0' AND interval '3650 days' THEN
        RAISE EXCEPTION 'delay is %, expected an interval from zero to ten years.', delay USING ERRCODE = '22023';
    END IF;
    held := django_events_under_token(given_token);
    IF held.ids IS NULL THEN
        RAISE EXCEPTION 'No events are claimed under the token %: they were settled, or the lease was over and another worker took '
        'them over, or they were rewound. Nothing was changed.', given_token USING ERRCODE = 'DE004';
    END IF;
    asked := ARRAY(SELECT h.id FROM unnest(held.ids) AS h (id) WHERE of_ids IS NULL OR h.id = ANY(of_ids) ORDER BY h.id);
    said := CASE
        WHEN coalesce(error, '') <> '' THEN 'Reported: ' || error
        ELSE 'RetryLater: to be tried again after ' || coalesce(delay, interval '0')
    END;
    FOREACH failed IN ARRAY asked LOOP
        held := django_events_under_token(given_token);
        at := array_position(held.ids, failed);
        CONTINUE WHEN at IS NULL;
        attempt := greatest(held.attempts[at], 1);
        IF attempt >= (held.retry ->> 'attempts')::integer THEN
            PERFORM django_events_settle_of(
                held.consumer_id, given_token, ARRAY[failed], cardinality(held.ids) = 1,
                given_passed => failed, given_outcome => 'dead', given_error => left(said, 2000)
            );
            PERFORM django_events_bury_of(
                django_events_log_of(root, held.topic_id), held.topic_id, held.consumer_id, failed, attempt, said
            );
            PERFORM django_events_count_of(held.consumer_id, 0, 1, 1);
            CONTINUE;
        END IF;
        blocked := ARRAY(
            SELECT h.id
            FROM unnest(held.ids, held.keys) AS h (id, key)
            WHERE held.ordered AND h.key = held.keys[at] AND h.id > failed
        );
        pauses := held.retry -> 'pauses';
        seconds := CASE
            WHEN coalesce(error, '') = '' THEN 0
            WHEN jsonb_array_length(pauses) > 0 THEN (pauses ->> (least(attempt, jsonb_array_length(pauses)) - 1))::float8
            ELSE least(
                (held.retry ->> 'base')::float8 * 2::float8 ^ least(attempt - 1, 100), (held.retry ->> 'cap')::float8
            )
        END;
        PERFORM django_events_settle_of(
            held.consumer_id, given_token, ARRAY[]::bigint[], cardinality(held.ids) = 1 + cardinality(blocked), blocked,
            given_failed => failed, given_attempts => attempt, given_error => left(said, 2000),
            given_pause => coalesce(delay, make_interval(secs => seconds * (1 - random() / 4)))
        );
        PERFORM django_events_count_of(held.consumer_id, 0, 1, 0);
    END LOOP;
    RETURN asked;
END
$function$;

CREATE FUNCTION django_events_extend_of(root regclass, given_token bigint, of_lease interval) RETURNS bigint[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET row_security = off
SET plan_cache_mode = force_custom_plan SET lock_timeout = '5s'
AS $function$
DECLARE
    held record;
    line record;
    given_lease interval;
BEGIN
    PERFORM set_config(
        'search_path', 'pg_catalog, ' || quote_ident(n.nspname) || ', pg_temp', true
    )
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = root;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'Events are claimed and settled at READ COMMITTED: a transaction at % does not see what others claim meanwhile.',
            upper(current_setting('transaction_isolation')) USING ERRCODE = '25001';
    END IF;
    IF of_lease NOT BETWEEN interval '1 second' AND interval '1 day' THEN
        RAISE EXCEPTION 'lease is %, expected an interval from 1 second to 1 day.', of_lease USING ERRCODE = '22023';
    END IF;
    held := django_events_under_token(given_token);
    IF held.ids IS NULL THEN
        RAISE EXCEPTION 'No events are claimed under the token %: they were settled, or the lease was over and another worker took '
        'them over, or they were rewound. Nothing was changed.', given_token USING ERRCODE = 'DE004';
    END IF;
    given_lease := coalesce(of_lease, held.lease);
    FOR line IN
UPDATE django_events_deliverylease SET leased_until = clock_timestamp() + given_lease WHERE token = given_token RETURNING token
    LOOP
        NULL;
    END LOOP;
    RETURN held.ids;
END
$function$;

CREATE FUNCTION django_events_claim(
    consumer text,
    most integer DEFAULT 1,
    lease interval DEFAULT NULL,
    of_topic text DEFAULT NULL,
    worker text DEFAULT NULL,
    received_since timestamptz DEFAULT NULL,
    received_until timestamptz DEFAULT NULL,
    most_bytes bigint DEFAULT 33554432
) RETURNS TABLE (
    token bigint, topic text, id bigint, attempt integer, type text, key text, value jsonb, body bytea, metadata jsonb,
    published_at timestamptz, logged_at timestamptz
)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT c.*
    FROM django_events_claim_of(
        'django_events_event'::regclass, consumer, most, lease, of_topic, worker, received_since, received_until, most_bytes
    ) AS c;
END;

CREATE FUNCTION django_events_ack(token bigint, ids bigint[] DEFAULT NULL) RETURNS bigint[]
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT django_events_ack_of('django_events_event'::regclass, token, ids);
END;

CREATE FUNCTION django_events_nack(
    token bigint, ids bigint[] DEFAULT NULL, delay interval DEFAULT NULL, error text DEFAULT ''
) RETURNS bigint[]
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT django_events_nack_of('django_events_event'::regclass, token, ids, delay, error);
END;

CREATE FUNCTION django_events_extend(token bigint, lease interval DEFAULT NULL) RETURNS bigint[]
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT django_events_extend_of('django_events_event'::regclass, token, lease);
END;

REVOKE ALL ON FUNCTION
    django_events_claim(text, integer, interval, text, text, timestamptz, timestamptz, bigint),
    django_events_ack(bigint, bigint[]),
    django_events_nack(bigint, bigint[], interval, text),
    django_events_extend(bigint, interval)
FROM PUBLIC
"""

DROP_WORKER_FUNCTIONS = """
DROP FUNCTION django_events_extend(bigint, interval);
DROP FUNCTION django_events_nack(bigint, bigint[], interval, text);
DROP FUNCTION django_events_ack(bigint, bigint[]);
DROP FUNCTION django_events_claim(text, integer, interval, text, text, timestamptz, timestamptz, bigint);
DROP FUNCTION django_events_extend_of(regclass, bigint, interval);
DROP FUNCTION django_events_nack_of(regclass, bigint, bigint[], interval, text);
DROP FUNCTION django_events_ack_of(regclass, bigint, bigint[]);
DROP FUNCTION django_events_claim_of(regclass, text, integer, interval, text, text, timestamptz, timestamptz, bigint);
DROP FUNCTION django_events_under_token(bigint);
DROP FUNCTION django_events_lease_of(regclass, integer, integer, boolean, integer, interval, text, timestamptz, timestamptz);
DROP FUNCTION django_events_fill_of(regclass, integer, integer);
DROP FUNCTION django_events_end_of(bigint);
DROP FUNCTION django_events_count_of(integer, bigint, bigint, bigint);
DROP FUNCTION django_events_bury_of(regclass, integer, integer, bigint, integer, text);
DROP FUNCTION django_events_settle_of(integer, bigint, bigint[], boolean, bigint[], bigint, text, bigint, integer, interval, text, boolean, boolean);
DROP FUNCTION django_events_read_of(regclass, integer, integer, bigint[], bigint)
"""
