-- How busy did adaptive jobs keep each type of GPU, of what they could have?
SELECT gpu_type,
       COUNT(DISTINCT node_name) AS nodes,
       SUM(gpu_hours) AS gpu_hours,
       SUM(offered_gpu_hours) AS offered_gpu_hours
FROM node_usage
WHERE day >= (SELECT month_ago FROM calendar)
GROUP BY gpu_type
ORDER BY gpu_type
