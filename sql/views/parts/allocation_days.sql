{# Allocation intervals by day: ended ones from their table of sums, open ones up to now. #}
SELECT d.job_id, d.number, d.day, d.allocated_s
FROM {{ clamped('allocation_days') }} AS d
UNION ALL
SELECT o.job_id,
       o.number,
       o.day,
       {{ seconds(greatest('o.started_at', midnight('o.day')),
                  least('o.ended_at', midnight(next_day('o.day')))) }}
FROM (
    WITH RECURSIVE days AS (
        SELECT a.job_id, a.number, a.started_at, CURRENT_TIMESTAMP AS ended_at, {{ day('a.started_at') }} AS day
        FROM allocations AS a
        WHERE a.ended_at IS NULL AND a.started_at <= CURRENT_TIMESTAMP
        UNION ALL
        SELECT a.job_id, a.number, a.started_at, a.ended_at, {{ next_day('a.day') }}
        FROM days AS a
        WHERE {{ midnight(next_day('a.day')) }} < a.ended_at
    )
    SELECT * FROM days
) AS o
