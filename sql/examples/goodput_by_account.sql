-- How much goodput did each account get for its GPU hours?
SELECT account,
       COUNT(*) AS jobs,
       SUM(gpu_hours) AS gpu_hours,
       SUM(gpu_hours * goodput) / SUM(CASE WHEN goodput IS NOT NULL THEN gpu_hours END) AS mean_goodput,
       SUM(restarts) AS restarts,
       SUM(lost_s) / 3600.0 AS lost_hours
FROM job_goodput
GROUP BY account
ORDER BY gpu_hours DESC
