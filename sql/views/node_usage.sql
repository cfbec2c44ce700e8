-- One row per node and day (UTC) on which a round could use it or an adaptive job had GPUs there.
-- num_gpus is the mean that rounds could allocate there, available_gpu_hours that times the time that these rounds
-- cover; both are 0 for a node that no round of the day could use. utilization is gpu_hours over
-- available_gpu_hours, at most 1. gpu_type is empty where unknown.
CREATE VIEW node_usage AS
SELECT x.day,
       x.node_name,
       COALESCE((SELECT k.gpu_type FROM nodes AS k WHERE k.node_name = x.node_name), '') AS gpu_type,
       COUNT(DISTINCT x.allocated_job_id) AS num_jobs,
       SUM(x.gpu_s) / 3600.0 AS gpu_hours,
       COALESCE({{ ratio('SUM(x.gpus_sum)', total('x.num_rounds')) }}, 0.0) AS num_gpus,
       SUM(x.available_gpu_s) / 3600.0 AS available_gpu_hours,
       CASE WHEN SUM(x.gpu_s) >= SUM(x.available_gpu_s) AND SUM(x.gpu_s) > 0.0 THEN 1.0
            WHEN SUM(x.available_gpu_s) > 0.0 THEN SUM(x.gpu_s) / SUM(x.available_gpu_s)
            ELSE 0.0
       END AS utilization
FROM (
    SELECT h.day, n.node_name, h.job_id AS allocated_job_id, h.allocated_s * n.num_gpus AS gpu_s, 0.0 AS gpus_sum,
           0 AS num_rounds, 0.0 AS available_gpu_s
    FROM (
        {% include 'views/parts/allocation_days.sql' %}

    ) AS h
    JOIN allocation_nodes AS n ON n.job_id = h.job_id AND n.number = h.number
    UNION ALL
    SELECT d.day, d.node_name, NULL, 0.0, d.gpus_sum, d.num_rounds, d.available_gpu_s
    FROM {{ clamped('node_days') }} AS d
) AS x
GROUP BY x.day, x.node_name
