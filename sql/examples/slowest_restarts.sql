-- Which restarts took longest, and which part of them?
SELECT slurm_job_id,
       user_name,
       planned_at,
       source_gpus,
       target_gpus,
       checkpoint_s,
       slurm_s,
       launch_s,
       total_s
FROM reallocation_history
WHERE step = 'confirmed'
  AND moves_running
  AND way = 'requeue'
  AND planned_at >= (SELECT month_ago FROM calendar)
ORDER BY total_s DESC
LIMIT 20
