-- How much goodput did each account get for its GPU hours?
SELECT account,
       SUM(gpu_hours) AS gpu_hours,
       SUM(trained_gpu_hours) AS trained_gpu_hours,
       SUM(useful_gpu_hours) AS useful_gpu_hours,
       SUM(useful_examples) AS useful_examples
FROM account_usage
WHERE day >= (SELECT month_ago FROM calendar)
GROUP BY account
ORDER BY gpu_hours DESC, account
