-- Which jobs had GPUs without reporting progress, and for how many GPU hours?
SELECT slurm_job_id, user_name, account, state, gpu_hours - trained_gpu_hours AS idle_gpu_hours, progress_share
FROM job_goodput
WHERE submitted_at >= (SELECT month_ago FROM calendar)
  AND gpu_hours - trained_gpu_hours > 0.5
ORDER BY idle_gpu_hours DESC
LIMIT 20
