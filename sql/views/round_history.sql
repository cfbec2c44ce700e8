{% set moved = lookup('moved', 'FROM reallocations AS m WHERE m.round_id = r.id') %}
-- One row per round: the GPUs it could allocate, what it allocated, its quality, and the moves it caused.
-- solve_s is null where it was not measured.
CREATE VIEW round_history AS
SELECT r.id AS round_id,
       r.at,
       r.shadow,
       r.objective,
       CASE r.solver WHEN 'exact' THEN 'search' ELSE r.solver END AS solver,
       COALESCE(r.num_jobs, 0) AS num_jobs,
       COALESCE(r.num_served, 0) AS num_served,
       COALESCE(r.num_gpus, 0) AS num_gpus,
       r.total_gpus,
       r.fair_share_gpus,
       r.mean_speedup,
       r.min_speedup,
       r.fitness,
       r.upper_bound,
       r.gap,
       COALESCE(r.timed_out, {{ sql_false }}) AS timed_out,
       r.solve_s,
       {{ moved.column('COUNT(*)') }} AS num_moves,
       {{ moved.column("COUNT(CASE WHEN m.step = 'confirmed' THEN 1 END)") }} AS num_confirmed,
       {{ moved.column("COUNT(CASE WHEN m.step IN ('rolled_back', 'failed') THEN 1 END)") }} AS num_failed
FROM rounds AS r
{{ moved.join }}
