-- Which nodes were used least?
SELECT node_name, gpu_type, SUM(gpu_hours) AS gpu_hours, SUM(num_jobs) AS job_days
FROM node_usage
WHERE day >= (SELECT month_ago FROM calendar)
GROUP BY node_name, gpu_type
ORDER BY gpu_hours, node_name
LIMIT 20
