{# The restart delay of a reallocation: for rows `x` with the times of its steps, checkpoint_s and first_step_at.
   The first step is that of the next run, or the end of the reallocation where no run reported one or it came
   later. pollux_slurm.store.journal.move_costs explains the rule. #}
{% macro not_negative(value) -%}
CASE WHEN {{ value }} < 0.0 THEN 0.0 ELSE {{ value }} END
{%- endmacro %}
{% macro entered(name, step) -%}
LEFT JOIN reallocation_steps AS {{ name }} ON {{ name }}.reallocation_id = r.id AND {{ name }}.step = '{{ step }}'
{%- endmacro %}
{% set first_step %}
CASE WHEN x.first_step_at IS NULL OR x.confirmed_at < x.first_step_at THEN x.confirmed_at ELSE x.first_step_at END
{%- endset %}
{% macro total_s(since_requeue, since_checkpoint) -%}
CASE WHEN x.requeued_at IS NULL THEN NULL
            WHEN x.checkpoint_s IS NULL THEN {{ not_negative(since_requeue) }}
            ELSE {{ not_negative(since_checkpoint ~ ' + x.checkpoint_s') }}
       END
{%- endmacro %}
