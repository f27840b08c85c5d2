"""Topics, the buffer, the partitioned log, consumers, and the functions that publish."""

import datetime
import uuid

import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import django_events.models.functions
from django_events.migrating import OnPostgreSQL
from django_events.migrations._worker_functions import CREATE_WORKER_FUNCTIONS, DROP_WORKER_FUNCTIONS

# The hot table: rows come and go all the time. It is vacuumed early and at full speed, and its file is
# never cut at the end, because that takes a lock that publishers would wait for.
TUNE_BUFFER = """
ALTER TABLE django_events_bufferedevent ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (CACHE 1);
ALTER TABLE django_events_bufferedevent SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 50000,
    vacuum_truncate = off,
    toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 5000,
    toast.autovacuum_vacuum_cost_delay = 0,
    toast.vacuum_truncate = off
);
ALTER TABLE django_events_topichead SET (fillfactor = 50)
"""

# Scheduled events and dedup keys come and go as well. No two events have the same ticket, now or later.
TUNE_COMING_AND_GOING = """
ALTER TABLE django_events_scheduledevent ALTER COLUMN id DROP IDENTITY;
ALTER TABLE django_events_scheduledevent
    ALTER COLUMN id SET DEFAULT nextval('django_events_bufferedevent_id_seq');
ALTER TABLE django_events_scheduledevent SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_threshold = -1,
    vacuum_truncate = off,
    toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 5000,
    toast.autovacuum_vacuum_cost_delay = 0,
    toast.vacuum_truncate = off
);
ALTER TABLE django_events_dedupkey SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_threshold = -1,
    vacuum_truncate = off
)
"""

# One list partition per topic, each split by id into segments. They are attached when topics are
# made and as the log grows, never created in place.
CREATE_LOG = """
CREATE TABLE django_events_event (
    topic_id integer NOT NULL,
    partition integer NOT NULL,
    id bigint NOT NULL,
    number bigint NOT NULL,
    published_at timestamptz NOT NULL,
    logged_at timestamptz NOT NULL,
    type varchar(200) NOT NULL,
    key varchar(512),
    value jsonb,
    body bytea,
    metadata jsonb NOT NULL,
    PRIMARY KEY (topic_id, id)
) PARTITION BY LIST (topic_id)
"""

# 7235707310506407027 is 'djevents' in ASCII: the lock by which publishers learn that the transfer
# sleeps. They hold it shared until they end, so the transfer can't fall asleep before it saw them.
# Where transactions can be prepared, a NOTIFY would forbid that: there, polling finds the events.
#
# Operators and functions of PostgreSQL are named with their schema, and types are exact: what others make in a schema
# of the search_path is never a better match. Our own names are found by the caller's search_path, so that the
# schema may be renamed, moved and restored elsewhere.
CREATE_FUNCTIONS = """
CREATE FUNCTION django_events_open(topic text, wake boolean DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql AS $function$
DECLARE
    topic_id integer;
    source text;
BEGIN
    SELECT t.id, t.mirror_of INTO topic_id, source
    FROM django_events_topic AS t
    WHERE t.name::text OPERATOR(pg_catalog.=) topic;
    IF topic_id IS NULL THEN
        RAISE EXCEPTION 'There is no topic "%" in this database.', topic
            USING ERRCODE = 'DE001', HINT = 'Declare it in an app''s events.py and run manage.py migrate. '
                'A migration that needs it earlier depends on django_events, or makes it with CreateTopic.';
    END IF;
    IF source OPERATOR(pg_catalog.<>) '' THEN
        RAISE EXCEPTION 'Topic "%" is a mirror of %: it has the events of that site only.', topic, source
            USING ERRCODE = 'DE007', HINT = 'Publish there, or to a topic of this site.';
    END IF;
    IF coalesce(wake, pg_catalog.current_setting('max_prepared_transactions') OPERATOR(pg_catalog.=) '0')
        AND NOT pg_catalog.pg_try_advisory_xact_lock_shared(7235707310506407027)
    THEN
        PERFORM pg_catalog.pg_notify('django_events', topic_id::pg_catalog.text);
    END IF;
    RETURN topic_id;
END
$function$;

-- The id of a topic, for queries of the log. It is declared IMMUTABLE so that the planner calls it, and opens the topic's
-- own segments only: a plan that is kept is made anew when a topic's tables come or go.
CREATE FUNCTION django_events_topic_id(topic text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $function$
DECLARE
    topic_id integer;
BEGIN
    SELECT t.id INTO topic_id FROM django_events_topic AS t WHERE t.name::text OPERATOR(pg_catalog.=) topic;
    IF topic_id IS NULL THEN
        RAISE EXCEPTION 'There is no topic "%" in this database.', topic
            USING ERRCODE = 'DE001', HINT = 'Declare it in an app''s events.py and run manage.py migrate.';
    END IF;
    RETURN topic_id;
END
$function$;

-- Answers with the value, or refuses one that no reader could make into text: that may be larger than memory. A small one
-- is not worth the look.
CREATE FUNCTION django_events_checked(value jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $function$
DECLARE
    unpacked jsonb;
    size integer;
BEGIN
    IF value IS NULL OR (
        pg_catalog.pg_column_size(value) OPERATOR(pg_catalog.<=) 4000
        AND pg_catalog.pg_column_compression(value) IS NULL
    ) THEN
        RETURN value;
    END IF;
    unpacked := pg_catalog.jsonb_path_query_first(value, 'strict $');
    size := pg_catalog.pg_column_size(unpacked);
    IF size OPERATOR(pg_catalog.<=) 4000 THEN
        RETURN value;
    END IF;
    IF (
        size OPERATOR(pg_catalog.>) 40000
        AND pg_catalog.jsonb_path_exists(unpacked, 'strict $.**{5001}')
    ) OR pg_catalog.jsonb_path_exists(unpacked, 'strict $.** ? (@.abs() >= 1e4300)') OR (
        size OPERATOR(pg_catalog.>) 256000
        AND pg_catalog.jsonb_path_exists(unpacked, 'strict $.** ? (1 - (@ * 0 + 1) / 3 * 3 < 1e-900)')
    ) THEN
        RAISE EXCEPTION 'No reader could make this JSON into text: it has numbers of more than 4,300 digits, or 900 '
            'decimals, or is nested more than 5,000 deep, and the text may be larger than memory.'
            USING ERRCODE = 'DE003', HINT = 'Publish it as body, or write such numbers as text and make it flatter. '
                'Of a captured table, exclude the column.';
    END IF;
    RETURN value;
END
$function$;

CREATE FUNCTION django_events_publish(
    topic text,
    value jsonb DEFAULT NULL,
    type text DEFAULT '',
    key text DEFAULT NULL,
    body bytea DEFAULT NULL,
    metadata jsonb DEFAULT '{}',
    "partition" integer DEFAULT NULL,
    wake boolean DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql AS $function$
DECLARE
    context text := pg_catalog.current_setting('django_events.context', true);
    ticket bigint;
BEGIN
    -- Here and not in the table: PostgreSQL prepares the CHECKs of a table anew for each INSERT.
    IF (value IS NULL) OPERATOR(pg_catalog.=) (body IS NULL) THEN
        RAISE EXCEPTION 'An event has exactly one of value and body.'
            USING ERRCODE = 'DE002', HINT = 'The JSON null is ''null'', not NULL.';
    END IF;
    -- What event_context() and handlers tell. What the event says itself wins.
    IF context OPERATOR(pg_catalog.<>) '' AND pg_catalog.jsonb_typeof(metadata) OPERATOR(pg_catalog.=) 'object' THEN
        metadata := context::pg_catalog.jsonb OPERATOR(pg_catalog.||) metadata;
    END IF;
    IF pg_catalog.pg_column_size(value) OPERATOR(pg_catalog.>) 4000
        OR pg_catalog.pg_column_size(metadata) OPERATOR(pg_catalog.>) 4000
        OR pg_catalog.pg_column_compression(value) IS NOT NULL
        OR pg_catalog.pg_column_compression(metadata) IS NOT NULL
    THEN
        PERFORM django_events_checked(value), django_events_checked(metadata);
    END IF;
    INSERT INTO django_events_bufferedevent (topic_id, partition, type, key, value, body, metadata)
    VALUES (
        django_events_open(topic, wake),
        django_events_publish.partition, django_events_publish.type, django_events_publish.key,
        django_events_publish.value, django_events_publish.body, django_events_publish.metadata
    )
    RETURNING id INTO ticket;
    RETURN ticket;
END
$function$;

CREATE FUNCTION django_events_schedule(
    topic text,
    publish_at timestamptz,
    value jsonb DEFAULT NULL,
    type text DEFAULT '',
    key text DEFAULT NULL,
    body bytea DEFAULT NULL,
    metadata jsonb DEFAULT '{}',
    "partition" integer DEFAULT NULL,
    wake boolean DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql AS $function$
DECLARE
    context text := pg_catalog.current_setting('django_events.context', true);
    ticket bigint;
BEGIN
    IF (value IS NULL) OPERATOR(pg_catalog.=) (body IS NULL) THEN
        RAISE EXCEPTION 'An event has exactly one of value and body.'
            USING ERRCODE = 'DE002', HINT = 'The JSON null is ''null'', not NULL.';
    END IF;
    -- What event_context() and handlers tell. What the event says itself wins.
    IF context OPERATOR(pg_catalog.<>) '' AND pg_catalog.jsonb_typeof(metadata) OPERATOR(pg_catalog.=) 'object' THEN
        metadata := context::pg_catalog.jsonb OPERATOR(pg_catalog.||) metadata;
    END IF;
    IF pg_catalog.pg_column_size(value) OPERATOR(pg_catalog.>) 4000
        OR pg_catalog.pg_column_size(metadata) OPERATOR(pg_catalog.>) 4000
        OR pg_catalog.pg_column_compression(value) IS NOT NULL
        OR pg_catalog.pg_column_compression(metadata) IS NOT NULL
    THEN
        PERFORM django_events_checked(value), django_events_checked(metadata);
    END IF;
    INSERT INTO django_events_scheduledevent (topic_id, publish_at, partition, type, key, value, body, metadata)
    VALUES (
        django_events_open(topic, wake), django_events_schedule.publish_at,
        django_events_schedule.partition, django_events_schedule.type, django_events_schedule.key,
        django_events_schedule.value, django_events_schedule.body, django_events_schedule.metadata
    )
    RETURNING id INTO ticket;
    RETURN ticket;
END
$function$;

-- A transaction that takes the same key waits for the one that took it first: only its end says which is new.
CREATE FUNCTION django_events_is_new(topic text, dedup_key text, dedup_window interval) RETURNS boolean
LANGUAGE plpgsql AS $function$
BEGIN
    INSERT INTO django_events_dedupkey AS taken (topic_id, key, expires_at)
    VALUES (
        django_events_open(topic, false), dedup_key,
        pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) dedup_window
    )
    ON CONFLICT ON CONSTRAINT django_events_dedupkey_pkey DO UPDATE
    SET expires_at = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) dedup_window
    WHERE taken.expires_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp();
    RETURN FOUND;
END
$function$
"""

DROP_FUNCTIONS = """
DROP FUNCTION django_events_is_new(text, text, interval);
DROP FUNCTION django_events_schedule(text, timestamptz, jsonb, text, text, bytea, jsonb, integer, boolean);
DROP FUNCTION django_events_publish(text, jsonb, text, text, bytea, jsonb, integer, boolean);
DROP FUNCTION django_events_checked(jsonb);
DROP FUNCTION django_events_topic_id(text);
DROP FUNCTION django_events_open(text, boolean)
"""

# Segments of the log come and go while the site runs, and only the owner of a table may make and drop them. The
# functions at the end do it with the owner's rights, for a role that owns nothing. They take ids and no names. The body of
# an SQL function holds the log's root, and the functions that it calls, by their OIDs: so it is this log and no
# other table, whatever the caller has in the search_path, and whatever the schema is called by then.
CREATE_SEGMENT_FUNCTIONS = r"""
CREATE FUNCTION django_events_log_of(root regclass, topic_id integer) RETURNS regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $function$
    SELECT format('%I.%I', n.nspname, format('%s_%s', c.relname, topic_id))::regclass
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = root
$function$;

-- An empty table like the log, beside it. It gets the rights that are given on the topic's log, so that readers go on
-- reading a topic by its own table.
CREATE FUNCTION django_events_make_table_of(log regclass, ending text, indexed boolean) RETURNS regclass
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    above record;
    given record;
    segment text;
BEGIN
    SELECT n.nspname, c.relname, c.relowner, c.relacl INTO above
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = log;
    segment := format('%I.%I', above.nspname, format('%s_%s', above.relname, ending));
    EXECUTE format('CREATE TABLE %s (LIKE %s%s)', segment, log, CASE WHEN indexed THEN ' INCLUDING INDEXES' ELSE '' END);
    FOR given IN SELECT acl.* FROM aclexplode(above.relacl) AS acl WHERE acl.grantee <> above.relowner LOOP
        EXECUTE format(
            'GRANT %s ON %s TO %s%s',
            given.privilege_type,
            segment,
            CASE WHEN given.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(given.grantee)) END,
            CASE WHEN given.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
        );
    END LOOP;
    RETURN segment;
END
$function$;

-- Readers and writers of the log go on meanwhile: only the new table is locked against them.
CREATE FUNCTION django_events_make_segment_of(log regclass, segment regclass, first bigint, ends bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF first IS NULL OR ends IS NULL OR first < 1 OR ends <= first THEN
        RAISE EXCEPTION 'A segment can''t hold the ids from % up to, not including, %.', first, ends
            USING ERRCODE = '22023';
    END IF;
    EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)', log, segment, first, ends);
END
$function$;

-- Its rows are looked through once, so no row is left outside.
CREATE FUNCTION django_events_cut_segment_of(log regclass, first bigint, ends bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    segment regclass;
BEGIN
    SELECT c.oid INTO segment
    FROM pg_inherits AS link
    JOIN pg_class AS c ON c.oid = link.inhrelid
    CROSS JOIN LATERAL (
        SELECT regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''(\d+)''\) TO \(''(\d+)''\)') AS parts
    ) AS bounds
    WHERE link.inhparent = log AND NOT link.inhdetachpending
        AND bounds.parts[1]::bigint = first AND ends > first AND ends <= bounds.parts[2]::bigint;
    IF segment IS NULL THEN
        RAISE EXCEPTION '% has no segment that begins at % and can end at %.', log, first, ends
            USING ERRCODE = '22023';
    END IF;
    EXECUTE format('ALTER TABLE %s DETACH PARTITION %s', log, segment);
    EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)', log, segment, first, ends);
END
$function$;

-- The oldest one, or an empty one: whichever role calls, the ids that are left have no gap.
CREATE FUNCTION django_events_drop_segment_of(log regclass, first bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    segment regclass;
    is_oldest boolean;
    has_events boolean;
BEGIN
    SELECT found.oid, found.is_oldest INTO segment, is_oldest
    FROM (
        SELECT c.oid, bounds.first, bounds.first = min(bounds.first) OVER () AS is_oldest
        FROM pg_inherits AS link
        JOIN pg_class AS c ON c.oid = link.inhrelid
        CROSS JOIN LATERAL (
            SELECT (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''(\d+)''\)'))[1]::bigint AS first
        ) AS bounds
        WHERE link.inhparent = log AND NOT link.inhdetachpending
    ) AS found
    WHERE found.first = django_events_drop_segment_of.first;
    IF segment IS NULL THEN
        RETURN false;
    END IF;
    IF NOT is_oldest THEN
        EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', log);  -- as DROP does, and in its order
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', segment) INTO has_events;
        IF has_events THEN
            RAISE EXCEPTION '% has events and is not the oldest segment of its log.', segment
                USING ERRCODE = '55000';
        END IF;
    END IF;
    EXECUTE format('DROP TABLE %s', segment);
    RETURN true;
END
$function$;

-- The segments that hold the ids from first up to, not including, ends, and no others; null if they are not there.
CREATE FUNCTION django_events_segments_of(log regclass, first bigint, ends bigint) RETURNS regclass[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    segments regclass[];
    held numeric;
BEGIN
    SELECT array_agg(c.oid ORDER BY bounds.parts[1]::bigint), sum(bounds.parts[2]::bigint - bounds.parts[1]::bigint)
    INTO segments, held
    FROM pg_inherits AS link
    JOIN pg_class AS c ON c.oid = link.inhrelid
    CROSS JOIN LATERAL (
        SELECT regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''(\d+)''\) TO \(''(\d+)''\)') AS parts
    ) AS bounds
    WHERE link.inhparent = log AND NOT link.inhdetachpending
        AND bounds.parts[1]::bigint >= first AND bounds.parts[2]::bigint <= ends;
    RETURN CASE WHEN held = ends - first THEN segments END;
END
$function$;

-- An empty table that is to take the place of segments, whose rows stay as they are until the transaction ends. Readers
-- go on meanwhile. The constraint spares looking through the rows while readers are locked out.
CREATE FUNCTION django_events_rewrite_segments_of(
    segments regclass[], rewritten regclass, topic_id integer, first bigint, ends bigint
) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    segment regclass;
BEGIN
    IF segments IS NULL THEN
        RETURN NULL;
    END IF;
    FOREACH segment IN ARRAY segments LOOP
        EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', segment);
    END LOOP;
    EXECUTE format(
        'ALTER TABLE %s ADD CONSTRAINT rewritten CHECK (topic_id = %s AND id >= %s AND id < %s)',
        rewritten, topic_id, first, ends
    );
    RETURN (SELECT c.relname FROM pg_class AS c WHERE c.oid = rewritten);
END
$function$;

-- Only its owner may, and without statistics a key is looked for by reading the whole table.
CREATE FUNCTION django_events_analyze_rewritten_of(log regclass, first bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    EXECUTE (
        SELECT format('ANALYZE %I.%I', n.nspname, format('%s_%s_rewritten', c.relname, first))
        FROM pg_class AS c
        JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE c.oid = log
    );
    RETURN true;
END
$function$;

-- All readers and writers of the log are locked out meanwhile, for some milliseconds.
CREATE FUNCTION django_events_swap_segments_of(log regclass, segments regclass[], first bigint, ends bigint)
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    above record;
    segment regclass;
    rewritten text;
    is_closed boolean;
BEGIN
    IF segments IS NULL THEN
        RETURN NULL;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE id >= %s)', log, ends) INTO is_closed;
    IF NOT is_closed THEN
        RAISE EXCEPTION '% has no event behind %: the segment where it ends is not rewritten.', log, ends - 1
            USING ERRCODE = '55000';
    END IF;
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', log);  -- as DROP does, and in its order
    FOREACH segment IN ARRAY segments LOOP
        EXECUTE format('DROP TABLE %s', segment);
    END LOOP;
    SELECT n.nspname, c.relname INTO above FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = log;
    rewritten := format('%I.%I', above.nspname, format('%s_%s', above.relname, first));
    EXECUTE format(
        'ALTER TABLE %I.%I RENAME TO %I',
        above.nspname, format('%s_%s_rewritten', above.relname, first), format('%s_%s', above.relname, first)
    );
    EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)', log, rewritten, first, ends);
    EXECUTE format('ALTER TABLE %s DROP CONSTRAINT rewritten', rewritten);
    RETURN true;
END
$function$;

CREATE FUNCTION django_events_make_segment(topic_id integer, first bigint, ends bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT django_events_make_segment_of(log.oid, django_events_make_table_of(log.oid, first::text, false), first, ends)
    FROM (SELECT django_events_log_of('django_events_event'::regclass, topic_id) AS oid) AS log;
END;

-- Of topics that are compacted, and of no others.
CREATE FUNCTION django_events_rewrite_segments(topic_id integer, first bigint, ends bigint) RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT django_events_rewrite_segments_of(
        django_events_segments_of(log.oid, first, ends),
        django_events_make_table_of(log.oid, format('%s_rewritten', first), true),
        t.id, first, ends
    )
    FROM django_events_topic AS t
    CROSS JOIN LATERAL (SELECT django_events_log_of('django_events_event'::regclass, t.id) AS oid) AS log
    WHERE t.id = django_events_rewrite_segments.topic_id AND t.compact;
END;

CREATE FUNCTION django_events_analyze_rewritten(topic_id integer, first bigint) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT django_events_analyze_rewritten_of(
        django_events_log_of('django_events_event'::regclass, topic_id), first
    );
END;

CREATE FUNCTION django_events_swap_segments(topic_id integer, first bigint, ends bigint) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT django_events_swap_segments_of(log.oid, django_events_segments_of(log.oid, first, ends), first, ends)
    FROM django_events_topic AS t
    CROSS JOIN LATERAL (SELECT django_events_log_of('django_events_event'::regclass, t.id) AS oid) AS log
    WHERE t.id = django_events_swap_segments.topic_id AND t.compact;
END;

CREATE FUNCTION django_events_cut_segment(topic_id integer, first bigint, ends bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT django_events_cut_segment_of(
        django_events_log_of('django_events_event'::regclass, topic_id), first, ends
    );
END;

CREATE FUNCTION django_events_drop_segment(topic_id integer, first bigint) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT django_events_drop_segment_of(
        django_events_log_of('django_events_event'::regclass, topic_id), first
    );
END;

REVOKE ALL ON FUNCTION
    django_events_make_segment(integer, bigint, bigint),
    django_events_cut_segment(integer, bigint, bigint),
    django_events_drop_segment(integer, bigint),
    django_events_rewrite_segments(integer, bigint, bigint),
    django_events_analyze_rewritten(integer, bigint),
    django_events_swap_segments(integer, bigint, bigint)
FROM PUBLIC
"""

DROP_SEGMENT_FUNCTIONS = """
DROP FUNCTION django_events_swap_segments(integer, bigint, bigint);
DROP FUNCTION django_events_analyze_rewritten(integer, bigint);
DROP FUNCTION django_events_rewrite_segments(integer, bigint, bigint);
DROP FUNCTION django_events_drop_segment(integer, bigint);
DROP FUNCTION django_events_cut_segment(integer, bigint, bigint);
DROP FUNCTION django_events_make_segment(integer, bigint, bigint);
DROP FUNCTION django_events_drop_segment_of(regclass, bigint);
DROP FUNCTION django_events_cut_segment_of(regclass, bigint, bigint);
DROP FUNCTION django_events_swap_segments_of(regclass, regclass[], bigint, bigint);
DROP FUNCTION django_events_analyze_rewritten_of(regclass, bigint);
DROP FUNCTION django_events_rewrite_segments_of(regclass[], regclass, integer, bigint, bigint);
DROP FUNCTION django_events_segments_of(regclass, bigint, bigint);
DROP FUNCTION django_events_make_segment_of(regclass, regclass, bigint, bigint);
DROP FUNCTION django_events_make_table_of(regclass, text, boolean);
DROP FUNCTION django_events_log_of(regclass, integer)
"""

# pgtrigger leaves the function of a dropped table's trigger behind, and one that all its triggers share.
DROP_TRIGGER_FUNCTIONS = """
DROP FUNCTION IF EXISTS pgtrigger_insert_only_b3b0a();
DROP FUNCTION IF EXISTS pgtrigger_deliver_6a530();
DO $block$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_proc WHERE starts_with(proname, 'pgtrigger_')) THEN
        DROP FUNCTION IF EXISTS _pgtrigger_should_ignore(name);
    END IF;
END
$block$
"""


# A position is written for every batch, in place: no index has to change, and old versions go soon.
TUNE_POSITIONS = """
ALTER TABLE django_events_position SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
)
"""

# Deliveries come and go. Leasing one changes no index, so with room on its page the new version stays there.
TUNE_DELIVERIES = """
ALTER TABLE django_events_delivery SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 50000,
    vacuum_truncate = off
);
ALTER TABLE django_events_deliverylease SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
)
"""


def _readable(*columns: str) -> models.Q:
    """These times are ones that clients can read, or NULL."""
    earliest, latest = (
        datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC),
    )
    bounds = [((f"{column}__gte", earliest), (f"{column}__lt", latest)) for column in columns]
    return models.Q(*(bound for both in bounds for bound in both))


class Migration(OnPostgreSQL):
    initial = True

    dependencies = []

    operations = [
        # Undone last, when the table and its trigger are gone.
        migrations.RunSQL(migrations.RunSQL.noop, DROP_TRIGGER_FUNCTIONS),
        migrations.CreateModel(
            name="Topic",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=63, unique=True, verbose_name="name")),
                (
                    "incarnation",
                    models.UUIDField(
                        default=uuid.uuid4,
                        editable=False,
                        help_text="Changes when the topic is made anew, so that readers' checkpoints notice.",
                        verbose_name="incarnation",
                    ),
                ),
                ("partitions", models.PositiveIntegerField(default=1, verbose_name="partitions")),
                (
                    "layouts",
                    models.JSONField(
                        db_default=models.Value([], models.JSONField()),
                        default=list,
                        editable=False,
                        help_text="From which id on it had how many partitions, if the number was changed while there were events.",
                        verbose_name="layouts",
                    ),
                ),
                ("retention", models.DurationField(blank=True, null=True, verbose_name="retention")),
                ("retention_events", models.BigIntegerField(blank=True, null=True, verbose_name="retention by events")),
                ("retention_bytes", models.BigIntegerField(blank=True, null=True, verbose_name="retention by bytes")),
                (
                    "keep_unread",
                    models.BooleanField(
                        default=True,
                        help_text="Events that a consumer still has to handle are kept for longer than retention says.",
                        verbose_name="keeps what is unread",
                    ),
                ),
                ("segment_size", models.BigIntegerField(default=1000000, verbose_name="segment size")),
                ("timeline", models.BooleanField(default=False, verbose_name="timeline")),
                (
                    "compact",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Of the events of a key that all consumers have passed, only the newest is kept.",
                        verbose_name="compacted",
                    ),
                ),
                (
                    "tombstones_kept",
                    models.DurationField(
                        db_default=datetime.timedelta(days=1),
                        default=datetime.timedelta(days=1),
                        verbose_name="tombstones kept",
                    ),
                ),
                (
                    "mirror_of",
                    models.TextField(
                        blank=True,
                        db_default="",
                        default="",
                        editable=False,
                        help_text="The source of a mirror, to which nothing is published here.",
                        verbose_name="mirror of",
                    ),
                ),
                (
                    "failing_since",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="fails since"),
                ),
                (
                    "failure",
                    models.CharField(
                        blank=True, db_default="", default="", editable=False, max_length=5, verbose_name="failure"
                    ),
                ),
                (
                    "error",
                    models.TextField(blank=True, db_default="", default="", editable=False, verbose_name="error"),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        verbose_name="created at",
                    ),
                ),
            ],
            options={
                "db_table": "django_events_topic",
                "default_permissions": ("view",),
                "permissions": [
                    ("remove_topic", "Can remove topics"),
                    ("repartition_topic", "Can change the number of partitions of topics"),
                ],
                "verbose_name": "topic",
                "verbose_name_plural": "topics",
            },
        ),
        migrations.CreateModel(
            name="TopicHead",
            fields=[
                (
                    "topic",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="head",
                        serialize=False,
                        to="django_events.topic",
                        verbose_name="topic",
                    ),
                ),
                ("id_floor", models.BigIntegerField(default=0, verbose_name="id floor")),
                ("compacted_until", models.BigIntegerField(db_default=0, default=0, verbose_name="compacted until")),
                ("kept_events", models.BigIntegerField(db_default=0, default=0, verbose_name="kept events")),
                (
                    "number_floors",
                    models.JSONField(default=list, verbose_name="number floors"),
                ),
            ],
            options={
                "default_permissions": (),
                "verbose_name": "topic head",
                "verbose_name_plural": "topic heads",
            },
        ),
        migrations.CreateModel(
            name="BufferedEvent",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "topic_id", "id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "topic",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="django_events.topic",
                        verbose_name="topic",
                    ),
                ),
                ("id", models.BigIntegerField(editable=False, verbose_name="ticket")),
                ("partition", models.IntegerField(blank=True, null=True, verbose_name="partition")),
                ("type", models.CharField(blank=True, db_default="", max_length=200, verbose_name="type")),
                ("key", models.CharField(blank=True, db_collation="C", max_length=512, null=True, verbose_name="key")),
                ("value", models.JSONField(blank=True, null=True, verbose_name="value")),
                ("body", models.BinaryField(null=True, verbose_name="body")),
                (
                    "metadata",
                    models.JSONField(
                        blank=True, db_default=models.Value({}, models.JSONField()), verbose_name="metadata"
                    ),
                ),
                (
                    "published_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        verbose_name="published at",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "verbose_name": "buffered event",
                "verbose_name_plural": "buffered events",
            },
        ),
        migrations.RunSQL(TUNE_BUFFER, migrations.RunSQL.noop),
        migrations.CreateModel(
            name="DedupKey",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "topic_id", "key", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("key", models.CharField(db_collation="C", max_length=512, verbose_name="dedup key")),
                ("expires_at", models.DateTimeField(verbose_name="expires at")),
                (
                    "topic",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="django_events.topic",
                        verbose_name="topic",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "verbose_name": "dedup key",
                "verbose_name_plural": "dedup keys",
                "indexes": [models.Index(fields=["expires_at"], name="django_events_dedup_expired")],
            },
        ),
        migrations.CreateModel(
            name="SinkBatch",
            fields=[
                ("sink", models.CharField(max_length=63, primary_key=True, serialize=False, verbose_name="sink")),
                ("batch", models.BigIntegerField(verbose_name="batch")),
                ("events", models.BigIntegerField(verbose_name="events")),
                (
                    "query",
                    models.TextField(
                        blank=True,
                        default="",
                        help_text="Its id, from its checkpoint; empty outside of a stream.",
                        verbose_name="query",
                    ),
                ),
                (
                    "run",
                    models.TextField(
                        blank=True, default="", help_text="Of the query: another after each start.", verbose_name="run"
                    ),
                ),
                (
                    "published_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        verbose_name="published at",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "verbose_name": "batch of a sink",
                "verbose_name_plural": "batches of sinks",
            },
        ),
        migrations.CreateModel(
            name="StagedEvent",
            fields=[
                ("partition", models.IntegerField(blank=True, null=True, verbose_name="partition")),
                ("type", models.CharField(blank=True, db_default="", max_length=200, verbose_name="type")),
                ("key", models.CharField(blank=True, db_collation="C", max_length=512, null=True, verbose_name="key")),
                ("value", models.JSONField(blank=True, null=True, verbose_name="value")),
                ("body", models.BinaryField(null=True, verbose_name="body")),
                (
                    "metadata",
                    models.JSONField(
                        blank=True, db_default=models.Value({}, models.JSONField()), verbose_name="metadata"
                    ),
                ),
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("attempt", models.UUIDField(help_text="Of a task: one of them is published.", verbose_name="attempt")),
                (
                    "staged_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        verbose_name="staged at",
                    ),
                ),
                (
                    "topic",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="django_events.topic",
                        verbose_name="topic",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "verbose_name": "staged event",
                "verbose_name_plural": "staged events",
                "indexes": [
                    models.Index(fields=["attempt", "id"], name="django_events_staged_attempt"),
                    models.Index(fields=["staged_at"], name="django_events_staged_age"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ScheduledEvent",
            fields=[
                ("partition", models.IntegerField(blank=True, null=True, verbose_name="partition")),
                ("type", models.CharField(blank=True, db_default="", max_length=200, verbose_name="type")),
                ("key", models.CharField(blank=True, db_collation="C", max_length=512, null=True, verbose_name="key")),
                ("value", models.JSONField(blank=True, null=True, verbose_name="value")),
                ("body", models.BinaryField(null=True, verbose_name="body")),
                (
                    "metadata",
                    models.JSONField(
                        blank=True, db_default=models.Value({}, models.JSONField()), verbose_name="metadata"
                    ),
                ),
                ("id", models.BigAutoField(primary_key=True, serialize=False, verbose_name="ticket")),
                ("publish_at", models.DateTimeField(verbose_name="publish at")),
                (
                    "scheduled_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        verbose_name="scheduled at",
                    ),
                ),
                (
                    "topic",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="django_events.topic",
                        verbose_name="topic",
                    ),
                ),
            ],
            options={
                "default_permissions": ("view",),
                "permissions": [
                    ("cancel_scheduledevent", "Can cancel scheduled events"),
                    ("publish_scheduledevent", "Can publish scheduled events now"),
                ],
                "verbose_name": "scheduled event",
                "verbose_name_plural": "scheduled events",
                "indexes": [models.Index(fields=["publish_at", "id"], name="django_events_scheduled_due")],
            },
        ),
        migrations.CreateModel(
            name="Clock",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=300, unique=True, verbose_name="name")),
                ("cron", models.CharField(help_text="A cron expression.", max_length=200, verbose_name="times")),
                ("tz", models.CharField(max_length=100, verbose_name="time zone")),
                ("type", models.CharField(max_length=200, verbose_name="type")),
                ("key", models.CharField(blank=True, db_collation="C", max_length=512, null=True, verbose_name="key")),
                ("value", models.JSONField(blank=True, null=True, verbose_name="value")),
                (
                    "missed",
                    models.CharField(
                        choices=[("latest", "latest"), ("all", "all"), ("skip", "skip")],
                        max_length=6,
                        verbose_name="missed ticks",
                    ),
                ),
                (
                    "overlap",
                    models.CharField(
                        choices=[("allow", "allow"), ("skip", "skip")],
                        default="allow",
                        help_text="Whether a tick is left out while a consumer has not handled the one before.",
                        max_length=5,
                        verbose_name="overlap",
                    ),
                ),
                ("next_at", models.DateTimeField(verbose_name="next tick")),
                ("last_at", models.DateTimeField(blank=True, null=True, verbose_name="last tick")),
                ("paused_at", models.DateTimeField(blank=True, null=True, verbose_name="paused at")),
                (
                    "last_ticket",
                    models.BigIntegerField(
                        blank=True, editable=False, null=True, verbose_name="ticket of the last tick"
                    ),
                ),
                (
                    "last_published_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="last tick published at"),
                ),
                (
                    "last_behind",
                    models.BigIntegerField(
                        db_default=0,
                        default=0,
                        editable=False,
                        help_text="An id of the log: the event of the last tick has a higher one.",
                        verbose_name="last tick is behind",
                    ),
                ),
                (
                    "overlapped",
                    models.BigIntegerField(db_default=0, default=0, editable=False, verbose_name="overlapped"),
                ),
                (
                    "overlapped_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="last overlapped tick"),
                ),
                (
                    "overlapped_by",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        editable=False,
                        help_text="The consumer that had not handled the tick before.",
                        max_length=63,
                        verbose_name="overlapped by",
                    ),
                ),
                (
                    "overlapped_as",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        editable=False,
                        help_text="What that consumer was at: it was paused, for example.",
                        max_length=10,
                        verbose_name="overlapped as",
                    ),
                ),
                (
                    "topic",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="clocks",
                        to="django_events.topic",
                        verbose_name="topic",
                    ),
                ),
            ],
            options={
                "db_table": "django_events_clock",
                "default_permissions": ("view",),
                "permissions": [
                    ("pause_clock", "Can pause a clock"),
                    ("resume_clock", "Can resume a clock"),
                    ("run_clock", "Can let a clock tick now"),
                    ("remove_clock", "Can remove a clock that no app declares"),
                ],
                "verbose_name": "clock",
                "verbose_name_plural": "clocks",
            },
        ),
        migrations.CreateModel(
            name="Inbox",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=63, unique=True, verbose_name="name")),
                ("source", models.TextField(verbose_name="source")),
                (
                    "position",
                    models.JSONField(
                        blank=True,
                        help_text="The last message that was taken in, by log of the source.",
                        null=True,
                        verbose_name="position",
                    ),
                ),
                (
                    "start",
                    models.CharField(
                        help_text="Where it begins, as long as it has no position.",
                        max_length=200,
                        verbose_name="start",
                    ),
                ),
                (
                    "generation",
                    models.IntegerField(
                        db_default=0,
                        default=0,
                        editable=False,
                        help_text="How often it was begun anew or paused.",
                        verbose_name="generation",
                    ),
                ),
                ("taken", models.BigIntegerField(db_default=0, default=0, editable=False, verbose_name="taken in")),
                ("left_out", models.BigIntegerField(db_default=0, default=0, editable=False, verbose_name="left out")),
                (
                    "unreadable",
                    models.BigIntegerField(db_default=0, default=0, editable=False, verbose_name="unreadable"),
                ),
                (
                    "unreadable_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="last unreadable at"),
                ),
                (
                    "gone",
                    models.BigIntegerField(
                        db_default=0,
                        default=0,
                        editable=False,
                        help_text="Messages that the source had removed before they were taken in.",
                        verbose_name="gone",
                    ),
                ),
                (
                    "gone_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="last gone at"),
                ),
                ("lag", models.BigIntegerField(blank=True, editable=False, null=True, verbose_name="lag")),
                (
                    "paused_at",
                    models.DateTimeField(
                        blank=True,
                        editable=False,
                        help_text="It takes in nothing until it is resumed.",
                        null=True,
                        verbose_name="paused at",
                    ),
                ),
                ("moved_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="moved at")),
                ("served_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="served at")),
                (
                    "failing_since",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="fails since"),
                ),
                (
                    "waiting_since",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="waits since"),
                ),
                (
                    "error",
                    models.TextField(blank=True, db_default="", default="", editable=False, verbose_name="error"),
                ),
                (
                    "topic",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="inboxes",
                        to="django_events.topic",
                        verbose_name="topic",
                    ),
                ),
            ],
            options={
                "default_permissions": ("view",),
                "permissions": [
                    ("pause_inbox", "Can pause an inbox"),
                    ("resume_inbox", "Can resume an inbox"),
                    ("restart_inbox", "Can let an inbox begin anew in its source"),
                    ("remove_inbox", "Can remove an inbox that no app declares"),
                ],
                "verbose_name": "inbox",
                "verbose_name_plural": "inboxes",
                "constraints": [
                    models.CheckConstraint(
                        condition=_readable(
                            "unreadable_at",
                            "gone_at",
                            "paused_at",
                            "moved_at",
                            "served_at",
                            "failing_since",
                            "waiting_since",
                        ),
                        name="django_events_inbox_times",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RollUp",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=63, unique=True, verbose_name="name")),
                (
                    "made_by",
                    models.JSONField(
                        help_text="What its table is made by: buckets, groups and measures, as they were declared.",
                        verbose_name="made by",
                    ),
                ),
                ("most_groups", models.IntegerField(verbose_name="at most groups")),
                ("retention", models.DurationField(blank=True, null=True, verbose_name="retention")),
                (
                    "full_since",
                    models.DateTimeField(
                        blank=True,
                        editable=False,
                        help_text="Since when further groups are counted together.",
                        null=True,
                        verbose_name="full since",
                    ),
                ),
                (
                    "left_out",
                    models.BigIntegerField(
                        default=0,
                        editable=False,
                        help_text="Events that could not be counted at all.",
                        verbose_name="left out",
                    ),
                ),
                (
                    "left_out_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="last left out at"),
                ),
                (
                    "error",
                    models.TextField(blank=True, db_default="", default="", editable=False, verbose_name="last error"),
                ),
                (
                    "made_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        verbose_name="made at",
                    ),
                ),
            ],
            options={
                "db_table": "django_events_rollup",
                "default_permissions": ("view",),
                "verbose_name": "roll-up",
                "verbose_name_plural": "roll-ups",
                "constraints": [
                    models.CheckConstraint(
                        condition=_readable("full_since", "left_out_at"), name="django_events_rollup_times"
                    )
                ],
            },
        ),
        migrations.RunSQL(TUNE_COMING_AND_GOING, migrations.RunSQL.noop),
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(CREATE_LOG, "DROP TABLE django_events_event")],
            state_operations=[
                migrations.CreateModel(
                    name="Event",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "topic_id", "id", blank=True, editable=False, primary_key=True, serialize=False
                            ),
                        ),
                        (
                            "topic",
                            models.ForeignKey(
                                db_constraint=False,
                                db_index=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="+",
                                to="django_events.topic",
                                verbose_name="topic",
                            ),
                        ),
                        ("id", models.BigIntegerField(verbose_name="id")),
                        ("partition", models.IntegerField(verbose_name="partition")),
                        ("number", models.BigIntegerField(verbose_name="number")),
                        ("type", models.CharField(blank=True, max_length=200, verbose_name="type")),
                        (
                            "key",
                            models.CharField(
                                blank=True, db_collation="C", max_length=512, null=True, verbose_name="key"
                            ),
                        ),
                        ("value", models.JSONField(blank=True, null=True, verbose_name="value")),
                        ("body", models.BinaryField(null=True, verbose_name="body")),
                        ("metadata", models.JSONField(blank=True, verbose_name="metadata")),
                        ("published_at", models.DateTimeField(verbose_name="published at")),
                        ("logged_at", models.DateTimeField(verbose_name="logged at")),
                    ],
                    options={
                        "default_permissions": ("view",),
                        "permissions": [("republish_event", "Can publish an event again")],
                        "verbose_name": "event",
                        "verbose_name_plural": "events",
                    },
                ),
            ],
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="event",
            trigger=pgtrigger.compiler.Trigger(
                name="insert_only",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="RAISE EXCEPTION 'The log of django_events is insert-only: publish another event instead.';",
                    hash="7ce1c63cd78d3cb6bdb7af0c2181f6bc5c7239fb",
                    level="STATEMENT",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_insert_only_b3b0a",
                    table="django_events_event",
                    when="BEFORE",
                ),
            ),
        ),
        migrations.RunSQL(CREATE_FUNCTIONS, DROP_FUNCTIONS),
        migrations.RunSQL(CREATE_SEGMENT_FUNCTIONS, DROP_SEGMENT_FUNCTIONS),
        migrations.CreateModel(
            name="Consumer",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=63, verbose_name="name")),
                ("partitioned", models.BooleanField(default=True, verbose_name="partitioned")),
                (
                    "turns_at",
                    models.BigIntegerField(
                        blank=True,
                        editable=False,
                        help_text="From this id on it reads all partitions together, or each by itself: what it doesn't do now.",
                        null=True,
                        verbose_name="turns at",
                    ),
                ),
                ("types", models.JSONField(blank=True, null=True, verbose_name="types")),
                ("keys", models.JSONField(blank=True, null=True, verbose_name="keys")),
                ("where", models.TextField(blank=True, null=True, verbose_name="where")),
                (
                    "metadata",
                    models.TextField(
                        blank=True,
                        help_text="A jsonpath predicate on the metadata of an event.",
                        null=True,
                        verbose_name="metadata",
                    ),
                ),
                (
                    "vars",
                    models.JSONField(
                        blank=True,
                        help_text="What the predicates name as $name.",
                        null=True,
                        verbose_name="variables",
                    ),
                ),
                (
                    "filter_digest",
                    models.CharField(
                        blank=True,
                        db_collation="C",
                        db_default="",
                        editable=False,
                        help_text="Of a queue: filters with the same one are tried once for all their consumers.",
                        max_length=32,
                        verbose_name="digest of the filter",
                    ),
                ),
                (
                    "indexed",
                    models.BooleanField(
                        db_default=False,
                        editable=False,
                        help_text="An event that its filter matches has one of its terms. Otherwise the filter is tried on each event.",
                        verbose_name="indexed",
                    ),
                ),
                (
                    "subscribed",
                    models.BooleanField(
                        db_default=False,
                        editable=False,
                        help_text="Made by subscribe(), and declared by no app.",
                        verbose_name="subscribed",
                    ),
                ),
                (
                    "expires_after",
                    models.DurationField(
                        blank=True,
                        help_text="A subscription that nothing serves for so long goes.",
                        null=True,
                        verbose_name="expires after",
                    ),
                ),
                (
                    "type_expressions",
                    models.JSONField(
                        blank=True,
                        editable=False,
                        help_text="The patterns among the types.",
                        null=True,
                        verbose_name="type expressions",
                    ),
                ),
                (
                    "key_expressions",
                    models.JSONField(
                        blank=True,
                        editable=False,
                        help_text="The patterns among the keys.",
                        null=True,
                        verbose_name="key expressions",
                    ),
                ),
                (
                    "mode",
                    models.CharField(
                        choices=[("stream", "stream"), ("queue", "queue"), ("spark", "Spark")],
                        default="stream",
                        max_length=6,
                        verbose_name="mode",
                    ),
                ),
                ("ordered", models.BooleanField(default=False, verbose_name="ordered")),
                ("delay", models.DurationField(blank=True, null=True, verbose_name="delay")),
                ("history", models.DurationField(blank=True, null=True, verbose_name="history")),
                ("max_pending", models.BigIntegerField(blank=True, null=True, verbose_name="at most pending")),
                (
                    "outcomes",
                    models.CharField(
                        blank=True,
                        help_text="The topic that gets an event for each attempt of a queue that ends.",
                        max_length=63,
                        null=True,
                        verbose_name="outcomes",
                    ),
                ),
                ("lease", models.DurationField(blank=True, null=True, verbose_name="lease")),
                (
                    "retry",
                    models.JSONField(
                        blank=True,
                        help_text="How often an event is attempted, and how long to wait in between, in seconds.",
                        null=True,
                        verbose_name="retry",
                    ),
                ),
                (
                    "live",
                    models.BooleanField(
                        default=False,
                        help_text="Its deliveries come with the events. Otherwise its workers make them from the log.",
                        verbose_name="live",
                    ),
                ),
                (
                    "filled_until",
                    models.BigIntegerField(
                        default=0,
                        help_text="Up to this id its events were made deliveries. It counts while the consumer is not live.",
                        verbose_name="filled until",
                    ),
                ),
                ("paused_at", models.DateTimeField(blank=True, null=True, verbose_name="paused at")),
                (
                    "held_until",
                    models.DateTimeField(
                        blank=True,
                        editable=False,
                        help_text="Workers leave it alone until then: an operator waits for the events in hand, to rewind it.",
                        null=True,
                        verbose_name="held until",
                    ),
                ),
                (
                    "waits_from",
                    models.BigIntegerField(
                        blank=True,
                        editable=False,
                        help_text="From this id on it waits until the consumers of its name have come so far in other shards.",
                        null=True,
                        verbose_name="waits from",
                    ),
                ),
                (
                    "registered_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        verbose_name="registered at",
                    ),
                ),
                (
                    "changed_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        help_text="Since when its filter and its history are what they are.",
                        verbose_name="changed at",
                    ),
                ),
                (
                    "revision",
                    models.IntegerField(
                        db_default=0,
                        default=0,
                        editable=False,
                        help_text="Counts the changes of its filter and of its order. Workers that know another one look again.",
                        verbose_name="revision",
                    ),
                ),
                (
                    "former_filters",
                    models.JSONField(
                        blank=True,
                        editable=False,
                        help_text="By which a stream judges the events before its filter was changed, each up to an id.",
                        null=True,
                        verbose_name="former filters",
                    ),
                ),
                (
                    "failing_since",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="fails since"),
                ),
                (
                    "failure",
                    models.CharField(
                        blank=True, db_default="", default="", editable=False, max_length=5, verbose_name="failure"
                    ),
                ),
                (
                    "error",
                    models.TextField(blank=True, db_default="", default="", editable=False, verbose_name="error"),
                ),
                (
                    "topic",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="consumers",
                        to="django_events.topic",
                        verbose_name="topic",
                    ),
                ),
            ],
            options={
                "db_table": "django_events_consumer",
                "default_permissions": ("view",),
                "permissions": [
                    ("pause_consumer", "Can pause a consumer"),
                    ("resume_consumer", "Can resume a consumer"),
                    ("rewind_consumer", "Can rewind a consumer"),
                    ("skip_consumer", "Can let a consumer skip an event"),
                    ("replay_consumer", "Can let a consumer handle events again"),
                    ("retry_now_consumer", "Can let a consumer retry now"),
                    ("subscribe_consumer", "Can subscribe at run time"),
                    ("unsubscribe_consumer", "Can remove a subscription"),
                ],
                "verbose_name": "consumer",
                "verbose_name_plural": "consumers",
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "consumer_id", "event_id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "consumer",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="deliveries",
                        to="django_events.consumer",
                        verbose_name="consumer",
                    ),
                ),
                ("event_id", models.BigIntegerField(verbose_name="event")),
                (
                    "key",
                    models.CharField(
                        blank=True,
                        db_collation="C",
                        help_text="Only where the consumer handles keys in order.",
                        max_length=512,
                        null=True,
                        verbose_name="key",
                    ),
                ),
                ("received_at", models.DateTimeField(verbose_name="received at")),
                (
                    "visible_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="No worker gets it before, after a failed attempt.",
                        null=True,
                        verbose_name="visible at",
                    ),
                ),
                ("token", models.BigIntegerField(blank=True, editable=False, null=True, verbose_name="lease")),
                ("attempts", models.IntegerField(db_default=0, verbose_name="attempts")),
                ("delivered", models.IntegerField(db_default=0, verbose_name="times delivered")),
                ("first_at", models.DateTimeField(blank=True, null=True, verbose_name="first delivered at")),
                ("last_at", models.DateTimeField(blank=True, null=True, verbose_name="last delivered at")),
                ("error", models.TextField(blank=True, db_default="", verbose_name="last error")),
            ],
            options={
                "default_permissions": (),
                "verbose_name": "delivery",
                "verbose_name_plural": "deliveries",
            },
        ),
        migrations.CreateModel(
            name="DeliveryLease",
            fields=[
                ("token", models.BigIntegerField(primary_key=True, serialize=False, verbose_name="lease")),
                (
                    "consumer",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="delivery_leases",
                        to="django_events.consumer",
                        verbose_name="consumer",
                    ),
                ),
                ("leased_until", models.DateTimeField(verbose_name="leased until")),
                ("holder", models.CharField(max_length=200, verbose_name="holder")),
                ("event_ids", models.JSONField(verbose_name="events")),
            ],
            options={
                "default_permissions": (),
                "verbose_name": "lease of deliveries",
                "verbose_name_plural": "leases of deliveries",
            },
        ),
        migrations.CreateModel(
            name="PastDelivery",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "consumer_id",
                        "event_id",
                        "processed_at",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "consumer",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="past_deliveries",
                        to="django_events.consumer",
                        verbose_name="consumer",
                    ),
                ),
                ("event_id", models.BigIntegerField(verbose_name="event")),
                ("received_at", models.DateTimeField(verbose_name="received at")),
                ("first_at", models.DateTimeField(verbose_name="first delivered at")),
                ("last_at", models.DateTimeField(verbose_name="last delivered at")),
                ("processed_at", models.DateTimeField(verbose_name="processed at")),
                ("attempts", models.IntegerField(verbose_name="attempts")),
                ("delivered", models.IntegerField(verbose_name="times delivered")),
                (
                    "outcome",
                    models.CharField(
                        choices=[("handled", "handled"), ("ignored", "ignored"), ("dead", "dead letter")],
                        max_length=9,
                        verbose_name="outcome",
                    ),
                ),
                ("worker", models.CharField(max_length=200, verbose_name="worker")),
            ],
            options={
                "default_permissions": (),
                "verbose_name": "past delivery",
                "verbose_name_plural": "past deliveries",
                "indexes": [
                    models.Index(fields=["consumer", "processed_at"], name="django_events_pastdelivery_age"),
                ],
            },
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("event_id", models.BigIntegerField(verbose_name="event")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("number", models.BigIntegerField(verbose_name="number")),
                ("type", models.CharField(blank=True, max_length=200, verbose_name="type")),
                ("key", models.CharField(blank=True, db_collation="C", max_length=512, null=True, verbose_name="key")),
                ("value", models.JSONField(blank=True, null=True, verbose_name="value")),
                ("body", models.BinaryField(null=True, verbose_name="body")),
                ("metadata", models.JSONField(blank=True, verbose_name="metadata")),
                ("published_at", models.DateTimeField(verbose_name="published at")),
                ("logged_at", models.DateTimeField(verbose_name="logged at")),
                ("attempts", models.IntegerField(verbose_name="attempts")),
                ("error", models.TextField(verbose_name="error")),
                ("traceback", models.TextField(blank=True, verbose_name="traceback")),
                ("fingerprint", models.TextField(blank=True, db_default="", verbose_name="fingerprint")),
                (
                    "dead_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        verbose_name="dead since",
                    ),
                ),
                (
                    "redrive_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="The consumer handles it again at this time.",
                        null=True,
                        verbose_name="redrive at",
                    ),
                ),
                (
                    "consumer",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="dead_letters",
                        to="django_events.consumer",
                        verbose_name="consumer",
                    ),
                ),
            ],
            options={
                "default_permissions": ("view",),
                "permissions": [
                    ("redrive_deadletter", "Can redrive dead letters"),
                    ("discard_deadletter", "Can discard dead letters"),
                ],
                "verbose_name": "dead letter",
                "verbose_name_plural": "dead letters",
            },
        ),
        migrations.CreateModel(
            name="FilterTerm",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "consumer",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="filter_terms",
                        to="django_events.consumer",
                        verbose_name="consumer",
                    ),
                ),
                ("topic_id", models.IntegerField(verbose_name="topic")),
                (
                    "source",
                    models.CharField(
                        choices=[("value", "value"), ("metadata", "metadata"), ("key", "key")],
                        db_collation="C",
                        max_length=8,
                        verbose_name="source",
                    ),
                ),
                ("path", models.TextField(db_collation="C", verbose_name="path")),
                ("value", models.JSONField(verbose_name="value")),
                (
                    "filter_digest",
                    models.CharField(db_collation="C", max_length=32, verbose_name="digest of the filter"),
                ),
            ],
            options={
                "verbose_name": "term of a filter",
                "verbose_name_plural": "terms of filters",
                "default_permissions": (),
                "indexes": [
                    models.Index(
                        fields=["topic_id", "source", "path", "value", "filter_digest"],
                        name="django_events_filterterm_item",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Intervention",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(), editable=False, verbose_name="at"
                    ),
                ),
                ("by", models.CharField(max_length=200, verbose_name="by")),
                (
                    "action",
                    models.CharField(
                        choices=[
                            ("pause", "pause"),
                            ("resume", "resume"),
                            ("retry_now", "retry now"),
                            ("skip", "skip"),
                            ("rewind", "rewind"),
                            ("rebuild", "rebuild"),
                            ("redrive", "redrive"),
                            ("replay", "replay"),
                            ("discard", "discard"),
                            ("subscribe", "subscribe"),
                            ("unregister", "unregister"),
                            ("expire", "expire"),
                            ("erase", "erase"),
                            ("erase_exported", "erase in exports"),
                            ("remove", "remove"),
                            ("repartition", "repartition"),
                            ("reshard", "reshard"),
                            ("run", "run"),
                            ("cancel", "cancel"),
                            ("publish", "publish now"),
                            ("snapshot", "snapshot"),
                            ("webhook", "webhook"),
                        ],
                        max_length=20,
                        verbose_name="action",
                    ),
                ),
                ("consumer", models.CharField(blank=True, max_length=63, verbose_name="consumer")),
                ("topic", models.CharField(blank=True, max_length=63, verbose_name="topic")),
                ("details", models.JSONField(blank=True, default=dict, verbose_name="details")),
            ],
            options={
                "default_permissions": ("view",),
                "verbose_name": "intervention",
                "verbose_name_plural": "interventions",
                "indexes": [
                    models.Index(fields=["consumer", "at"], name="django_events_intervention_of"),
                    models.Index(condition=models.Q(("action", "expire")), fields=["at"], name="django_events_expired"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Position",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("position", models.BigIntegerField(default=0, verbose_name="position")),
                ("number", models.BigIntegerField(default=0, verbose_name="number")),
                (
                    "layout",
                    models.IntegerField(
                        blank=True,
                        editable=False,
                        help_text="By which of the topic's layouts it is read. Empty while that one has no such partition.",
                        null=True,
                        verbose_name="layout",
                    ),
                ),
                (
                    "barrier",
                    models.BigIntegerField(
                        blank=True,
                        editable=False,
                        help_text="It is not read from this id on before the consumer's other partitions have come so far.",
                        null=True,
                        verbose_name="barrier",
                    ),
                ),
                ("handled", models.BigIntegerField(default=0, verbose_name="handled")),
                ("failed", models.BigIntegerField(default=0, verbose_name="failed attempts")),
                ("ignored", models.BigIntegerField(default=0, verbose_name="ignored")),
                ("dead_lettered", models.BigIntegerField(default=0, verbose_name="dead-lettered")),
                (
                    "attempted",
                    models.BigIntegerField(
                        blank=True,
                        help_text="The event that the attempts are about.",
                        null=True,
                        verbose_name="attempted event",
                    ),
                ),
                ("attempts", models.IntegerField(default=0, verbose_name="attempts")),
                ("retry_at", models.DateTimeField(blank=True, null=True, verbose_name="next attempt at")),
                (
                    "failing_since",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="fails since"),
                ),
                (
                    "careful_until",
                    models.BigIntegerField(
                        default=0,
                        help_text="Up to this id, events are handled one by one, each attempt counted before it starts.",
                        verbose_name="one by one until",
                    ),
                ),
                ("stopped_at", models.DateTimeField(blank=True, null=True, verbose_name="stopped at")),
                ("error", models.TextField(blank=True, default="", verbose_name="last error")),
                ("token", models.BigIntegerField(blank=True, editable=False, null=True, verbose_name="lease")),
                (
                    "leased_until",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="leased until"),
                ),
                (
                    "holder",
                    models.CharField(blank=True, default="", editable=False, max_length=200, verbose_name="holder"),
                ),
                ("served_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="served at")),
                (
                    "consumer",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="positions",
                        to="django_events.consumer",
                        verbose_name="consumer",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "verbose_name": "position",
                "verbose_name_plural": "positions",
            },
        ),
        migrations.CreateModel(
            name="MaintenanceStep",
            fields=[
                ("name", models.CharField(max_length=20, primary_key=True, serialize=False, verbose_name="step")),
                ("started_at", models.DateTimeField(verbose_name="started at")),
                (
                    "finished_at",
                    models.DateTimeField(
                        help_text="Of the last run that ended.", null=True, verbose_name="finished at"
                    ),
                ),
                (
                    "leased_until",
                    models.DateTimeField(
                        help_text="No other process runs it before, unless the run has ended.",
                        null=True,
                        verbose_name="leased until",
                    ),
                ),
                ("holder", models.CharField(max_length=200, verbose_name="holder")),
                (
                    "result",
                    models.JSONField(
                        default=dict, help_text="What the last run that worked has done.", verbose_name="result"
                    ),
                ),
                (
                    "error",
                    models.TextField(
                        blank=True, default="", help_text="Of the last run, if it failed.", verbose_name="error"
                    ),
                ),
                ("failing_since", models.DateTimeField(null=True, verbose_name="failing since")),
                (
                    "paused_until",
                    models.DateTimeField(
                        help_text="Retention drops nothing before, so that a dump finds what it listed.",
                        null=True,
                        verbose_name="paused until",
                    ),
                ),
            ],
            options={
                "verbose_name": "step of maintenance",
                "verbose_name_plural": "steps of maintenance",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="ShardMap",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=63, verbose_name="this shard")),
                ("version", models.BigIntegerField(verbose_name="version")),
                ("shards", models.JSONField(verbose_name="shards")),
                (
                    "following",
                    models.JSONField(
                        blank=True,
                        help_text="The shards that the map changes to now.",
                        null=True,
                        verbose_name="following shards",
                    ),
                ),
            ],
            options={
                "verbose_name": "shard map",
                "verbose_name_plural": "shard maps",
                "default_permissions": (),
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", 1)), name="django_events_shardmap_one")
                ],
            },
        ),
        migrations.CreateModel(
            name="ShardMove",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.BigIntegerField(verbose_name="version")),
                ("source", models.CharField(max_length=63, verbose_name="from shard")),
                ("waits_from", models.BigIntegerField(verbose_name="waits from")),
                ("source_incarnation", models.UUIDField(blank=True, null=True, verbose_name="incarnation there")),
                (
                    "source_ticket",
                    models.BigIntegerField(
                        blank=True,
                        help_text="What was published by the old map leaves the buffer with this ticket at the latest.",
                        null=True,
                        verbose_name="ticket there",
                    ),
                ),
                ("source_last_id", models.BigIntegerField(blank=True, null=True, verbose_name="last event there")),
                (
                    "topic",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="moves",
                        to="django_events.topic",
                        verbose_name="topic",
                    ),
                ),
            ],
            options={
                "verbose_name": "shard move",
                "verbose_name_plural": "shard moves",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=("topic", "version", "source"), name="django_events_shardmove_one")
                ],
            },
        ),
        migrations.CreateModel(
            name="Rebuild",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("consumer", models.CharField(max_length=63, unique=True, verbose_name="consumer")),
                ("table", models.CharField(max_length=63, verbose_name="table")),
                (
                    "schema",
                    models.CharField(
                        help_text="Where the new table has the same name.", max_length=63, verbose_name="schema"
                    ),
                ),
                (
                    "fingerprint",
                    models.TextField(
                        help_text="Of the table that is served, and of what fills it.", verbose_name="fingerprint"
                    ),
                ),
                (
                    "reached",
                    models.JSONField(
                        default=dict,
                        help_text="Up to which id of each topic its events are in the new table.",
                        verbose_name="reached",
                    ),
                ),
                (
                    "ends",
                    models.JSONField(
                        default=dict,
                        help_text="Where the logs ended when that was last looked at.",
                        verbose_name="ends",
                    ),
                ),
                (
                    "failed",
                    models.JSONField(
                        default=list, help_text="Events that could not be folded, and why.", verbose_name="failed"
                    ),
                ),
                ("events", models.BigIntegerField(default=0, verbose_name="events")),
                (
                    "partial",
                    models.BooleanField(
                        default=False,
                        help_text="What retention or compaction has removed is left out.",
                        verbose_name="partial",
                    ),
                ),
                ("token", models.BigIntegerField(blank=True, editable=False, null=True, verbose_name="lease")),
                (
                    "leased_until",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="leased until"),
                ),
                (
                    "holder",
                    models.CharField(blank=True, default="", editable=False, max_length=200, verbose_name="holder"),
                ),
                (
                    "started_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        verbose_name="started at",
                    ),
                ),
                (
                    "changed_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        verbose_name="changed at",
                    ),
                ),
            ],
            options={
                "verbose_name": "rebuild",
                "verbose_name_plural": "rebuilds",
                "db_table": "django_events_rebuild",
                "default_permissions": ("view",),
                "constraints": [
                    models.CheckConstraint(
                        condition=_readable("leased_until"),
                        name="django_events_rebuild_times",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Sample",
            fields=[
                (
                    "at",
                    models.DateTimeField(
                        help_text="The full minute.", primary_key=True, serialize=False, verbose_name="at"
                    ),
                ),
                (
                    "taken_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        verbose_name="taken at",
                    ),
                ),
                (
                    "published",
                    models.BigIntegerField(help_text="The last ids of all topics, added up.", verbose_name="published"),
                ),
                (
                    "handled",
                    models.BigIntegerField(
                        help_text="Of all consumers, what they ignored included.", verbose_name="handled"
                    ),
                ),
                ("lag", models.BigIntegerField(help_text="Of all consumers, added up.", verbose_name="lag")),
                (
                    "buffered",
                    models.BigIntegerField(help_text="Events that waited for the transfer.", verbose_name="buffered"),
                ),
                (
                    "topics",
                    models.JSONField(
                        default=dict,
                        help_text="By the topic's id: its last id, and how many of its events were buffered.",
                        verbose_name="topics",
                    ),
                ),
                (
                    "consumers",
                    models.JSONField(
                        default=dict,
                        help_text="By the consumer's id: its lag, what it handled, failed and gave up on, and how old its oldest event was.",
                        verbose_name="consumers",
                    ),
                ),
            ],
            options={
                "verbose_name": "sample",
                "verbose_name_plural": "samples",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Overview",
            fields=[],
            options={
                "verbose_name": "overview",
                "verbose_name_plural": "overview",
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("django_events.topic",),
        ),
        migrations.AddConstraint(
            model_name="consumer",
            constraint=models.UniqueConstraint(fields=("name", "topic"), name="django_events_consumer_name"),
        ),
        migrations.AddIndex(
            model_name="deadletter",
            index=models.Index(fields=["consumer", "key", "event_id"], name="django_events_deadletter_key"),
        ),
        migrations.AddIndex(
            model_name="deadletter",
            index=models.Index(fields=["dead_at", "id"], name="django_events_deadletter_since"),
        ),
        migrations.AddIndex(
            model_name="deadletter",
            index=models.Index(
                condition=models.Q(("redrive_at__isnull", False)),
                fields=["consumer", "event_id"],
                name="django_events_deadletter_due",
            ),
        ),
        migrations.AddConstraint(
            model_name="deadletter",
            constraint=models.UniqueConstraint(fields=("consumer", "event_id"), name="django_events_deadletter_event"),
        ),
        migrations.AddConstraint(
            model_name="position",
            constraint=models.UniqueConstraint(
                fields=("consumer", "partition"), name="django_events_position_partition"
            ),
        ),
        migrations.AddConstraint(
            model_name="consumer",
            constraint=models.CheckConstraint(
                condition=_readable("paused_at", "held_until"),
                name="django_events_consumer_times",
            ),
        ),
        migrations.AddConstraint(
            model_name="deadletter",
            constraint=models.CheckConstraint(
                condition=_readable("redrive_at"),
                name="django_events_deadletter_times",
            ),
        ),
        migrations.AddConstraint(
            model_name="delivery",
            constraint=models.CheckConstraint(
                condition=_readable("visible_at"),
                name="django_events_delivery_times",
            ),
        ),
        migrations.AddConstraint(
            model_name="deliverylease",
            constraint=models.CheckConstraint(
                condition=_readable("leased_until"),
                name="django_events_deliverylease_times",
            ),
        ),
        migrations.AddConstraint(
            model_name="position",
            constraint=models.CheckConstraint(
                condition=_readable("retry_at", "failing_since", "stopped_at", "leased_until", "served_at"),
                name="django_events_position_times",
            ),
        ),
        migrations.AddConstraint(
            model_name="position",
            constraint=models.CheckConstraint(
                condition=models.Q(("token__isnull", True), ("leased_until__isnull", False), _connector="OR"),
                name="django_events_position_lease",
            ),
        ),
        migrations.RunSQL(TUNE_POSITIONS, migrations.RunSQL.noop),
        migrations.AddIndex(
            model_name="consumer",
            index=models.Index(
                condition=models.Q(("live", True)), fields=["topic"], name="django_events_consumer_live"
            ),
        ),
        migrations.AddIndex(
            model_name="consumer",
            index=models.Index(
                condition=models.Q(("live", True), ("max_pending__isnull", False)),
                fields=["topic"],
                name="django_events_consumer_bounded",
            ),
        ),
        migrations.AddIndex(
            model_name="consumer",
            index=models.Index(
                condition=models.Q(("indexed", False), ("live", True)),
                fields=["topic"],
                name="django_events_consumer_tried",
            ),
        ),
        migrations.AddIndex(
            model_name="consumer",
            index=models.Index(
                condition=models.Q(("indexed", True), ("live", True)),
                fields=["topic", "filter_digest"],
                name="django_events_consumer_filter",
            ),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("key__isnull", False)),
                fields=["consumer", "key", "event_id"],
                name="django_events_delivery_key",
            ),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("visible_at__isnull", False)),
                fields=["consumer", "visible_at"],
                name="django_events_delivery_visible",
            ),
        ),
        migrations.RunSQL(TUNE_DELIVERIES, migrations.RunSQL.noop),
        migrations.CreateModel(
            name="WebhookEndpoint",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("url", models.TextField(verbose_name="URL")),
                (
                    "form",
                    models.CharField(
                        choices=[
                            ("json", "JSON"),
                            ("cloudevent", "CloudEvent"),
                            ("cloudevent_binary", "CloudEvent with its attributes in headers"),
                        ],
                        default="json",
                        max_length=20,
                        verbose_name="form",
                    ),
                ),
                (
                    "concurrency",
                    models.IntegerField(
                        default=10,
                        help_text="How many requests a process has under way at most.",
                        verbose_name="at the same time",
                    ),
                ),
                (
                    "batch_size",
                    models.IntegerField(
                        default=1,
                        help_text="Above 1, requests have lists of events.",
                        verbose_name="events in a request",
                    ),
                ),
                (
                    "failing_since",
                    models.DateTimeField(
                        blank=True,
                        editable=False,
                        help_text="Since then nothing could be delivered.",
                        null=True,
                        verbose_name="fails since",
                    ),
                ),
                (
                    "disabled_because",
                    models.TextField(
                        blank=True, db_default="", default="", editable=False, verbose_name="disabled because"
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        verbose_name="created at",
                    ),
                ),
                (
                    "consumer",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="webhook",
                        to="django_events.consumer",
                        verbose_name="consumer",
                    ),
                ),
            ],
            options={
                "verbose_name": "webhook endpoint",
                "verbose_name_plural": "webhook endpoints",
                "default_permissions": ("add", "change", "view"),
            },
        ),
        migrations.CreateModel(
            name="WebhookAttempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("event_id", models.BigIntegerField(verbose_name="event")),
                ("attempt", models.IntegerField(verbose_name="attempt")),
                (
                    "at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(), editable=False, verbose_name="at"
                    ),
                ),
                ("seconds", models.FloatField(verbose_name="seconds")),
                ("status", models.IntegerField(blank=True, null=True, verbose_name="status")),
                (
                    "excerpt",
                    models.TextField(blank=True, default="", help_text="The begin of its body.", verbose_name="answer"),
                ),
                ("error", models.TextField(blank=True, default="", verbose_name="error")),
                (
                    "endpoint",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="attempts",
                        to="django_events.webhookendpoint",
                        verbose_name="webhook endpoint",
                    ),
                ),
            ],
            options={
                "verbose_name": "webhook attempt",
                "verbose_name_plural": "webhook attempts",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="WebhookSecret",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("secret", models.CharField(editable=False, max_length=100, verbose_name="secret")),
                (
                    "signs_until",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="signs until"),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        verbose_name="created at",
                    ),
                ),
                (
                    "endpoint",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="secrets",
                        to="django_events.webhookendpoint",
                        verbose_name="webhook endpoint",
                    ),
                ),
            ],
            options={
                "verbose_name": "webhook secret",
                "verbose_name_plural": "webhook secrets",
                "default_permissions": (),
            },
        ),
        migrations.AddConstraint(
            model_name="webhookendpoint",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("failing_since__gte", datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC)),
                    ("failing_since__lt", datetime.datetime(9999, 1, 1, 0, 0, tzinfo=datetime.UTC)),
                ),
                name="django_events_webhookendpoint_times",
            ),
        ),
        migrations.AddConstraint(
            model_name="webhookendpoint",
            constraint=models.CheckConstraint(
                condition=models.Q(("batch_size__gte", 1), ("batch_size__lte", 100)),
                name="django_events_webhookendpoint_batch",
            ),
        ),
        migrations.AddConstraint(
            model_name="webhookendpoint",
            constraint=models.CheckConstraint(
                condition=models.Q(("concurrency__gte", 1), ("concurrency__lte", 1000)),
                name="django_events_webhookendpoint_concurrency",
            ),
        ),
        migrations.AddIndex(
            model_name="webhookattempt",
            index=models.Index(fields=["endpoint", "id"], name="django_events_webhookattempt_i"),
        ),
        migrations.AddIndex(
            model_name="webhookattempt",
            index=models.Index(fields=["endpoint", "event_id"], name="django_events_webhookattempt_e"),
        ),
        migrations.AddIndex(
            model_name="webhookattempt",
            index=models.Index(fields=["at"], name="django_events_webhookattempt_a"),
        ),
        migrations.AddConstraint(
            model_name="webhooksecret",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("signs_until__gte", datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC)),
                    ("signs_until__lt", datetime.datetime(9999, 1, 1, 0, 0, tzinfo=datetime.UTC)),
                ),
                name="django_events_webhooksecret_times",
            ),
        ),
        migrations.AddConstraint(
            model_name="webhooksecret",
            constraint=models.UniqueConstraint(
                condition=models.Q(("signs_until__isnull", True)),
                fields=("endpoint",),
                name="django_events_webhooksecret_newest",
            ),
        ),
        migrations.RunSQL(CREATE_WORKER_FUNCTIONS, DROP_WORKER_FUNCTIONS),
        pgtrigger.migrations.AddTrigger(
            model_name="event",
            trigger=pgtrigger.compiler.Trigger(
                name="deliver",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="IF EXISTS (SELECT FROM django_events_consumer WHERE live) THEN\nWITH kind AS MATERIALIZED (\n    SELECT DISTINCT topic_id, type FROM new_events\n),\nlive AS MATERIALIZED (\n    SELECT\n        c.id, c.topic_id, c.ordered, c.delay, c.types, c.type_expressions, c.keys, c.key_expressions,\n        c.\"where\"::jsonpath AS predicate, c.metadata::jsonpath AS of_metadata, coalesce(c.vars, jsonb_build_object()) AS vars,\n        min(c.id) OVER (PARTITION BY c.topic_id, c.types, c.keys, c.\"where\", c.metadata, c.vars) AS filter\n    FROM django_events_consumer AS c\n    WHERE c.live\n        AND NOT c.indexed\n        AND c.topic_id IN (SELECT kind.topic_id FROM kind)\n        AND (\n            nullif(current_setting('django_events.only', true), '') IS NULL\n            OR c.id = ANY(nullif(current_setting('django_events.only', true), '')::int[])\n        )\n),\nfitting AS MATERIALIZED (\n    SELECT live.filter, live.topic_id, kind.type, live.keys, live.key_expressions, live.predicate, live.of_metadata, live.vars\n    FROM live\n    JOIN kind ON kind.topic_id = live.topic_id\n    WHERE live.id = live.filter\n        AND (\n            live.types IS NULL\n            OR live.types @> to_jsonb(kind.type)\n            OR EXISTS (SELECT FROM jsonb_array_elements_text(live.type_expressions) AS x WHERE kind.type ~ x)\n        )\n)\nINSERT INTO django_events_delivery (consumer_id, event_id, key, received_at, visible_at)\nSELECT\n    live.id, e.id, CASE WHEN live.ordered THEN e.key END, statement_timestamp(),\n    CASE WHEN e.logged_at + live.delay > statement_timestamp() THEN e.logged_at + live.delay END\nFROM fitting\nJOIN new_events AS e ON e.topic_id = fitting.topic_id AND e.type = fitting.type\nJOIN live ON live.filter = fitting.filter\nWHERE (\n        fitting.keys IS NULL\n        OR fitting.keys @> to_jsonb(e.key)\n        OR EXISTS (SELECT FROM jsonb_array_elements_text(fitting.key_expressions) AS x WHERE e.key ~ x)\n    )\n    AND (fitting.predicate IS NULL OR coalesce(jsonb_path_match(e.value, fitting.predicate, fitting.vars, true), false))\n    AND (\n        fitting.of_metadata IS NULL\n        OR coalesce(jsonb_path_match(e.metadata, fitting.of_metadata, fitting.vars, true), false)\n    );\nIF EXISTS (SELECT FROM django_events_consumer WHERE live AND indexed) THEN\nWITH RECURSIVE asked AS (\n    SELECT first.topic_id, first.source, first.path\n    FROM (SELECT DISTINCT topic_id FROM new_events) AS came\n    CROSS JOIN LATERAL (\n        SELECT t.topic_id, t.source, t.path\n        FROM django_events_filterterm AS t\n        WHERE t.topic_id = came.topic_id\n        ORDER BY t.topic_id, t.source, t.path\n        LIMIT 1\n    ) AS first\n    UNION ALL\n    SELECT next.topic_id, next.source, next.path\n    FROM asked\n    CROSS JOIN LATERAL (\n        SELECT t.topic_id, t.source, t.path\n        FROM django_events_filterterm AS t\n        WHERE t.topic_id = asked.topic_id AND (t.source, t.path) > (asked.source, asked.path)\n        ORDER BY t.topic_id, t.source, t.path\n        LIMIT 1\n    ) AS next\n),\nmatched AS (\n    SELECT e.topic_id, e.id, e.key, e.logged_at, f.filter_digest\n    FROM new_events AS e\n    CROSS JOIN LATERAL (\n        SELECT DISTINCT found.filter_digest\n        FROM asked\n        CROSS JOIN LATERAL jsonb_path_query(\n            CASE asked.source\n                WHEN 'value' THEN e.value\n                WHEN 'metadata' THEN e.metadata\n                ELSE to_jsonb(e.key)\n            END,\n            asked.path::jsonpath, jsonb_build_object(), true\n        ) AS item (value)\n        CROSS JOIN LATERAL (\n            SELECT t.filter_digest\n            FROM django_events_filterterm AS t\n            WHERE t.topic_id = asked.topic_id AND t.source = asked.source AND t.path = asked.path AND t.value = item.value\n            OFFSET 0\n        ) AS found\n        WHERE asked.topic_id = e.topic_id AND jsonb_typeof(item.value) NOT IN ('object', 'array')\n    ) AS candidate\n    CROSS JOIN LATERAL (\n        SELECT c.*\n        FROM django_events_consumer AS c\n        WHERE c.topic_id = e.topic_id AND c.filter_digest = candidate.filter_digest AND c.live AND c.indexed\n            AND (\n                nullif(current_setting('django_events.only', true), '') IS NULL\n                OR c.id = ANY(nullif(current_setting('django_events.only', true), '')::int[])\n            )\n        LIMIT 1\n    ) AS f\n    WHERE CASE\n        WHEN f.types IS NOT NULL\n            AND NOT f.types @> to_jsonb(e.type)\n            AND NOT EXISTS (SELECT FROM jsonb_array_elements_text(f.type_expressions) AS x WHERE e.type ~ x)\n            THEN false\n        WHEN f.keys IS NOT NULL\n            AND NOT coalesce(f.keys @> to_jsonb(e.key), false)\n            AND NOT EXISTS (SELECT FROM jsonb_array_elements_text(f.key_expressions) AS x WHERE e.key ~ x)\n            THEN false\n        WHEN f.\"where\" IS NOT NULL\n            AND NOT coalesce(\n                jsonb_path_match(e.value, f.\"where\"::jsonpath, coalesce(f.vars, jsonb_build_object()), true), false\n            )\n            THEN false\n        ELSE f.metadata IS NULL OR coalesce(\n            jsonb_path_match(e.metadata, f.metadata::jsonpath, coalesce(f.vars, jsonb_build_object()), true), false\n        )\n    END\n    OFFSET 0\n)\nINSERT INTO django_events_delivery (consumer_id, event_id, key, received_at, visible_at)\nSELECT\n    c.id, matched.id, CASE WHEN c.ordered THEN matched.key END, statement_timestamp(),\n    CASE WHEN matched.logged_at + c.delay > statement_timestamp() THEN matched.logged_at + c.delay END\nFROM matched\nCROSS JOIN LATERAL (\n    SELECT c.id, c.ordered, c.delay\n    FROM django_events_consumer AS c\n    WHERE c.topic_id = matched.topic_id AND c.filter_digest = matched.filter_digest AND c.live AND c.indexed\n            AND (\n                nullif(current_setting('django_events.only', true), '') IS NULL\n                OR c.id = ANY(nullif(current_setting('django_events.only', true), '')::int[])\n            )\n    OFFSET 0\n) AS c;\nEND IF;\nIF EXISTS (SELECT FROM django_events_consumer WHERE live AND max_pending IS NOT NULL) THEN\nUPDATE django_events_consumer AS c\nSET live = false, filled_until = owner.last\nFROM (\n    SELECT c.id, came.last\n    FROM (SELECT topic_id, max(id) AS last FROM new_events GROUP BY topic_id) AS came\n    JOIN django_events_consumer AS c ON c.topic_id = came.topic_id AND c.live AND c.max_pending IS NOT NULL\n    JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1\n    WHERE came.last - p.position >= c.max_pending\n        AND c.max_pending <= (\n            SELECT count(*)\n            FROM (\n                SELECT\n                FROM django_events_delivery AS d\n                WHERE d.consumer_id = c.id AND d.event_id > p.position\n                ORDER BY d.event_id\n                LIMIT c.max_pending\n            ) AS pending\n        )\n    FOR NO KEY UPDATE OF c SKIP LOCKED\n) AS owner\nWHERE c.id = owner.id;\nEND IF;\nEND IF;\nRETURN NULL;",
                    hash="f814304e1ec7894d31380b0dca66fa4f9a2a182f",
                    level="STATEMENT",
                    operation="INSERT",
                    pgid="pgtrigger_deliver_6a530",
                    referencing="REFERENCING NEW TABLE AS new_events ",
                    table="django_events_event",
                    when="AFTER",
                ),
            ),
        ),
    ]
