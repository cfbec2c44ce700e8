-- How near to the upper bound were rounds, how many GPUs did they allocate, and how long did they take?
SELECT objective,
       solver,
       shadow,
       COUNT(*) AS rounds,
       AVG(gap) AS mean_gap,
       AVG(solve_s) AS mean_solve_s,
       MAX(solve_s) AS longest_solve_s,
       SUM(num_gpus) AS gpus_allocated,
       SUM(total_gpus) AS gpus_available,
       SUM(num_moves) AS moves
FROM round_history
WHERE at >= (SELECT month_ago FROM calendar)
GROUP BY objective, solver, shadow
ORDER BY objective, solver, shadow
