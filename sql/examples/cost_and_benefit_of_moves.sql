-- What did moves cost, and what was the goodput after them over that before?
SELECT CASE WHEN target_gpus > source_gpus THEN 'grown'
            WHEN target_gpus < source_gpus THEN 'shrunk'
            ELSE 'moved'
       END AS kind,
       way,
       COUNT(*) AS moves,
       SUM(COALESCE(total_s, standstill_s) * source_gpus) / 3600.0 AS lost_gpu_hours,
       AVG(goodput_after / goodput_before) AS goodput_ratio
FROM reallocation_history
WHERE step = 'confirmed' AND moves_running
  AND planned_at >= (SELECT month_ago FROM calendar)
GROUP BY CASE WHEN target_gpus > source_gpus THEN 'grown'
              WHEN target_gpus < source_gpus THEN 'shrunk'
              ELSE 'moved'
         END,
         way
ORDER BY kind, way
