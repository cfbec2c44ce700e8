{% set place = lookup('place', 'FROM allocations AS a JOIN allocation_nodes AS n ON n.job_id = a.job_id AND n.number = a.number JOIN nodes AS k ON k.node_name = n.node_name WHERE a.job_id = r.job_id AND a.restart_count = r.restart_count') %}
{% set size = lookup('size', 'FROM run_nodes AS n WHERE n.run_id = r.id') %}
-- One row per run and day (UTC): predicted against measured throughput, over the samples that have both.
-- mean_error is the mean of predicted/measured - 1, positive where the model predicted too much; mean_abs_error
-- is the mean of its absolute values. gpu_type is empty where unknown.
CREATE VIEW model_accuracy AS
SELECT r.job_id,
       j.slurm_job_id,
       u.user_name,
       j.account,
       r.run_number,
       d.day,
       COALESCE(r.gpu_type, {{ place.column("CASE WHEN COUNT(DISTINCT k.gpu_type) = 1 THEN MIN(k.gpu_type) END") }}, '') AS gpu_type,
       {{ size.column('COALESCE(SUM(n.num_gpus), 0)') }} AS num_gpus,
       {{ size.column('COUNT(*)') }} AS num_nodes,
       d.num_compared AS num_samples,
       {{ ratio('d.compared_examples', 'd.compared_s') }} AS throughput,
       {{ ratio('d.predicted_examples', 'd.compared_s') }} AS predicted_throughput,
       d.error_sum / d.num_compared AS mean_error,
       d.abs_error_sum / d.num_compared AS mean_abs_error
FROM {{ clamped('run_days') }} AS d
JOIN runs AS r ON r.id = d.run_id
JOIN jobs AS j ON j.id = r.job_id
JOIN users AS u ON u.user_id = j.user_id
{{ size.join }} {{ place.join }}
WHERE d.num_compared > 0
