{% set measured = lookup('measured', 'FROM model_versions AS m WHERE m.job_id = j.id AND m.alpha_g IS NOT NULL') %}
-- One row per job that has a kind. max_gpus_seen: the most GPUs on which it measured its steps, 0 before.
CREATE VIEW job_kinds AS
SELECT j.id AS job_id,
       j.slurm_job_id,
       j.name,
       u.user_name,
       j.account,
       j.state,
       j.submitted_at,
       j.kind,
       {{ measured.column('COALESCE(MAX(m.max_gpus_seen), 0)') }} AS max_gpus_seen
FROM jobs AS j
JOIN users AS u ON u.user_id = j.user_id
{{ measured.join }}
WHERE j.kind IS NOT NULL
