{% from 'views/parts/standstill.sql' import not_negative, entered, stepped_at, total_s %}
{% set goodput = 'SUM(d.useful_examples) / SUM(d.measured_s)' %}
{% set of_job = 'FROM runs AS n WHERE n.job_id = r.job_id AND n.restart_count' %}
{% set before = looked_up('earlier', of_job ~ ' <= r.from_restart_count AND r.moves_running ORDER BY n.run_number DESC LIMIT 1') %}
{% set after = looked_up('later', of_job ~ " > r.from_restart_count AND r.step = 'confirmed' ORDER BY n.run_number LIMIT 1") %}
{% set stepped = looked_up('stepped', of_job ~ ' > r.from_restart_count AND n.first_step_at IS NOT NULL ORDER BY n.run_number LIMIT 1') %}
{% set ends = looked_up('ends', 'FROM reallocation_nodes AS n WHERE n.reallocation_id = x.reallocation_id') %}
{% set steps = looked_up('steps', 'FROM reallocation_steps AS s WHERE s.reallocation_id = x.reallocation_id') %}
{% set old = looked_up('goodput_then', 'FROM ' ~ tamed('run_days') ~ ' AS d WHERE d.run_id = x.run_before AND d.measured_s > 0.0') %}
{% set new = looked_up('goodput_now', 'FROM ' ~ tamed('run_days') ~ ' AS d WHERE d.run_id = x.run_after AND d.measured_s > 0.0') %}
{% macro gpus(side) -%}
{{ ends.of("COALESCE(SUM(CASE WHEN n.side = '" ~ side ~ "' THEN n.num_gpus END), 0)") }}
{%- endmacro %}
{% macro nodes(side) -%}
{{ ends.of("COUNT(CASE WHEN n.side = '" ~ side ~ "' THEN 1 END)") }}
{%- endmacro %}
-- One row per reallocation: why it was planned, from what to what, how it ended, when it took each step, where
-- its time went, in seconds, and what it brought. reason is a text for people; group by cause, not by it.
-- checkpoint_s is the standstill for the checkpoint, hold_s from there to the release, slurm_s from requeue to
-- start (it overlaps hold_s), launch_s from start to the first step, total_s the whole standstill.
-- goodput_before and goodput_after are the means over the whole run that ended and the whole run that followed.
CREATE VIEW reallocation_history AS
SELECT x.reallocation_id,
       x.job_id,
       x.slurm_job_id,
       x.user_name,
       x.account,
       x.round_id,
       x.cause,
       x.step,
       x.checkpoint_waived,
       x.retargeted,
       x.trained_on,
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
       x.confirmed_at,
       {{ steps.of('MAX(s.at)') }} AS last_step_at,
       {{ gpus('source') }} AS source_gpus,
       {{ nodes('source') }} AS source_nodes,
       {{ gpus('target') }} AS target_gpus,
       {{ nodes('target') }} AS target_nodes,
       x.checkpoint_s,
       {{ not_negative(seconds('x.checkpointed_at', 'x.released_at')) }} AS hold_s,
       {{ not_negative(seconds('x.requeued_at', 'x.running_at')) }} AS slurm_s,
       {{ not_negative(seconds('x.running_at', stepped_at)) }} AS launch_s,
       {{ total_s(seconds('x.requeued_at', stepped_at), seconds('x.checkpointed_at', stepped_at)) }} AS total_s,
       {{ old.of(goodput) }} AS goodput_before,
       {{ new.of(goodput) }} AS goodput_after
FROM (
    SELECT r.id AS reallocation_id,
           r.job_id,
           j.slurm_job_id,
           u.user_name,
           j.account,
           r.round_id,
           r.cause,
           r.step,
           r.checkpoint_waived,
           r.retargeted,
           r.trained_on,
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
           confirmed.at AS confirmed_at,
           c.blocked_s AS checkpoint_s,
           {{ stepped.of('n.first_step_at') }} AS first_step_at,
           {{ before.of('n.id') }} AS run_before,
           {{ after.of('n.id') }} AS run_after
    FROM reallocations AS r
    JOIN jobs AS j ON j.id = r.job_id
    JOIN users AS u ON u.user_id = j.user_id
    JOIN reallocation_steps AS planned ON planned.reallocation_id = r.id AND planned.step = 'planned'
    {{ entered('requested', 'checkpoint_requested') }}
    {{ entered('checkpointed', 'checkpointed') }}
    {{ entered('requeued', 'requeued') }}
    {{ entered('released', 'released') }}
    {{ entered('running', 'running') }}
    {{ entered('confirmed', 'confirmed') }}
    LEFT JOIN checkpoints AS c ON c.reallocation_id = r.id
    {{ stepped.join }} {{ before.join }} {{ after.join }}
) AS x
{{ ends.join }} {{ steps.join }} {{ old.join }} {{ new.join }}
