-- name: readable
-- Part of `bounded`: events of the log, and dead letters that are handled again and are not there any more.
--
-- Parts: log (of `read_deliveries`), buried (of `read_dead_letters`).
SELECT * FROM (
{log}
        ) AS there
        UNION ALL
        SELECT {event_columns of again} FROM (
{buried}
        ) AS again
        WHERE again.id NOT IN (
            SELECT e.id FROM %1$s AS e WHERE e.topic_id = $1 AND e.id = ANY($2) AND e.id >= %2$s AND e.id <= %3$s
        )


-- name: read_of
-- Some events of one consumer, in order, as many as have so many bytes together: from the log, or from dead letters that
-- are handled again.
--
-- Parts: bounded (a text for format(): the log, and the least and the greatest id are its arguments; $1 and following are
-- topic_id, ids, consumer_id and bytes).
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
{bounded}
        $bounded$,
        log, (SELECT min(i) FROM unnest(ids) AS i), (SELECT max(i) FROM unnest(ids) AS i)
    ) USING topic_id, ids, consumer_id, bytes;
END
$function$


-- name: settle_of
-- `settle_deliveries`. Answers with how many deliveries were deleted; an error if the lease was lost.
--
-- Parts: settle_deliveries.
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
{settle_deliveries}
    LOOP
        IF line."case" IS NOT FALSE AND line.count = cardinality(given_done) THEN
            RETURN line.count;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'The lease of the token % was lost: it was taken over or rewound. Nothing was settled.', given_token
        USING ERRCODE = 'DE004';
END
$function$


-- name: bury_of
-- `bury_unread`, with the error that a program reported.
--
-- Parts: bury_unread (a text for format(): the log is its argument; $1 and following are topic_id, event_id, consumer_id,
-- attempts, error, traceback and fingerprint), differing (see fingerprints.py).
CREATE FUNCTION django_events_bury_of(
    log regclass, topic_id integer, consumer_id integer, event_id bigint, attempts integer, error text
) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    EXECUTE format(
        $bury$
{bury_unread}
        $bury$,
        log
    ) USING
        topic_id, event_id, consumer_id, attempts, left(error, {longest_error}), right(error || E'\n', {longest_traceback}),
        left(
            regexp_replace(
                rtrim(substring(btrim(error, E' \t\r\n') FROM '^[^\n\r]*')),
                $differing${differing}$differing$,
                '#', 'gi'
            ),
            {longest_fingerprint}
        );
END
$function$


-- name: count_of
-- Add to the counts of a queue consumer, and move its position up, as `flush` does; so nothing before it is looked at.
--
-- Where another session keeps the position locked for longer than a moment, as a program that froze before COMMIT may, the
-- counts are given up: the consumer must go on.
-- Parts: lock_position, move_up, add_counts.
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
{lock_position}
    LOOP
        FOR line IN
{move_up}
        LOOP
            NULL;
        END LOOP;
        RETURN;
    END LOOP;
    PERFORM set_config('lock_timeout', '500ms', true);
    BEGIN
        FOR line IN
{add_counts}
        LOOP
            NULL;
        END LOOP;
    EXCEPTION WHEN lock_not_available THEN
        NULL;
    END;
    PERFORM set_config('lock_timeout', before, true);
END
$function$


-- name: end_of
-- End the connection of a worker that lost a lease, and wait for a while until its locks are gone, as `end_holder` does.
--
-- Parts: end_holder, wait_for_holder.
CREATE FUNCTION django_events_end_of(given_token bigint) RETURNS void
LANGUAGE plpgsql AS $function$
DECLARE
    line record;
BEGIN
    FOR line IN
{end_holder}
    LOOP
        NULL;
    END LOOP;
    FOR line IN
{wait_for_holder}
    LOOP
        NULL;
    END LOOP;
EXCEPTION WHEN lock_not_available OR insufficient_privilege THEN
    NULL;
END
$function$


-- name: fill_of
-- Make deliveries of the next part of the log, as `fill_some` does; answers with whether there was one.
--
-- A filter that fails, and a missing event, are errors: nothing is passed over. The consumer becomes live elsewhere: that
-- takes the lock of the topic's head, which a transaction of the caller's might keep for long.
-- Parts: lock_filling, last_readable (for format(): log, topic_id, after), pending_deliveries, filled, fill
-- (for format(): log, consumer_id, topic_id, after, upper), at_once.
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
    room bigint := {at_once};
BEGIN
    FOR line IN
{lock_filling}
    LOOP
        after := line.filled_until;
        given_most := line.max_pending;
    END LOOP;
    IF after IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format($last${last_readable}$last$, log, given_topic_id, after) INTO last;
    last := coalesce(last, after);
    IF given_most IS NOT NULL THEN
        FOR line IN
{pending_deliveries}
        LOOP
            room := given_most - line.count;
        END LOOP;
        IF room < (given_most + 1) / 2 THEN
            room := 0;
        END IF;
    END IF;
    upper := least(last, after + {at_once}, after + room);
    IF upper = after THEN
        RETURN false;
    END IF;
    EXECUTE format(
        $fill$
{fill}
        $fill$,
        log, given_consumer_id, given_topic_id, after, upper
    ) INTO made, there;
    IF there < upper - after THEN
        beyond := least(upper, greatest(after, (
            SELECT greatest(h.id_floor, h.compacted_until) FROM django_events_topichead AS h WHERE h.topic_id = given_topic_id
        )));
        EXECUTE format($counted${count_behind}$counted$, log, given_topic_id, beyond, upper) INTO there;
        IF there < upper - beyond AND beyond = least(upper, greatest(after, (
            SELECT greatest(h.id_floor, h.compacted_until) FROM django_events_topichead AS h WHERE h.topic_id = given_topic_id
        ))) THEN
            RAISE EXCEPTION 'One of the events % to % of a topic is missing: it is not in %, and retention has not dropped it.',
                after + 1, upper, log USING ERRCODE = 'DE006';
        END IF;
    END IF;
    given_filled_until := upper;
    FOR line IN
{filled}
    LOOP
        NULL;
    END LOOP;
    RETURN true;
END
$function$


-- name: lease_of
-- Lease the next deliveries of one consumer, as `Queue.claim` does: those of a lease that is over come first, together.
--
-- Answers with the token, the lost one of a lease that was taken over, and the deliveries, with the attempts that are
-- counted and their keys; without ids if there is nothing. What `enter` sets for plans ends with the function.
-- Parts: enter, take_over, claim_ordered, claim_unordered, overdue_leases, smallest_window, largest_window.
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
    given_window integer := greatest({smallest_window}, 2 * given_most);
    line record;
    ends bigint;
    frozen boolean;
    ended boolean := false;
BEGIN
    LOOP
        given_token := ('x' || right(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint & 9223372036854775807;
        token := given_token;
        FOR line IN
{enter}
        LOOP
            NULL;
        END LOOP;
        FOR line IN
{take_over}
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
{claim_ordered}
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
{claim_unordered}
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
            given_window := least(2 * given_window, {largest_window});
            CONTINUE;
        END IF;
        given_after := 0;
        frozen := false;
        IF NOT ended THEN
            FOR line IN
{overdue_leases}
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
$function$


-- name: lease_lost
-- Part of a function: an error that says that nothing is claimed under a token.
RAISE EXCEPTION 'No events are claimed under the token %: they were settled, or the lease was over and another worker took '
        'them over, or they were rewound. Nothing was changed.', given_token USING ERRCODE = 'DE004'


-- name: at_home
-- Part of a function: from here on, names are looked up in PostgreSQL's own schema and in that of the log, alone.
--
-- A setting of the function's own, so it ends with the function.
PERFORM set_config(
        'search_path', 'pg_catalog, ' || quote_ident(n.nspname) || ', pg_temp', true
    )
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = root;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'Events are claimed and settled at READ COMMITTED: a transaction at % does not see what others claim meanwhile.',
            upper(current_setting('transaction_isolation')) USING ERRCODE = '25001';
    END IF


-- name: match_registered
-- Part of a condition on an event `e`: a registered consumer `c` wants it. Filters are data here, as in `deliver`.
(c.types IS NULL OR c.types @> to_jsonb(e.type)
            OR EXISTS (SELECT FROM jsonb_array_elements_text(c.type_expressions) AS x WHERE e.type ~ x))
        AND (c.keys IS NULL OR c.keys @> to_jsonb(e.key)
            OR EXISTS (SELECT FROM jsonb_array_elements_text(c.key_expressions) AS x WHERE e.key ~ x))
        AND (c."where" IS NULL
            OR coalesce(jsonb_path_match(e.value, c."where"::jsonpath, coalesce(c.vars, jsonb_build_object()), true), false))
        AND (c.metadata IS NULL
            OR coalesce(jsonb_path_match(e.metadata, c.metadata::jsonpath, coalesce(c.vars, jsonb_build_object()), true), false))


-- name: settings
-- Part of a function: its settings, see `sql.BY_INDEX`. A plan is made for each call, as for every statement of workers.
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET row_security = off
SET plan_cache_mode = force_custom_plan SET lock_timeout = '5s'


-- name: claim_of
-- Claim the next events of a queue consumer, as `hand_out` does.
--
-- An event that may have ended a worker comes alone with its attempt counted, or becomes a dead letter if none is left.
-- Parts: settings, at_home, note_served, count_delivery_attempt, split_lease, too_long.
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
{settings}
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
    {at_home};
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
{note_served}
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
                    -- The run of events that need no care, as many as have room; the first of them may be too large.
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
{count_delivery_attempt}
                        LOOP
                            number := line.attempts;
                        END LOOP;
                        SELECT e.* INTO one FROM django_events_read_of(
                            log, whose.topic_id, whose.id, ARRAY[given_event_id], 1::bigint << 50
                        ) AS e;
                        IF one.id IS NOT NULL AND one.cut THEN
                            why := format(
                                'UnreadableEvent: The payload of event %s/%s, %s bytes as they are stored, can''t be read: '
                                '{too_long}. It stays in the log, and so does the copy that a dead letter has.',
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
{split_lease}
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
$function$


-- name: under_token
-- The deliveries that a token has now, and whose they are, with the row of the lease locked.
--
-- Without ids if there is no lease of this token. In statements of their own, so that the second one sees what was
-- committed by the session that had the row locked. PostgreSQL releases that session's lock of the token a moment after
-- its row: settling at once would take it for a takeover. Parts: deliveries_of_token.
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
{deliveries_of_token}
    LOOP
        ids := ids || line.event_id;
        attempts := attempts || line.attempts;
        keys := keys || line.key::text;
    END LOOP;
END
$function$


-- name: ack_of
-- Settle events as handled. Answers with those that were settled.
--
-- Parts: settings, at_home, lease_lost.
CREATE FUNCTION django_events_ack_of(root regclass, given_token bigint, of_ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql
{settings}
AS $function$
DECLARE
    held record;
    done bigint[];
BEGIN
    {at_home};
    held := django_events_under_token(given_token);
    IF held.ids IS NULL THEN
        {lease_lost};
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
$function$


-- name: nack_of
-- Settle events as failed, each with an attempt, as `nack` does. Answers with those that were claimed.
--
-- In an ordered queue, a failed event gives back the later ones of its key.
-- Parts: settings, at_home, lease_lost.
CREATE FUNCTION django_events_nack_of(root regclass, given_token bigint, of_ids bigint[], delay interval, error text)
RETURNS bigint[]
LANGUAGE plpgsql
{settings}
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
    {at_home};
    IF delay NOT BETWEEN interval '0' AND interval '3650 days' THEN
        RAISE EXCEPTION 'delay is %, expected an interval from zero to ten years.', delay USING ERRCODE = '22023';
    END IF;
    held := django_events_under_token(given_token);
    IF held.ids IS NULL THEN
        {lease_lost};
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
                given_passed => failed, given_outcome => 'dead', given_error => left(said, {longest_error})
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
            given_failed => failed, given_attempts => attempt, given_error => left(said, {longest_error}),
            given_pause => coalesce(delay, make_interval(secs => seconds * (1 - random() / 4)))
        );
        PERFORM django_events_count_of(held.consumer_id, 0, 1, 0);
    END LOOP;
    RETURN asked;
END
$function$


-- name: extend_of
-- Let a lease end after a time from now on, as `extend` does. Answers with the events that are left under it.
--
-- Parts: settings, at_home, lease_lost, extend_lease.
CREATE FUNCTION django_events_extend_of(root regclass, given_token bigint, of_lease interval) RETURNS bigint[]
LANGUAGE plpgsql
{settings}
AS $function$
DECLARE
    held record;
    line record;
    given_lease interval;
BEGIN
    {at_home};
    IF of_lease NOT BETWEEN interval '1 second' AND interval '1 day' THEN
        RAISE EXCEPTION 'lease is %, expected an interval from 1 second to 1 day.', of_lease USING ERRCODE = '22023';
    END IF;
    held := django_events_under_token(given_token);
    IF held.ids IS NULL THEN
        {lease_lost};
    END IF;
    given_lease := coalesce(of_lease, held.lease);
    FOR line IN
{extend_lease}
    LOOP
        NULL;
    END LOOP;
    RETURN held.ids;
END
$function$


-- name: claim
-- What a program calls: it has the rights of its owner, and holds the log and the function inside by their OIDs.
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
END


-- name: ack
-- As `claim`.
CREATE FUNCTION django_events_ack(token bigint, ids bigint[] DEFAULT NULL) RETURNS bigint[]
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT django_events_ack_of('django_events_event'::regclass, token, ids);
END


-- name: nack
-- As `claim`.
CREATE FUNCTION django_events_nack(
    token bigint, ids bigint[] DEFAULT NULL, delay interval DEFAULT NULL, error text DEFAULT ''
) RETURNS bigint[]
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT django_events_nack_of('django_events_event'::regclass, token, ids, delay, error);
END


-- name: extend
-- As `claim`.
CREATE FUNCTION django_events_extend(token bigint, lease interval DEFAULT NULL) RETURNS bigint[]
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT django_events_extend_of('django_events_event'::regclass, token, lease);
END


-- name: revoke_all
-- Only the owner calls them, and the roles that are given the right.
REVOKE ALL ON FUNCTION
    django_events_claim(text, integer, interval, text, text, timestamptz, timestamptz, bigint),
    django_events_ack(bigint, bigint[]),
    django_events_nack(bigint, bigint[], interval, text),
    django_events_extend(bigint, interval)
FROM PUBLIC
