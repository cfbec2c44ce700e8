{% set held = lookup('held', 'FROM allocations AS a JOIN allocation_nodes AS n ON n.job_id = a.job_id AND n.number = a.number WHERE a.job_id = j.id') %}
{% set measured = lookup('measured', 'FROM runs AS r JOIN ' ~ clamped('run_days') ~ ' AS d ON d.run_id = r.id WHERE r.job_id = j.id') %}
{% set decided = lookup('decided', 'FROM ' ~ clamped('job_days') ~ ' AS d WHERE d.job_id = j.id') %}
{% set ran = lookup('ran', 'FROM allocations AS a WHERE a.job_id = j.id') %}
{% set started = lookup('begun', 'FROM runs AS r WHERE r.job_id = j.id') %}
{% from 'views/parts/restart_delay.sql' import entered, first_step, total_s %}
{# Not from reallocation_history, which looks up more per move than is needed here. #}
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
    WHERE r.job_id = j.id AND r.step = 'confirmed' AND r.moves_running AND r.way = 'requeue'
) AS x
{%- endset %}
{% set moved = lookup('moved', moves) %}
{% set in_place = "FROM reallocations AS r LEFT JOIN generations AS g ON g.job_id = r.job_id AND g.number = r.generation WHERE r.job_id = j.id AND r.step = 'confirmed' AND r.way = 'in_place'" %}
{% set regrouped = lookup('regrouped', in_place) %}
-- One row per job: owner, GPU hours, goodput, and the cost of its moves.
-- gpu_hours counts an open allocation interval up to now. Means of throughput, efficiency and goodput are over the
-- time that its reports cover; they and the speedups are null where nothing was measured.
-- speedup_one_gpu is the measured goodput over the one that rounds predicted for it on one GPU,
-- speedup_fair_share over the one that they predicted at its fair share of the cluster.
-- examples are those that its runs counted. restarts are its confirmed moves by requeue, lost_s the sum of their
-- restart delays; regroups are those in place, standstill_s the sum of their standstills.
-- requeues is Slurm's restart count in the last run.
-- gpu_hours are Slurm's own (ElapsedRaw times GPUs), to a second per run. estimated is true where a part of them,
-- or the end, is an estimate, because neither Slurm nor its accounting database has it.
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
       {{ least('1.0', 'COALESCE(' ~ ratio('x.trained_gpu_hours', 'x.gpu_hours') ~ ', 0.0)') }} AS progress_share,
       x.num_samples,
       x.throughput,
       x.efficiency,
       x.goodput,
       x.examples,
       x.useful_examples,
       x.progress,
       {{ ratio('x.goodput', 'x.one_gpu_goodput') }} AS speedup_one_gpu,
       {{ ratio('x.goodput', 'x.fair_share_goodput') }} AS speedup_fair_share,
       x.runs,
       x.restarts,
       x.lost_s,
       x.regroups,
       x.standstill_s,
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
           COALESCE({{ held.column('SUM(' ~ greatest('0.0', seconds('a.started_at', 'COALESCE(a.ended_at, CURRENT_TIMESTAMP)'))
                            ~ ' * n.num_gpus) / 3600.0') }}, 0.0) AS gpu_hours,
           COALESCE({{ measured.column('SUM(d.trained_gpu_s) / 3600.0') }}, 0.0) AS trained_gpu_hours,
           COALESCE({{ measured.column('CAST(' ~ total('d.num_samples') ~ ' AS BIGINT)') }}, 0) AS num_samples,
           {{ measured.column(ratio('SUM(d.examples)', 'SUM(d.trained_s)')) }} AS throughput,
           {{ measured.column(ratio('SUM(d.efficiency_s)', 'SUM(d.measured_s)')) }} AS efficiency,
           {{ measured.column(ratio('SUM(d.useful_examples)', 'SUM(d.measured_s)')) }} AS goodput,
           COALESCE({{ measured.column('SUM(d.counted_examples)') }}, 0.0) AS examples,
           COALESCE({{ measured.column('SUM(d.useful_examples)') }}, 0.0) AS useful_examples,
           COALESCE({{ measured.column('MAX(d.progress)') }}, 0.0) AS progress,
           {{ decided.column(ratio('SUM(d.one_gpu_goodput_sum)', total('d.num_one_gpu'))) }} AS one_gpu_goodput,
           {{ decided.column(ratio('SUM(d.fair_share_goodput_sum)', total('d.num_compared'))) }} AS fair_share_goodput,
           {{ started.column('COUNT(*)') }} AS runs,
           {{ moved.column('COUNT(*)') }} AS restarts,
           COALESCE({{ moved.column('SUM(' ~ total_s(seconds('x.requeued_at', first_step), seconds('x.checkpointed_at', first_step)) ~ ')') }}, 0.0) AS lost_s,
           {{ regrouped.column('COUNT(*)') }} AS regroups,
           COALESCE({{ regrouped.column('SUM(g.standstill_s)') }}, 0.0) AS standstill_s,
           COALESCE({{ ran.column('MAX(a.restart_count)') }}, 0) AS requeues,
           j.estimated
    FROM jobs AS j
    JOIN users AS u ON u.user_id = j.user_id
    {{ held.join }} {{ ran.join }} {{ measured.join }} {{ decided.join }} {{ started.join }} {{ moved.join }} {{ regrouped.join }}
) AS x
