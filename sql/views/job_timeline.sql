{% macro places(table, own) -%}
(SELECT {{ listed('p.place') }} FROM (
            SELECT n.node_name || ':' || CAST(n.num_gpus AS TEXT) AS place FROM {{ table }} AS n
            WHERE {{ own }} ORDER BY n.node_name) AS p)
{%- endmacro %}
-- What happened to a job, an event a row; order by job_id, at, rank. event is one of
--   submitted, started, finished (detail: the state it ended in);
--   allocated (from at to until it held num_gpus on num_nodes; detail: GPUs by node; until is null while it does);
--   run (a start reported; until: its last report; detail: run and phase), first_step (of that run);
--   checkpoint (detail: its size; duration_s: how long training stood still);
--   reallocation (one per step of its journal; detail: the step, and at an end the reason).
-- rank orders events of one moment. What an event has not is null.
CREATE VIEW job_timeline AS
SELECT e.job_id,
       j.slurm_job_id,
       u.user_name,
       j.account,
       e.at,
       e.until,
       {{ seconds('e.at', 'e.until') }} AS span_s,
       e.rank,
       e.event,
       e.num_gpus,
       e.num_nodes,
       e.duration_s,
       e.run_number,
       e.reallocation_id,
       e.round_id,
       e.detail
FROM (
    SELECT a.job_id,
           a.started_at AS at,
           a.ended_at AS until,
           3 AS rank,
           'allocated' AS event,
           (SELECT COALESCE(SUM(n.num_gpus), 0) FROM allocation_nodes AS n
            WHERE n.job_id = a.job_id AND n.number = a.number) AS num_gpus,
           (SELECT COUNT(*) FROM allocation_nodes AS n WHERE n.job_id = a.job_id AND n.number = a.number) AS num_nodes,
           CAST(NULL AS DOUBLE PRECISION) AS duration_s,
           CAST(NULL AS INTEGER) AS run_number,
           CAST(NULL AS BIGINT) AS reallocation_id,
           CAST(NULL AS BIGINT) AS round_id,
           {{ places('allocation_nodes', 'n.job_id = a.job_id AND n.number = a.number') }} AS detail
    FROM allocations AS a
    UNION ALL
    SELECT s.id, s.submitted_at, NULL, 0, 'submitted', NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM jobs AS s
    UNION ALL
    SELECT s.id, s.started_at, NULL, 2, 'started', NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM jobs AS s
    WHERE s.started_at IS NOT NULL
    UNION ALL
    SELECT s.id, s.finished_at, NULL, 9, 'finished', NULL, NULL, NULL, NULL, NULL, NULL, s.state
    FROM jobs AS s
    WHERE s.finished_at IS NOT NULL
    UNION ALL
    SELECT r.job_id, r.first_report_at, r.last_report_at, 4, 'run',
           (SELECT COALESCE(SUM(n.num_gpus), 0) FROM run_nodes AS n WHERE n.run_id = r.id),
           (SELECT COUNT(*) FROM run_nodes AS n WHERE n.run_id = r.id),
           NULL, r.run_number, NULL, NULL, r.phase
    FROM runs AS r
    UNION ALL
    SELECT r.job_id, r.first_step_at, NULL, 5, 'first_step', NULL, NULL, r.first_step_s, r.run_number, NULL, NULL, NULL
    FROM runs AS r
    WHERE r.first_step_at IS NOT NULL
    UNION ALL
    SELECT r.job_id, c.at, NULL, 6, 'checkpoint', NULL, NULL, c.blocked_s, r.run_number, c.reallocation_id, NULL,
           CAST(c.size_bytes AS TEXT) || ' bytes'
    FROM checkpoints AS c
    JOIN runs AS r ON r.id = c.run_id
    UNION ALL
    SELECT m.job_id, s.at, NULL, 7, 'reallocation',
           (SELECT COALESCE(SUM(n.num_gpus), 0) FROM reallocation_nodes AS n
            WHERE n.reallocation_id = m.id AND n.side = 'target'),
           (SELECT COUNT(*) FROM reallocation_nodes AS n WHERE n.reallocation_id = m.id AND n.side = 'target'),
           NULL, NULL, m.id, m.round_id,
           CASE WHEN s.step IN ('rolled_back', 'failed') AND m.reason IS NOT NULL THEN s.step || ': ' || m.reason
                ELSE s.step
           END
    FROM reallocation_steps AS s
    JOIN reallocations AS m ON m.id = s.reallocation_id
) AS e
JOIN jobs AS j ON j.id = e.job_id
JOIN users AS u ON u.user_id = j.user_id
