-- How long did jobs wait for their first GPUs, by account?
SELECT account, COUNT(*) AS jobs, AVG(waited_s) AS mean_waited_s, MAX(waited_s) AS longest_s
FROM job_goodput
WHERE submitted_at >= (SELECT month_ago FROM calendar) AND started_at IS NOT NULL
GROUP BY account
ORDER BY mean_waited_s DESC
