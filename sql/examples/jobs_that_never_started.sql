-- Which jobs ended without ever having started?
SELECT slurm_job_id, user_name, account, state, waited_s
FROM job_goodput
WHERE submitted_at >= (SELECT month_ago FROM calendar)
  AND started_at IS NULL AND finished_at IS NOT NULL
ORDER BY waited_s DESC
