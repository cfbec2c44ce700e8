-- How much faster than on one GPU, and than on its fair share, did the jobs of each account train?
SELECT account,
       COUNT(*) AS jobs,
       AVG(speedup_one_gpu) AS over_one_gpu,
       AVG(speedup_fair_share) AS over_fair_share,
       AVG(efficiency) AS efficiency
FROM job_goodput
WHERE submitted_at >= (SELECT month_ago FROM calendar) AND speedup_fair_share IS NOT NULL
GROUP BY account
ORDER BY over_fair_share DESC
