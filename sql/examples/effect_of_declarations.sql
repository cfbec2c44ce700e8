-- By which factor did declared epochs change the weight of jobs, and whose declarations were ignored?
SELECT j.account, u.user_name, j.slurm_job_id, AVG(d.declared_gain) AS mean_gain, MAX(d.declared_gain) AS most,
       MAX(d.declaration_doubt) AS doubt
FROM decisions AS d
JOIN rounds AS r ON r.id = d.round_id
JOIN jobs AS j ON j.id = d.job_id
JOIN users AS u ON u.user_id = j.user_id
WHERE r.at >= (SELECT month_ago FROM calendar)
  AND (d.declared_gain IS NOT NULL OR d.declaration_doubt IS NOT NULL)
GROUP BY j.account, u.user_name, j.slurm_job_id
ORDER BY AVG(d.declared_gain) IS NULL, AVG(d.declared_gain) DESC, j.slurm_job_id
