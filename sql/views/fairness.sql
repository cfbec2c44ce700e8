{% set measured = lookup('measured', 'FROM runs AS r JOIN ' ~ clamped('run_days') ~ ' AS d ON d.run_id = r.id WHERE r.job_id = j.id') %}
{% set decided = lookup('decided', 'FROM ' ~ clamped('job_days') ~ ' AS d WHERE d.job_id = j.id') %}
{% set fair_share_s = ratio('x.goodput * x.trained_s', 'x.fair_share_goodput') %}
-- One row per job: its finish-time fairness (Themis, NSDI 2020).
-- rho is elapsed_s / fair_share_s: its time from submission to its end (so far), over the time that the same work
-- would have taken on its fair share of the cluster from the start, at the goodput that rounds predicted there.
-- At rho <= 1 it was not worse off than on an equal part of the cluster. Null where nothing was measured or
-- predicted. fair_share_gpus, mean_gpus and mean_speedup are means over the rounds that decided about it, null
-- where none did.
CREATE VIEW fairness AS
SELECT x.job_id,
       x.slurm_job_id,
       x.name,
       x.user_name,
       x.account,
       x.state,
       x.submitted_at,
       x.finished_at,
       x.elapsed_s,
       x.waited_s,
       x.num_rounds,
       x.fair_share_gpus,
       x.mean_gpus,
       x.mean_speedup,
       x.goodput,
       x.fair_share_goodput,
       {{ fair_share_s }} AS fair_share_s,
       {{ ratio('x.elapsed_s', fair_share_s) }} AS rho
FROM (
    SELECT j.id AS job_id,
           j.slurm_job_id,
           j.name,
           u.user_name,
           j.account,
           j.state,
           j.submitted_at,
           j.finished_at,
           {{ greatest('0.0', seconds('j.submitted_at', 'COALESCE(j.finished_at, CURRENT_TIMESTAMP)')) }} AS elapsed_s,
           {{ greatest('0.0', seconds('j.submitted_at', 'COALESCE(j.started_at, j.finished_at, CURRENT_TIMESTAMP)')) }} AS waited_s,
           COALESCE({{ decided.column('CAST(' ~ total('d.num_rounds') ~ ' AS BIGINT)') }}, 0) AS num_rounds,
           {{ decided.column(ratio('SUM(d.fair_share_gpus_sum)', total('CASE WHEN d.fair_share_gpus_sum > 0.0 THEN d.num_rounds END'))) }} AS fair_share_gpus,
           {{ decided.column(ratio('SUM(d.gpus_sum)', total('d.num_rounds'))) }} AS mean_gpus,
           {{ decided.column(ratio('SUM(d.speedup_sum)', total('d.num_rounds'))) }} AS mean_speedup,
           {{ decided.column(ratio('SUM(d.fair_share_goodput_sum)', total('d.num_compared'))) }} AS fair_share_goodput,
           {{ measured.column(ratio('SUM(d.useful_examples)', 'SUM(d.measured_s)')) }} AS goodput,
           {{ measured.column('SUM(d.trained_s)') }} AS trained_s
    FROM jobs AS j
    JOIN users AS u ON u.user_id = j.user_id
    {{ measured.join }} {{ decided.join }}
) AS x
