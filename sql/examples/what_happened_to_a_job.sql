-- What did the scheduler do to my job?
SELECT at, event, num_gpus, num_nodes, span_s, duration_s, detail
FROM job_timeline
WHERE slurm_job_id = '1'
ORDER BY job_id, at, rank
