-- Which users used the most GPU hours in the last month?
SELECT user_name,
       SUM(gpu_hours) AS gpu_hours,
       SUM(trained_gpu_hours) AS trained_gpu_hours
FROM user_usage
WHERE day >= (SELECT month_ago FROM calendar)
GROUP BY user_name
ORDER BY gpu_hours DESC, user_name
LIMIT 10
