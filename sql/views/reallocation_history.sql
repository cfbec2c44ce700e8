-- One row per reallocation: from what to what, how it ended, and where its time went, in seconds.
-- checkpoint_s is the standstill for the checkpoint, hold_s from there to the release, slurm_s from requeue to
-- start (it overlaps hold_s), launch_s from start to the first step, total_s the whole standstill.
CREATE VIEW reallocation_history AS
WITH times AS (
    SELECT reallocation_id,
           MIN(at) AS planned_at,
           MAX(at) AS last_step_at,
           MAX(CASE WHEN step = 'checkpointed' THEN at END) AS checkpointed_at,
           MAX(CASE WHEN step = 'requeued' THEN at END) AS requeued_at,
           MAX(CASE WHEN step = 'released' THEN at END) AS released_at,
           MAX(CASE WHEN step = 'running' THEN at END) AS running_at,
           MAX(CASE WHEN step = 'confirmed' THEN at END) AS confirmed_at
    FROM reallocation_steps
    GROUP BY reallocation_id
),
sizes AS (
    SELECT reallocation_id,
           SUM(CASE WHEN side = 'source' THEN num_gpus ELSE 0 END) AS source_gpus,
           SUM(CASE WHEN side = 'source' THEN 1 ELSE 0 END) AS source_nodes,
           SUM(CASE WHEN side = 'target' THEN num_gpus ELSE 0 END) AS target_gpus,
           SUM(CASE WHEN side = 'target' THEN 1 ELSE 0 END) AS target_nodes
    FROM reallocation_nodes
    GROUP BY reallocation_id
),
stepped AS (
    SELECT r.id AS reallocation_id,
           (SELECT n.first_step_at
            FROM runs AS n
            WHERE n.job_id = r.job_id
              AND n.restart_count > r.from_restart_count
              AND n.first_step_at IS NOT NULL
            ORDER BY n.run_number
            LIMIT 1) AS first_step_at
    FROM reallocations AS r
),
ends AS (
    SELECT t.reallocation_id,
           CASE WHEN s.first_step_at IS NULL OR t.confirmed_at < s.first_step_at
                THEN t.confirmed_at
                ELSE s.first_step_at
           END AS stepped_at
    FROM times AS t
    JOIN stepped AS s ON s.reallocation_id = t.reallocation_id
),
costs AS (
    SELECT t.reallocation_id,
           c.blocked_s AS checkpoint_s,
           {{ seconds('t.checkpointed_at', 't.released_at') }} AS hold_s,
           {{ seconds('t.requeued_at', 't.running_at') }} AS slurm_s,
           {{ seconds('t.running_at', 'e.stepped_at') }} AS launch_s,
           CASE WHEN t.requeued_at IS NULL THEN NULL
                WHEN c.blocked_s IS NULL THEN {{ seconds('t.requeued_at', 'e.stepped_at') }}
                ELSE {{ seconds('t.checkpointed_at', 'e.stepped_at') }} + c.blocked_s
           END AS total_s
    FROM times AS t
    JOIN ends AS e ON e.reallocation_id = t.reallocation_id
    LEFT JOIN checkpoints AS c ON c.reallocation_id = t.reallocation_id
)
SELECT r.id AS reallocation_id,
       r.job_id,
       j.slurm_job_id,
       u.user_name,
       j.account,
       r.round_id,
       r.step,
       r.reason,
       r.moves_running,
       t.planned_at,
       t.last_step_at,
       COALESCE(z.source_gpus, 0) AS source_gpus,
       COALESCE(z.source_nodes, 0) AS source_nodes,
       COALESCE(z.target_gpus, 0) AS target_gpus,
       COALESCE(z.target_nodes, 0) AS target_nodes,
       c.checkpoint_s,
       CASE WHEN c.hold_s < 0.0 THEN 0.0 ELSE c.hold_s END AS hold_s,
       CASE WHEN c.slurm_s < 0.0 THEN 0.0 ELSE c.slurm_s END AS slurm_s,
       CASE WHEN c.launch_s < 0.0 THEN 0.0 ELSE c.launch_s END AS launch_s,
       CASE WHEN c.total_s < 0.0 THEN 0.0 ELSE c.total_s END AS total_s
FROM reallocations AS r
JOIN jobs AS j ON j.id = r.job_id
JOIN users AS u ON u.user_id = j.user_id
JOIN times AS t ON t.reallocation_id = r.id
JOIN costs AS c ON c.reallocation_id = r.id
LEFT JOIN sizes AS z ON z.reallocation_id = r.id
