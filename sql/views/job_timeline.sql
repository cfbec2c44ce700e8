{% set place = "n.node_name || ':' || CAST(n.num_gpus AS TEXT)" %}
{% set held = lookup('held', 'FROM (SELECT n.num_gpus, ' ~ place ~ ' AS place FROM allocation_nodes AS n WHERE n.job_id = a.job_id AND n.number = a.number ORDER BY n.node_name) AS n') %}
{% set ran = lookup('ran', 'FROM run_nodes AS n WHERE n.run_id = r.id') %}
{% set gained = lookup('gained', "FROM reallocation_nodes AS n WHERE n.reallocation_id = m.id AND n.side = 'target' AND s.step = 'planned'") %}
-- One row per event of a job; order by job_id, at, rank. event is one of
--   submitted, started, finished (detail: its final state);
--   allocated (from at to until it had num_gpus on num_nodes; detail: GPUs by node; until is null while it has);
--   run (at: its first report; until: its last report; detail: its phase), first_step (of that run);
--   checkpoint (detail: its size; duration_s: how long it blocked training);
--   reallocation (one per step of its journal; num_gpus and num_nodes: of its target, in step planned;
--   detail: the step, and at an end the reason).
-- rank orders events of the same time. Columns that do not apply to an event are null.
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
           {{ held.column('COALESCE(SUM(n.num_gpus), 0)') }} AS num_gpus,
           {{ held.column('COUNT(*)') }} AS num_nodes,
           CAST(NULL AS DOUBLE PRECISION) AS duration_s,
           CAST(NULL AS INTEGER) AS run_number,
           CAST(NULL AS BIGINT) AS reallocation_id,
           CAST(NULL AS BIGINT) AS round_id,
           {{ held.column(joined('n.place')) }} AS detail
    FROM allocations AS a
    {{ held.join }}
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
           {{ ran.column('COALESCE(SUM(n.num_gpus), 0)') }}, {{ ran.column('COUNT(*)') }},
           NULL, r.run_number, NULL, NULL, r.phase
    FROM runs AS r
    {{ ran.join }}
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
           {{ gained.column('SUM(n.num_gpus)') }}, CASE WHEN s.step = 'planned' THEN {{ gained.column('COUNT(*)') }} END,
           NULL, NULL, m.id, m.round_id,
           CASE WHEN s.step IN ('rolled_back', 'failed') AND m.reason IS NOT NULL THEN s.step || ': ' || m.reason
                ELSE s.step
           END
    FROM reallocation_steps AS s
    JOIN reallocations AS m ON m.id = s.reallocation_id
    {{ gained.join }}
) AS e
JOIN jobs AS j ON j.id = e.job_id
JOIN users AS u ON u.user_id = j.user_id
