-- One row per user, account and day (UTC) on which they had GPUs or measured anything. The other columns are
-- those of account_usage.
CREATE VIEW user_usage AS
SELECT x.day,
       u.user_name,
       j.account,
{% include 'views/parts/usage_sums.sql' %}

FROM (
    {% include 'views/parts/usage.sql' %}

) AS x
JOIN jobs AS j ON j.id = x.job_id
JOIN users AS u ON u.user_id = j.user_id
GROUP BY x.day, u.user_name, j.account
