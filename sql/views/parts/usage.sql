{# Allocations and measurements of jobs by day: rows to be summed. #}
SELECT h.day,
       h.job_id,
       h.job_id AS allocated_job_id,
       h.allocated_s * n.num_gpus AS gpu_s,
       0.0 AS trained_gpu_s,
       0.0 AS useful_gpu_s,
       0.0 AS trained_s,
       0.0 AS measured_s,
       0.0 AS examples,
       0.0 AS counted_examples,
       0.0 AS useful_examples,
       0.0 AS efficiency_s
FROM (
    {% include 'views/parts/allocation_days.sql' %}
) AS h
JOIN allocation_nodes AS n ON n.job_id = h.job_id AND n.number = h.number
UNION ALL
SELECT d.day, r.job_id, NULL, 0.0, d.trained_gpu_s, d.useful_gpu_s, d.trained_s, d.measured_s, d.examples,
       d.counted_examples, d.useful_examples, d.efficiency_s
FROM {{ clamped('run_days') }} AS d
JOIN runs AS r ON r.id = d.run_id
