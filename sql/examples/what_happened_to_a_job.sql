-- What happened to the job that was submitted last?
SELECT at, event, num_gpus, num_nodes, span_s, duration_s, detail
FROM job_timeline
WHERE job_id = (SELECT MAX(job_id) FROM job_goodput)
ORDER BY job_id, at, rank
