{# The restart delay of a reallocation: for rows `x` with the times of its steps, checkpoint_s and first_step_at.
   The first step is that of the next run, or the end of the reallocation where no run reported one or it came
   later. pollux_slurm.store.journal.move_costs explains the rule. #}
{% macro entered(name, step) -%}
LEFT JOIN reallocation_steps AS {{ name }} ON {{ name }}.reallocation_id = r.id AND {{ name }}.step = '{{ step }}'
{%- endmacro %}
{% set first_step = 'COALESCE(' ~ least('x.first_step_at', 'x.confirmed_at') ~ ', x.confirmed_at, x.first_step_at)' %}
{% macro total_s(since_requeue, since_checkpoint) -%}
CASE WHEN x.requeued_at IS NULL THEN NULL
            WHEN x.checkpoint_s IS NULL THEN {{ not_negative(since_requeue) }}
            ELSE {{ not_negative(since_checkpoint ~ ' + x.checkpoint_s') }}
       END
{%- endmacro %}
