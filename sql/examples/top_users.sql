-- Which users held the most GPU hours in a month?
SELECT user_name,
       SUM(gpu_hours) AS gpu_hours,
       SUM(trained_gpu_hours) AS trained_gpu_hours
FROM user_usage
WHERE day >= '2026-03-01' AND day < '2026-04-01'
GROUP BY user_name
ORDER BY gpu_hours DESC, user_name
LIMIT 10
