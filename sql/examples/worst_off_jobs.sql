-- Which jobs were worse off than on an equal part of the cluster?
SELECT slurm_job_id, user_name, account, rho, elapsed_s, fair_share_s, waited_s, mean_gpus, fair_share_gpus
FROM fairness
WHERE submitted_at >= (SELECT month_ago FROM calendar) AND rho > 1.0
ORDER BY rho DESC
LIMIT 20
