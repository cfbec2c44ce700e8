-- How many GPU hours did adaptive jobs use on each day, and in which share of them did they make progress?
SELECT day,
       SUM(gpu_hours) AS gpu_hours,
       SUM(trained_gpu_hours) / SUM(gpu_hours) AS progress_share
FROM account_usage
WHERE day >= (SELECT month_ago FROM calendar) AND gpu_hours > 0.0
GROUP BY day
ORDER BY day
