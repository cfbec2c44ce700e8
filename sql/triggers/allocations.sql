{#
 Splits ended allocation intervals at midnight (UTC). `intervals` is where they come from: the row that was just
 written, or a whole table.
#}
INSERT INTO allocation_days (job_id, number, day, allocated_s)
SELECT d.job_id,
       d.number,
       d.day,
       {{ seconds(greatest('d.started_at', midnight('d.day')), least('d.ended_at', midnight(next_day('d.day')))) }}
FROM (
    WITH RECURSIVE days AS (
        SELECT a.job_id, a.number, a.started_at, a.ended_at, {{ day('a.started_at') }} AS day
        FROM {{ intervals }} AS a
        WHERE a.ended_at IS NOT NULL
        UNION ALL
        SELECT a.job_id, a.number, a.started_at, a.ended_at, {{ next_day('a.day') }}
        FROM days AS a
        WHERE {{ midnight(next_day('a.day')) }} < a.ended_at
    )
    SELECT * FROM days
) AS d
WHERE true
ON CONFLICT (job_id, number, day) DO UPDATE SET allocated_s = excluded.allocated_s
