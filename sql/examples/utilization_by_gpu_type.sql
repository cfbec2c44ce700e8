-- How busy did adaptive jobs keep each type of GPU, of what they could have?
SELECT gpu_type,
       COUNT(DISTINCT node_name) AS nodes,
       SUM(gpu_hours) AS gpu_hours,
       SUM(offered_gpu_hours) AS offered_gpu_hours
FROM node_usage
WHERE day >= '2026-03-01' AND day < '2026-04-01'
GROUP BY gpu_type
ORDER BY gpu_type
