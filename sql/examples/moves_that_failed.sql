-- Which moves did not succeed, and why?
SELECT slurm_job_id, user_name, planned_at, cause, way, step, reason
FROM reallocation_history
WHERE step IN ('rolled_back', 'failed')
  AND planned_at >= (SELECT month_ago FROM calendar)
ORDER BY planned_at
