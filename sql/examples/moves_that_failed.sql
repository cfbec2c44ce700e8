-- Which moves did not succeed, and why?
SELECT slurm_job_id, user_name, planned_at, step, reason
FROM reallocation_history
WHERE step IN ('rolled_back', 'failed')
  AND planned_at >= '2026-03-01' AND planned_at < '2026-04-01'
ORDER BY planned_at
