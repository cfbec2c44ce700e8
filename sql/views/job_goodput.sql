-- One row per job: what it got, what it made of it, and what moving it cost.
-- gpu_hours counts a stretch that still lasts up to now; the means are over the job's goodput samples, which
-- come at even intervals; lost_s adds up the standstill of the confirmed reallocations.
CREATE VIEW job_goodput AS
WITH gpu_time AS (
    SELECT s.job_id,
           SUM(s.duration_s * n.num_gpus) / 3600.0 AS gpu_hours
    FROM (
        SELECT job_id, number,
               {{ seconds('started_at', 'COALESCE(ended_at, CURRENT_TIMESTAMP)') }} AS duration_s
        FROM allocations
    ) AS s
    JOIN allocation_nodes AS n ON n.job_id = s.job_id AND n.number = s.number
    GROUP BY s.job_id
),
measured AS (
    SELECT r.job_id,
           COUNT(*) AS num_samples,
           AVG(s.throughput) AS throughput,
           AVG(s.efficiency) AS efficiency,
           AVG(s.throughput * s.efficiency) AS goodput,
           MAX(s.progress) AS progress
    FROM goodput_samples AS s
    JOIN runs AS r ON r.id = s.run_id
    GROUP BY r.job_id
),
moves AS (
    SELECT job_id,
           COUNT(*) AS restarts,
           SUM(total_s) AS lost_s
    FROM reallocation_history
    WHERE step = 'confirmed' AND moves_running
    GROUP BY job_id
)
SELECT j.id AS job_id,
       j.slurm_job_id,
       j.name,
       u.user_name,
       j.account,
       j.partition,
       j.state,
       j.submitted_at,
       j.started_at,
       j.finished_at,
       {{ seconds('j.submitted_at', 'j.finished_at') }} AS submit_to_finish_s,
       COALESCE(g.gpu_hours, 0.0) AS gpu_hours,
       COALESCE(m.num_samples, 0) AS num_samples,
       m.throughput,
       m.efficiency,
       m.goodput,
       m.progress,
       COALESCE(v.restarts, 0) AS restarts,
       COALESCE(v.lost_s, 0.0) AS lost_s
FROM jobs AS j
JOIN users AS u ON u.user_id = j.user_id
LEFT JOIN gpu_time AS g ON g.job_id = j.id
LEFT JOIN measured AS m ON m.job_id = j.id
LEFT JOIN moves AS v ON v.job_id = j.id
