-- Why were jobs moved, how often was that confirmed, and how often with which irregularity?
SELECT cause,
       way,
       COUNT(*) AS moves,
       COUNT(CASE WHEN step = 'confirmed' THEN 1 END) AS confirmed,
       COUNT(CASE WHEN checkpoint_waived THEN 1 END) AS without_checkpoint,
       COUNT(CASE WHEN retargeted THEN 1 END) AS retargeted,
       COUNT(CASE WHEN job_failed THEN 1 END) AS job_failed,
       SUM(COALESCE(total_s, standstill_s) * source_gpus) / 3600.0 AS lost_gpu_hours
FROM reallocation_history
WHERE planned_at >= (SELECT month_ago FROM calendar)
GROUP BY cause, way
ORDER BY moves DESC, cause, way
