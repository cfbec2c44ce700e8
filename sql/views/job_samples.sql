-- One row per goodput sample: what a run measured since its previous sample. Select one job at a time.
-- num_gpus and num_nodes are those that the run used, goodput is throughput times efficiency in examples per
-- second, progress is in units of M0. What was not measured is null. Pruning deletes the samples of
-- old jobs.
CREATE VIEW job_samples AS
SELECT r.job_id,
       j.slurm_job_id,
       u.user_name,
       j.account,
       r.run_number,
       s.sequence,
       s.at,
       (SELECT COALESCE(SUM(n.num_gpus), 0) FROM run_nodes AS n WHERE n.run_id = r.id) AS num_gpus,
       (SELECT COUNT(*) FROM run_nodes AS n WHERE n.run_id = r.id) AS num_nodes,
       s.global_batch_size,
       s.atomic_batch_size,
       s.accumulation_steps,
       s.throughput,
       s.predicted_throughput,
       s.efficiency,
       s.throughput * s.efficiency AS goodput,
       s.progress,
       s.epoch,
       s.total_epochs
FROM {{ clamped('goodput_samples') }} AS s
JOIN runs AS r ON r.id = s.run_id
JOIN jobs AS j ON j.id = r.job_id
JOIN users AS u ON u.user_id = j.user_id
