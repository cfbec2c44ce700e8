{# Adds rounds' decisions to the sums of their job and day. `condition` selects the rounds; empty for all. #}
INSERT INTO job_days (job_id, day, num_rounds, gpus_sum, fair_share_gpus_sum, speedup_sum, num_compared,
                      fair_share_goodput_sum, num_one_gpu, one_gpu_goodput_sum)
SELECT c.job_id,
       c.day,
       COUNT(*),
       SUM(c.num_gpus),
       SUM(COALESCE(c.fair_share_gpus, 0)),
       SUM(c.speedup),
       COUNT(c.fair_share_goodput),
       COALESCE(SUM(c.fair_share_goodput), 0.0),
       COUNT(c.one_gpu_goodput),
       COALESCE(SUM(c.one_gpu_goodput), 0.0)
FROM (
    SELECT d.job_id,
           {{ day('r.at') }} AS day,
           d.num_gpus,
           r.fair_share_gpus,
           d.speedup,
           CASE WHEN d.goodput > 1e-9 AND d.speedup > 1e-9 THEN d.goodput / d.speedup END AS fair_share_goodput,
           d.one_gpu_goodput
    FROM {{ clamped('decisions', 'round_id', 'job_id', 'num_gpus', 'speedup', 'goodput', 'one_gpu_goodput') }} AS d
    JOIN rounds AS r ON r.id = d.round_id
    {{ condition }}
) AS c
WHERE true
GROUP BY c.job_id, c.day
ON CONFLICT (job_id, day) DO UPDATE SET
    num_rounds = job_days.num_rounds + excluded.num_rounds,
    gpus_sum = job_days.gpus_sum + excluded.gpus_sum,
    fair_share_gpus_sum = job_days.fair_share_gpus_sum + excluded.fair_share_gpus_sum,
    speedup_sum = job_days.speedup_sum + excluded.speedup_sum,
    num_compared = job_days.num_compared + excluded.num_compared,
    fair_share_goodput_sum = job_days.fair_share_goodput_sum + excluded.fair_share_goodput_sum,
    num_one_gpu = job_days.num_one_gpu + excluded.num_one_gpu,
    one_gpu_goodput_sum = job_days.one_gpu_goodput_sum + excluded.one_gpu_goodput_sum
