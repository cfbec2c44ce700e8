{#
 Adds samples to the sums of their run and day. `samples` is where they come from: the row that was just
 inserted, or a whole table.

 A sample covers the time since the previous one of its run, or since the run's first step: at least the step
 that it measured, at most an hour. The part before midnight (UTC) counts for the day before.
 It counts for the GPUs that its run reports, but at most for those that Slurm showed, because a run can report
 anything. Examples are those that the run counted since the previous sample; without a count, throughput times
 time. Numbers below 1e-9 count as 1e-9, because PostgreSQL raises an error for a product that underflows.
#}
INSERT INTO run_days (run_id, day, num_samples, progress, trained_s, trained_gpu_s, examples, measured_s,
                      useful_examples, efficiency_s, useful_gpu_s, num_compared, compared_s,
                      compared_examples, predicted_examples, error_sum, abs_error_sum, counted_examples)
SELECT p.run_id,
       p.day,
       SUM(p.n),
       MAX(p.progress),
       SUM(CASE WHEN p.throughput IS NULL THEN 0.0 ELSE p.s END),
       SUM(CASE WHEN p.throughput IS NULL THEN 0.0 ELSE p.s * p.gpus END),
       SUM(COALESCE(p.throughput * p.s, 0.0)),
       SUM(CASE WHEN p.goodput IS NULL THEN 0.0 ELSE p.s END),
       SUM(COALESCE(p.goodput * p.s, 0.0)),
       SUM(CASE WHEN p.goodput IS NULL THEN 0.0 ELSE p.efficiency * p.s END),
       SUM(CASE WHEN p.goodput IS NULL THEN 0.0 ELSE p.efficiency * p.s * p.gpus END),
       SUM(CASE WHEN p.error IS NULL THEN 0 ELSE p.n END),
       SUM(CASE WHEN p.error IS NULL THEN 0.0 ELSE p.s END),
       SUM(CASE WHEN p.error IS NULL THEN 0.0 ELSE p.throughput * p.s END),
       SUM(CASE WHEN p.error IS NULL THEN 0.0 ELSE p.predicted * p.s END),
       SUM(COALESCE(p.error, 0.0) * p.n),
       SUM(ABS(COALESCE(p.error, 0.0)) * p.n),
       SUM(COALESCE(p.counted * p.s / p.covered_s, p.throughput * p.s, 0.0))
FROM (
    WITH bounded AS (
        SELECT s.run_id,
               s.at,
               CASE WHEN s.num_examples < s.previous_examples THEN 0
                    ELSE s.num_examples - COALESCE(s.previous_examples, 0)
               END AS counted,
               s.progress,
               CASE WHEN s.throughput < 1e-9 THEN 1e-9 ELSE s.throughput END AS throughput,
               CASE WHEN s.efficiency < 1e-9 THEN 1e-9 ELSE s.efficiency END AS efficiency,
               CASE WHEN s.predicted_throughput < 1e-9 THEN 1e-9 ELSE s.predicted_throughput END AS predicted,
               COALESCE({{ seconds('s.previous_at', 's.at') }},
                        {{ seconds('r.first_report_at', 's.at') }} - COALESCE(r.first_step_s, 0.0)) AS elapsed_s,
               CASE WHEN s.step_time_s >= 0.001 THEN s.step_time_s ELSE 0.001 END AS step_s,
               {{ seconds(midnight(day('s.at')), 's.at') }} AS today_s,
               (SELECT SUM(n.num_gpus) FROM run_nodes AS n WHERE n.run_id = s.run_id) AS reported_gpus,
               (SELECT SUM(n.num_gpus)
                FROM allocations AS a
                JOIN allocation_nodes AS n ON n.job_id = a.job_id AND n.number = a.number
                WHERE a.job_id = r.job_id AND a.started_at <= s.at
                  AND (a.ended_at IS NULL OR a.ended_at > s.at)) AS allocated_gpus
        FROM {{ samples }} AS s
        JOIN runs AS r ON r.id = s.run_id
    ),
    covered AS (
        SELECT c.*,
               c.throughput * c.efficiency AS goodput,
               COALESCE({{ least('c.reported_gpus', 'c.allocated_gpus') }}, c.reported_gpus, 0) AS gpus,
               CASE WHEN c.predicted > c.throughput * 1e6 THEN 1e6 ELSE c.predicted / c.throughput - 1.0 END AS error,
               {{ least('3600.0', greatest('c.elapsed_s', 'c.step_s')) }} AS covered_s
        FROM bounded AS c
    )
    SELECT c.run_id, {{ day('c.at') }} AS day, 1 AS n, {{ least('c.covered_s', 'c.today_s') }} AS s, c.progress,
           c.throughput, c.efficiency, c.predicted, c.goodput, c.error, c.gpus, c.counted, c.covered_s
    FROM covered AS c
    UNION ALL
    SELECT c.run_id, {{ day_before('c.at') }}, 0, c.covered_s - c.today_s, c.progress,
           c.throughput, c.efficiency, c.predicted, c.goodput, c.error, c.gpus, c.counted, c.covered_s
    FROM covered AS c
    WHERE c.covered_s > c.today_s
) AS p
WHERE true
GROUP BY p.run_id, p.day
ON CONFLICT (run_id, day) DO UPDATE SET
    num_samples = run_days.num_samples + excluded.num_samples,
    progress = {{ greatest('run_days.progress', 'excluded.progress') }},
    trained_s = run_days.trained_s + excluded.trained_s,
    trained_gpu_s = run_days.trained_gpu_s + excluded.trained_gpu_s,
    examples = run_days.examples + excluded.examples,
    measured_s = run_days.measured_s + excluded.measured_s,
    useful_examples = run_days.useful_examples + excluded.useful_examples,
    efficiency_s = run_days.efficiency_s + excluded.efficiency_s,
    useful_gpu_s = run_days.useful_gpu_s + excluded.useful_gpu_s,
    num_compared = run_days.num_compared + excluded.num_compared,
    compared_s = run_days.compared_s + excluded.compared_s,
    compared_examples = run_days.compared_examples + excluded.compared_examples,
    predicted_examples = run_days.predicted_examples + excluded.predicted_examples,
    error_sum = run_days.error_sum + excluded.error_sum,
    abs_error_sum = run_days.abs_error_sum + excluded.abs_error_sum,
    counted_examples = run_days.counted_examples + excluded.counted_examples
