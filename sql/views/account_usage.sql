-- One row per account and day (UTC) on which it held GPUs or measured anything.
-- trained_gpu_hours is the part of gpu_hours during which reports told of progress, progress_share that part of
-- it (0 to 1), useful_gpu_hours what is left of it after statistical efficiency. throughput, efficiency and
-- goodput are means of one job while it trained, null where none measured.
CREATE VIEW account_usage AS
SELECT x.day,
       j.account,
{% include 'views/parts/usage_sums.sql' %}

FROM (
    {% include 'views/parts/usage.sql' %}

) AS x
JOIN jobs AS j ON j.id = x.job_id
GROUP BY x.day, j.account
