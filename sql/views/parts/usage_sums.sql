{# The columns of the usage views, after their keys. #}
       COUNT(DISTINCT x.allocated_job_id) AS num_jobs,
       SUM(x.gpu_s) / 3600.0 AS gpu_hours,
       SUM(x.trained_gpu_s) / 3600.0 AS trained_gpu_hours,
       SUM(x.useful_gpu_s) / 3600.0 AS useful_gpu_hours,
       {{ least('1.0', 'COALESCE(' ~ ratio('SUM(x.trained_gpu_s)', 'SUM(x.gpu_s)') ~ ', 0.0)') }} AS progress_share,
       SUM(x.counted_examples) AS examples,
       SUM(x.useful_examples) AS useful_examples,
       {{ ratio('SUM(x.examples)', 'SUM(x.trained_s)') }} AS throughput,
       {{ ratio('SUM(x.efficiency_s)', 'SUM(x.measured_s)') }} AS efficiency,
       {{ ratio('SUM(x.useful_examples)', 'SUM(x.measured_s)') }} AS goodput
