-- One row per account and day (UTC) on which it had GPUs or measured anything.
-- trained_gpu_hours is the part of gpu_hours in which reports show progress, progress_share that fraction (0 to
-- 1), useful_gpu_hours is trained_gpu_hours times statistical efficiency. throughput, efficiency and goodput are
-- means per job while it trained, null where nothing was measured.
CREATE VIEW account_usage AS
SELECT x.day,
       j.account,
{% include 'views/parts/usage_sums.sql' %}

FROM (
    {% include 'views/parts/usage.sql' %}

) AS x
JOIN jobs AS j ON j.id = x.job_id
GROUP BY x.day, j.account
