-- Whose models promise more than they keep?
SELECT user_name,
       slurm_job_id,
       run_number,
       SUM(num_samples) AS samples,
       SUM(mean_error * num_samples) / SUM(num_samples) AS mean_error
FROM model_accuracy
WHERE day >= '2026-03-01' AND day < '2026-04-01'
GROUP BY user_name, slurm_job_id, run_number
HAVING SUM(mean_error * num_samples) > 0.0
ORDER BY mean_error DESC
LIMIT 20
