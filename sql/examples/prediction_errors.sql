-- How far were predicted throughputs off, by type and number of GPUs?
SELECT gpu_type,
       num_gpus,
       num_nodes,
       SUM(num_samples) AS samples,
       SUM(mean_error * num_samples) / SUM(num_samples) AS mean_error,
       SUM(mean_abs_error * num_samples) / SUM(num_samples) AS mean_abs_error
FROM model_accuracy
WHERE day >= (SELECT month_ago FROM calendar)
GROUP BY gpu_type, num_gpus, num_nodes
ORDER BY gpu_type, num_gpus, num_nodes
