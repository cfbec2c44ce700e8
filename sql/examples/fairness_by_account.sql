-- How evenly was the cluster shared: finish-time fairness by account?
SELECT account,
       COUNT(rho) AS jobs,
       AVG(rho) AS mean_rho,
       MAX(rho) AS worst_rho,
       AVG(CASE WHEN rho > 1.0 THEN 1.0 WHEN rho <= 1.0 THEN 0.0 END) AS share_worse_off
FROM fairness
WHERE submitted_at >= (SELECT month_ago FROM calendar)
GROUP BY account
HAVING COUNT(rho) > 0
ORDER BY worst_rho DESC
