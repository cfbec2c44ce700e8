-- How well did adaptive jobs use the available GPUs of each type?
SELECT gpu_type,
       COUNT(DISTINCT node_name) AS nodes,
       SUM(gpu_hours) AS gpu_hours,
       SUM(available_gpu_hours) AS available_gpu_hours
FROM node_usage
WHERE day >= (SELECT month_ago FROM calendar)
GROUP BY gpu_type
ORDER BY gpu_type
