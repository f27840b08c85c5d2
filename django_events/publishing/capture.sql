-- name: capture_function
-- Part of a trigger: the body of its function, which declares the variables. A semicolon comes behind it.
--
-- Parts: rows (the transition table), suppressible (names, as literals), topic (a literal), insert (a statement of this
-- file), empty (an object without keys).
IF NOT EXISTS (SELECT FROM {rows})
    OR string_to_array(current_setting('django_events.suppressed', true), ',') && ARRAY[{suppressible}]
THEN
    RETURN NULL;
END IF;
django_events_topic := django_events_open({topic});
django_events_metadata := coalesce(nullif(current_setting('django_events.context', true), ''), {empty});
{insert};
RETURN NULL


-- name: capture_rows
-- Publish the rows that a statement inserted or deleted: in the function of a trigger, which declares the variables.
--
-- A column may be called like anything, so what is named here is named after us.
-- Parts: rows (the transition table), type, key, checked and end (around the value: the function that refuses
-- what no reader makes into text, or nothing where no column may hold it), shown (columns), condition.
INSERT INTO django_events_bufferedevent (topic_id, type, key, value, metadata)
SELECT django_events_topic, {type}, {key}, {checked}to_jsonb(django_events_shown){end}, django_events_metadata
FROM {rows} AS r
CROSS JOIN LATERAL (SELECT {shown}) AS django_events_shown
WHERE {condition}


-- name: capture_changes
-- Publish the rows that a statement updated, and from what to what: in the function of a trigger, as `capture_rows`.
--
-- A row whose primary key changes is another one from then on: the old one is deleted, and the new one created.
-- Parts: pk (a column of it), same (row), created, updated, deleted (types, or NULL), old_key, new_key, checked
-- and end (as there), old_shown, new_shown (columns), changed (an object), differ, condition.
INSERT INTO django_events_bufferedevent (topic_id, type, key, value, metadata)
SELECT
    django_events_topic,
    django_events_kind.type,
    CASE WHEN n.{pk} IS NULL THEN {old_key} ELSE {new_key} END,
    {checked}CASE
        WHEN n.{pk} IS NULL THEN to_jsonb(django_events_old)
        WHEN o.{pk} IS NULL THEN to_jsonb(django_events_new)
        ELSE to_jsonb(django_events_new) || jsonb_build_object('changed', {changed})
    END{end},
    django_events_metadata
FROM new_values AS n
FULL JOIN old_values AS o ON {same}
CROSS JOIN LATERAL (SELECT {new_shown}) AS django_events_new
CROSS JOIN LATERAL (SELECT {old_shown}) AS django_events_old
CROSS JOIN LATERAL (
    SELECT
        CASE WHEN n.{pk} IS NULL THEN {deleted} WHEN o.{pk} IS NULL THEN {created} ELSE {updated} END AS type
) AS django_events_kind
WHERE django_events_kind.type IS NOT NULL
    AND (n.{pk} IS NULL OR o.{pk} IS NULL OR {differ})
    AND {condition}
