{% set held = looked_up('held', 'FROM allocations AS a JOIN allocation_nodes AS n ON n.job_id = a.job_id AND n.number = a.number WHERE a.job_id = j.id') %}
{% set measured = looked_up('measured', 'FROM runs AS r JOIN ' ~ tamed('run_days') ~ ' AS d ON d.run_id = r.id WHERE r.job_id = j.id') %}
{% set decided = looked_up('decided', 'FROM ' ~ tamed('job_days') ~ ' AS d WHERE d.job_id = j.id') %}
{% set ran = looked_up('ran', 'FROM allocations AS a WHERE a.job_id = j.id') %}
{% set started = looked_up('begun', 'FROM runs AS r WHERE r.job_id = j.id') %}
{% from 'views/parts/standstill.sql' import entered, stepped_at, total_s %}
{# Not from reallocation_history, which looks up more about each move than is wanted here. #}
{% set moves %}
FROM (
    SELECT c.blocked_s AS checkpoint_s,
           checkpointed.at AS checkpointed_at,
           requeued.at AS requeued_at,
           confirmed.at AS confirmed_at,
           (SELECT n.first_step_at
            FROM runs AS n
            WHERE n.job_id = r.job_id AND n.restart_count > r.from_restart_count AND n.first_step_at IS NOT NULL
            ORDER BY n.run_number
            LIMIT 1) AS first_step_at
    FROM reallocations AS r
    {{ entered('checkpointed', 'checkpointed') }}
    {{ entered('requeued', 'requeued') }}
    {{ entered('confirmed', 'confirmed') }}
    LEFT JOIN checkpoints AS c ON c.reallocation_id = r.id
    WHERE r.job_id = j.id AND r.step = 'confirmed' AND r.moves_running
) AS x
{%- endset %}
{% set moved = looked_up('moved', moves) %}
-- One row per job: whose it is, what it held, what it got out of it, and what moving it cost.
-- gpu_hours counts a stretch that still lasts up to now. Means of throughput, efficiency and goodput are over
-- the time that its reports cover; they, and the speedups made of them, are null where nothing was measured.
-- speedup_one_gpu is the measured goodput over the one that rounds predicted for it on one GPU,
-- speedup_fair_share over the one that they predicted at its fair share of the cluster.
-- examples are those that its runs counted. lost_s adds up the standstill of the confirmed reallocations. requeues is Slurm's restart
-- count in the last run, restarts the moves among them.
-- gpu_hours are Slurm's own (ElapsedRaw times GPUs) to a second per run; estimated says where a part of them,
-- or the end, is a guess, because neither Slurm nor its accounting database told.
CREATE VIEW job_goodput AS
SELECT x.job_id,
       x.slurm_job_id,
       x.name,
       x.user_name,
       x.account,
       x.partition,
       x.state,
       x.submitted_at,
       x.started_at,
       x.finished_at,
       x.waited_s,
       x.submit_to_finish_s,
       x.gpu_hours,
       x.trained_gpu_hours,
       CASE WHEN x.gpu_hours > x.trained_gpu_hours THEN x.trained_gpu_hours / x.gpu_hours
            WHEN x.gpu_hours > 0.0 THEN 1.0
            ELSE 0.0
       END AS progress_share,
       x.num_samples,
       x.throughput,
       x.efficiency,
       x.goodput,
       x.examples,
       x.useful_examples,
       x.progress,
       {{ ratio('x.goodput', 'x.single_goodput') }} AS speedup_one_gpu,
       {{ ratio('x.goodput', 'x.fair_goodput') }} AS speedup_fair_share,
       x.runs,
       x.restarts,
       x.lost_s,
       x.requeues,
       x.estimated
FROM (
    SELECT j.id AS job_id,
           j.slurm_job_id,
           j.name,
           u.user_name,
           j.account,
           j.partition,
           j.state,
           j.submitted_at,
           j.started_at,
           j.finished_at,
           {{ greatest('0.0', seconds('j.submitted_at', 'COALESCE(j.started_at, j.finished_at, CURRENT_TIMESTAMP)')) }} AS waited_s,
           {{ seconds('j.submitted_at', 'j.finished_at') }} AS submit_to_finish_s,
           COALESCE({{ held.of('SUM(' ~ greatest('0.0', seconds('a.started_at', 'COALESCE(a.ended_at, CURRENT_TIMESTAMP)'))
                            ~ ' * n.num_gpus) / 3600.0') }}, 0.0) AS gpu_hours,
           COALESCE({{ measured.of('SUM(d.trained_gpu_s) / 3600.0') }}, 0.0) AS trained_gpu_hours,
           COALESCE({{ measured.of('CAST(' ~ total('d.num_samples') ~ ' AS BIGINT)') }}, 0) AS num_samples,
           {{ measured.of(ratio('SUM(d.examples)', 'SUM(d.trained_s)')) }} AS throughput,
           {{ measured.of(ratio('SUM(d.efficiency_s)', 'SUM(d.measured_s)')) }} AS efficiency,
           {{ measured.of(ratio('SUM(d.useful_examples)', 'SUM(d.measured_s)')) }} AS goodput,
           COALESCE({{ measured.of('SUM(d.counted_examples)') }}, 0.0) AS examples,
           COALESCE({{ measured.of('SUM(d.useful_examples)') }}, 0.0) AS useful_examples,
           COALESCE({{ measured.of('MAX(d.progress)') }}, 0.0) AS progress,
           {{ decided.of(ratio('SUM(d.single_goodput_sum)', total('d.num_single'))) }} AS single_goodput,
           {{ decided.of(ratio('SUM(d.fair_goodput_sum)', total('d.num_compared'))) }} AS fair_goodput,
           {{ started.of('COUNT(*)') }} AS runs,
           {{ moved.of('COUNT(*)') }} AS restarts,
           COALESCE({{ moved.of('SUM(' ~ total_s(seconds('x.requeued_at', stepped_at), seconds('x.checkpointed_at', stepped_at)) ~ ')') }}, 0.0) AS lost_s,
           COALESCE({{ ran.of('MAX(a.restart_count)') }}, 0) AS requeues,
           j.estimated
    FROM jobs AS j
    JOIN users AS u ON u.user_id = j.user_id
    {{ held.join }} {{ ran.join }} {{ measured.join }} {{ decided.join }} {{ started.join }} {{ moved.join }}
) AS x
