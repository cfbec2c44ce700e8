{% from 'views/parts/restart_delay.sql' import entered, first_step, total_s %}
{% set goodput = 'SUM(d.useful_examples) / SUM(d.measured_s)' %}
{% set of_job = 'FROM runs AS n WHERE n.job_id = r.job_id AND n.restart_count' %}
{# In place, the members of a generation are a run of their own, in the same start of the job. #}
{% set until_it = " <= r.from_restart_count AND r.moves_running AND (r.way = 'requeue' OR n.first_report_at <= regroup_requested.at)" %}
{% set after_it = " >= r.from_restart_count AND r.step = 'confirmed' AND CASE WHEN r.way = 'requeue' THEN n.restart_count > r.from_restart_count ELSE n.first_report_at > regroup_requested.at END" %}
{% set before = lookup('earlier', of_job ~ until_it ~ ' ORDER BY n.run_number DESC LIMIT 1') %}
{% set after = lookup('later', of_job ~ after_it ~ ' ORDER BY n.run_number LIMIT 1') %}
{% set stepped = lookup('stepped', of_job ~ " > r.from_restart_count AND r.way = 'requeue' AND n.first_step_at IS NOT NULL ORDER BY n.run_number LIMIT 1") %}
{% set ends = lookup('ends', 'FROM reallocation_nodes AS n WHERE n.reallocation_id = x.reallocation_id') %}
{% set steps = lookup('steps', 'FROM reallocation_steps AS s WHERE s.reallocation_id = x.reallocation_id') %}
{% set old = lookup('goodput_old', 'FROM ' ~ clamped('run_days') ~ ' AS d WHERE d.run_id = x.run_before AND d.measured_s > 0.0') %}
{% set new = lookup('goodput_new', 'FROM ' ~ clamped('run_days') ~ ' AS d WHERE d.run_id = x.run_after AND d.measured_s > 0.0') %}
{% macro gpus(side) -%}
{{ ends.column("COALESCE(SUM(CASE WHEN n.side = '" ~ side ~ "' THEN n.num_gpus END), 0)") }}
{%- endmacro %}
{% macro nodes(side) -%}
{{ ends.column("COUNT(CASE WHEN n.side = '" ~ side ~ "' THEN 1 END)") }}
{%- endmacro %}
-- One row per reallocation: its cause, source and target, how it ended, the time of each step, its cost in
-- seconds, and the goodput before and after. reason is a text for people; group by cause.
-- checkpoint_s is how long the checkpoint blocked training, hold_s the time from its confirmation to the release,
-- slurm_s from requeue to start (it overlaps hold_s), launch_s from start to the first step, total_s the whole
-- restart delay: these are of moves by requeue. Of moves in place, standstill_s is how long training stood still,
-- and warm_up_s how long the gained GPUs, if any, were idle before. goodput_before and goodput_after are means over
-- the whole run that ended and the whole next run; in place, that is what the job was before and after the regroup.
CREATE VIEW reallocation_history AS
SELECT x.reallocation_id,
       x.job_id,
       x.slurm_job_id,
       x.user_name,
       x.account,
       x.round_id,
       x.cause,
       x.way,
       x.step,
       x.checkpoint_waived,
       x.retargeted,
       x.continued_training,
       x.job_failed,
       x.taken_over,
       x.reason,
       x.moves_running,
       x.planned_at,
       x.requested_at,
       x.checkpointed_at,
       x.requeued_at,
       x.released_at,
       x.running_at,
       x.first_step_at,
       x.regroup_requested_at,
       x.regrouped_at,
       x.confirmed_at,
       {{ steps.column('MAX(s.at)') }} AS last_step_at,
       {{ gpus('source') }} AS source_gpus,
       {{ nodes('source') }} AS source_nodes,
       {{ gpus('target') }} AS target_gpus,
       {{ nodes('target') }} AS target_nodes,
       x.checkpoint_s,
       {{ not_negative(seconds('x.checkpointed_at', 'x.released_at')) }} AS hold_s,
       {{ not_negative(seconds('x.requeued_at', 'x.running_at')) }} AS slurm_s,
       {{ not_negative(seconds('x.running_at', first_step)) }} AS launch_s,
       {{ total_s(seconds('x.requeued_at', first_step), seconds('x.checkpointed_at', first_step)) }} AS total_s,
       x.standstill_s,
       CASE WHEN EXISTS (
                SELECT 1
                FROM reallocation_nodes AS n
                LEFT JOIN reallocation_nodes AS o
                       ON o.reallocation_id = n.reallocation_id AND o.side = 'source' AND o.node_name = n.node_name
                WHERE n.reallocation_id = x.reallocation_id AND n.side = 'target' AND n.num_gpus > COALESCE(o.num_gpus, 0)
            ) THEN {{ not_negative(seconds('x.regroup_requested_at', 'x.regrouped_at') ~ ' - x.standstill_s') }}
       END AS warm_up_s,
       {{ old.column(goodput) }} AS goodput_before,
       {{ new.column(goodput) }} AS goodput_after
FROM (
    SELECT r.id AS reallocation_id,
           r.job_id,
           j.slurm_job_id,
           u.user_name,
           j.account,
           r.round_id,
           r.cause,
           r.way,
           r.step,
           r.checkpoint_waived,
           r.retargeted,
           r.continued_training,
           r.job_failed,
           r.taken_over,
           r.reason,
           r.moves_running,
           planned.at AS planned_at,
           requested.at AS requested_at,
           checkpointed.at AS checkpointed_at,
           requeued.at AS requeued_at,
           released.at AS released_at,
           running.at AS running_at,
           regroup_requested.at AS regroup_requested_at,
           regrouped.at AS regrouped_at,
           confirmed.at AS confirmed_at,
           g.standstill_s,
           c.blocked_s AS checkpoint_s,
           {{ stepped.column('n.first_step_at') }} AS first_step_at,
           {{ before.column('n.id') }} AS run_before,
           {{ after.column('n.id') }} AS run_after
    FROM reallocations AS r
    JOIN jobs AS j ON j.id = r.job_id
    JOIN users AS u ON u.user_id = j.user_id
    JOIN reallocation_steps AS planned ON planned.reallocation_id = r.id AND planned.step = 'planned'
    {{ entered('requested', 'checkpoint_requested') }}
    {{ entered('checkpointed', 'checkpointed') }}
    {{ entered('requeued', 'requeued') }}
    {{ entered('released', 'released') }}
    {{ entered('running', 'running') }}
    {{ entered('regroup_requested', 'regroup_requested') }}
    {{ entered('regrouped', 'regrouped') }}
    {{ entered('confirmed', 'confirmed') }}
    LEFT JOIN generations AS g ON g.job_id = r.job_id AND g.number = r.generation
    LEFT JOIN checkpoints AS c ON c.reallocation_id = r.id
    {{ stepped.join }} {{ before.join }} {{ after.join }}
) AS x
{{ ends.join }} {{ steps.join }} {{ old.join }} {{ new.join }}
