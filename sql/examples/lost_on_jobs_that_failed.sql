-- How many GPU hours went into jobs that did not complete?
SELECT state, COUNT(*) AS jobs, SUM(gpu_hours) AS gpu_hours
FROM job_goodput
WHERE submitted_at >= (SELECT month_ago FROM calendar)
  AND state IN ('failed', 'timeout', 'cancelled')
GROUP BY state
ORDER BY gpu_hours DESC
