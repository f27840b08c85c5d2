-- name: has_tables
-- Whether django-celery-beat has its tables in this database.
--
-- Relies on: nothing.
SELECT to_regclass('django_celery_beat_periodictask') IS NOT NULL


-- name: periodic_tasks
-- The periodic tasks of django-celery-beat with their schedules, by name.
--
-- Relies on: these tables are small.
SELECT
    t.name, t.task, t.args, t.kwargs, t.queue, t.priority, t.expires, t.expire_seconds, t.one_off, t.start_time,
    t.enabled, c.minute, c.hour, c.day_of_month, c.month_of_year, c.day_of_week, c.timezone, i.every, i.period,
    s.event, k.clocked_time, clock_timestamp()
FROM django_celery_beat_periodictask AS t
LEFT JOIN django_celery_beat_crontabschedule AS c ON c.id = t.crontab_id
LEFT JOIN django_celery_beat_intervalschedule AS i ON i.id = t.interval_id
LEFT JOIN django_celery_beat_solarschedule AS s ON s.id = t.solar_id
LEFT JOIN django_celery_beat_clockedschedule AS k ON k.id = t.clocked_id
ORDER BY t.name
