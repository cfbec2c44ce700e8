-- Whose models predict more throughput than is measured?
SELECT user_name,
       slurm_job_id,
       run_number,
       SUM(num_samples) AS samples,
       SUM(mean_error * num_samples) / SUM(num_samples) AS mean_error
FROM model_accuracy
WHERE day >= (SELECT month_ago FROM calendar)
GROUP BY user_name, slurm_job_id, run_number
HAVING SUM(mean_error * num_samples) > 0.0
ORDER BY mean_error DESC
LIMIT 20
