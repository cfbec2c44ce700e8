{#
 What a job's calls are in the tables, written once for SQLite and PostgreSQL. On SQLite the package
 executes these statements; on PostgreSQL they are the body of functions (sql/security/functions.sql). A value
 is a bound parameter there and a variable here, so each begins with a prefix of its own:

 | prefix | values |
 |---|---|
 | `token` | `sha256` and `user_id` of the job's token |
 | `job` | `id` of the job that it belongs to |
 | `m` | the message: fields of a report (report_message.py), or the arguments of another call; `at`, `limited` |
 | `admitted`, `run`, `confirmed` | what the statement of that name has found |

 A statement with the columns `code` and `words` refuses where `code` is not null.
#}
{% macro stale(slurm_job_id, current) %}
'job ' || {{ slurm_job_id }} || ': run ' || {{ m }}run_number || ' is not its current run, which is ' || {{ current }}
|| '; this process is a leftover and must stop writing'
{%- endmacro %}
{% set measured_run = "CASE WHEN " ~ m ~ "throughput IS NOT NULL THEN " ~ m ~ "run_number END" %}
{% set least_total = "CASE WHEN " ~ m ~ "epoch > 0 THEN " ~ m ~ "progress * " ~ m ~ "total_epochs / " ~ m ~ "epoch END" %}

-- name: job
-- The job with this token, among those of the user whose id it begins with: its hash is public, and others can put
-- it into their jobs' Comments.
SELECT j.id,
       CASE WHEN j.id IS NULL OR j.finished_at IS NOT NULL THEN 'PX001' END AS code,
       CASE WHEN j.id IS NULL THEN '{{ unknown_token }}'
            ELSE 'job ' || j.slurm_job_id || ' is over, and its token has ended with it' END AS words
FROM (SELECT 1 AS one) AS always
LEFT JOIN jobs AS j ON j.token_sha256 = {{ token }}sha256 AND j.user_id = {{ token }}user_id

-- name: admitted
-- May this run report, is the report new, and what fits into memory by jobs of its kind? `at` is when it counts as come: a clock that was set back must not put
-- it before the one that it follows. A limited caller's job has no more nodes than Slurm was seen to give it, or is
-- about to: in its last interval, which one that was entered later may precede, or by a move under way.
{% set refusals = [
    ("PX003", "NOT COALESCE(s.num_nodes >= 1, " ~ sql_false ~ ")",
     "'report refused: gpus_per_node must be at least 1 node'"),
    ("PX001", m ~ "limited AND s.num_nodes > s.most_nodes",
     "'the job reports ' || s.num_nodes || ' nodes and was seen on ' || s.most_nodes"
     ~ " || '; the daemon looks again in one of its next rounds'"),
    ("PX002", m ~ "run_number < s.run_number", stale("s.slurm_job_id", "s.run_number")),
    ("PX003", m ~ "restart_count < s.restart_count",
     "'report refused: job ' || s.slurm_job_id || ': restart_count went back from ' || s.restart_count || ' to ' || "
     ~ m ~ "restart_count"),
    ("PX003", m ~ "run_number = s.run_number AND " ~ m ~ "restart_count > s.restart_count",
     "'report refused: job ' || s.slurm_job_id || ': run ' || s.run_number || ' began at restart_count '"
     ~ " || s.restart_count || '; a start with ' || " ~ m ~ "restart_count || ' must claim a run number of its own'"),
] %}
SELECT CASE {% for code, holds, words in refusals %}WHEN {{ holds }} THEN '{{ code }}' {% endfor %}END AS code,
       CASE {% for code, holds, words in refusals %}WHEN {{ holds }} THEN {{ words }} {% endfor %}END AS words,
       COALESCE({{ m }}run_number = s.run_number AND {{ m }}sequence <= s.last_sequence, {{ sql_false }}) AS is_repeated,
       CASE WHEN {{ m }}run_number = s.run_number AND {{ m }}at < s.last_report_at
            THEN s.last_report_at ELSE {{ m }}at END AS at,
       s.fitting_atomic
FROM (
    SELECT j.slurm_job_id, j.fitting_atomic, r.run_number, r.restart_count, r.last_sequence, r.last_report_at,
           {{ json_length(m ~ "gpus_per_node") }} AS num_nodes,
           (SELECT MAX(seen.num_nodes)
            FROM (SELECT 1 AS num_nodes
                  UNION ALL
                  SELECT COUNT(*)
                  FROM allocation_nodes AS n
                  WHERE n.job_id = {{ job }}id
                    AND n.number = (SELECT a.number FROM allocations AS a WHERE a.job_id = {{ job }}id
                                    ORDER BY a.started_at DESC, a.number DESC LIMIT 1)
                  UNION ALL
                  SELECT COUNT(*)
                  FROM reallocations AS a
                  JOIN reallocation_nodes AS n ON n.reallocation_id = a.id AND n.side = 'target'
                  WHERE a.job_id = {{ job }}id AND a.step NOT IN ({{ ends }})) AS seen) AS most_nodes
    FROM jobs AS j
    LEFT JOIN runs AS r ON r.job_id = j.id
                       AND r.run_number = (SELECT MAX(l.run_number) FROM runs AS l WHERE l.job_id = {{ job }}id)
    WHERE j.id = {{ job }}id
) AS s

-- name: write_run
INSERT INTO runs (job_id, run_number, restart_count, phase, first_report_at, last_report_at, last_sequence,
                  num_steps, first_step_s, first_step_at, restore_s)
VALUES ({{ job }}id, {{ m }}run_number, {{ m }}restart_count, {{ m }}phase, {{ admitted }}at, {{ admitted }}at,
        {{ m }}sequence, {{ m }}num_steps, {{ m }}first_step_s,
        CASE WHEN {{ m }}first_step_s IS NOT NULL THEN {{ admitted }}at END, {{ m }}restore_s)
ON CONFLICT (job_id, run_number) DO UPDATE SET
    phase = excluded.phase,
    last_report_at = excluded.last_report_at,
    last_sequence = excluded.last_sequence,
    num_steps = excluded.num_steps,
    first_step_s = COALESCE(runs.first_step_s, excluded.first_step_s),
    first_step_at = COALESCE(runs.first_step_at, excluded.first_step_at),
    restore_s = COALESCE(excluded.restore_s, runs.restore_s)

-- name: run
SELECT r.id, r.first_report_at FROM runs AS r WHERE r.job_id = {{ job }}id AND r.run_number = {{ m }}run_number

-- name: drop_nodes
DELETE FROM run_nodes WHERE run_id = {{ run }}id AND node_rank >= {{ json_length(m ~ "gpus_per_node") }}

-- name: write_nodes
INSERT INTO run_nodes (run_id, node_rank, num_gpus)
SELECT {{ run }}id, e.place, CAST(e.value AS integer)
FROM {{ json_elements(m ~ "gpus_per_node") }} AS e
WHERE NOT EXISTS (SELECT 1 FROM run_nodes AS n
                  WHERE n.run_id = {{ run }}id AND n.node_rank = e.place AND n.num_gpus = CAST(e.value AS integer))
ON CONFLICT (run_id, node_rank) DO UPDATE SET num_gpus = excluded.num_gpus

-- name: write_model
-- A version for every change of the model: other numbers, or reported by another run. What a run reports before it
-- has measured anything comes from its checkpoint: another run's model, perhaps of another type of GPU.
INSERT INTO model_versions (job_id, at, run_number, {{ model_columns | join(", ") }})
SELECT {{ job }}id, {{ admitted }}at, {{ measured_run }}, {{ m }}{{ model_columns | join(", " ~ m) }}
WHERE NOT EXISTS (
    SELECT 1
    FROM model_versions AS v
    WHERE v.id = (SELECT MAX(l.id) FROM model_versions AS l WHERE l.job_id = {{ job }}id)
      AND ({{ measured_run }} IS NULL OR v.run_number = {{ m }}run_number)
      AND {{ same("(v." ~ model_columns | join(", v.") ~ ")", "(" ~ m ~ model_columns | join(", " ~ m) ~ ")") }}
)

-- name: write_sample
INSERT INTO goodput_samples (run_id, sequence, at, {{ sample_columns | join(", ") }})
VALUES ({{ run }}id, {{ m }}sequence, {{ admitted }}at, {{ m }}{{ sample_columns | join(", " ~ m) }})

-- name: write_declaration
-- A number of epochs that was not declared before, of the first {{ max_declarations }}; or less progress in all
-- than a known one amounted to until now.
INSERT INTO declarations (job_id, number, total_epochs, at, epoch, progress, least_total_progress)
SELECT {{ job }}id, d.number, {{ m }}total_epochs, {{ admitted }}at, {{ m }}epoch, {{ m }}progress, {{ least_total }}
FROM (SELECT COUNT(*) AS number,
             COUNT(CASE WHEN k.total_epochs = {{ m }}total_epochs THEN 1 END) AS same,
             MIN(CASE WHEN k.total_epochs = {{ m }}total_epochs
                      THEN COALESCE(k.least_total_progress, 1e300) END) AS known_progress
      FROM declarations AS k
      WHERE k.job_id = {{ job }}id) AS d
WHERE CASE WHEN d.same = 0 THEN d.number < {{ max_declarations }} ELSE {{ least_total }} < d.known_progress END
ON CONFLICT (job_id, total_epochs) DO UPDATE SET least_total_progress = excluded.least_total_progress

-- name: write_warnings
-- Only names that this release knows; those of a newer library are ignored.
INSERT INTO run_warnings (run_id, warning, first_seen_at)
SELECT {{ run }}id, e.value, {{ admitted }}at
FROM {{ json_elements(m ~ "warnings") }} AS e
WHERE e.value IN ({% for warning in warnings %}'{{ warning }}'{% if not loop.last %}, {% endif %}{% endfor %})
ON CONFLICT DO NOTHING

-- name: confirmed
-- The job's own reallocation, still waiting for a checkpoint, and planned for this start of the job.
SELECT a.id, s.at AS requested_at
FROM reallocations AS a
JOIN reallocation_steps AS s ON s.reallocation_id = a.id AND s.step = a.step
WHERE a.id = {{ m }}request_id AND a.job_id = {{ job }}id AND a.step = 'checkpoint_requested'
  AND a.from_restart_count = {{ m }}restart_count
{{ lock_rows("a") }}

-- name: confirm
UPDATE reallocations SET step = 'checkpointed' WHERE id = {{ confirmed }}id

-- name: write_confirmation
INSERT INTO reallocation_steps (reallocation_id, step, at)
SELECT {{ confirmed }}id, 'checkpointed', {{ admitted }}at WHERE {{ confirmed }}id IS NOT NULL

-- name: write_checkpoint
-- Training did not stand still for it before it was asked for, or before the run.
INSERT INTO checkpoints (run_id, sequence, at, reallocation_id, blocked_s, size_bytes)
SELECT {{ run }}id, {{ m }}sequence, {{ admitted }}at, {{ confirmed }}id,
       {{ least(m ~ "blocked_s", greatest(
              seconds("COALESCE(" ~ confirmed ~ "requested_at, " ~ run ~ "first_report_at)", admitted ~ "at"), "0.0")) }},
       {{ m }}size_bytes

-- name: poll
-- The reallocation that waits for the job's checkpoint. A request is for the start of the job that it was planned for:
-- neither for a process of an earlier start that has not reported yet, nor for a later run, which was started
-- externally. Once the requeue is under way, the run that confirmed still waits for its end. Nobody waits for a
-- daemon whose lease ended {{ grace_s }} s ago: the next one finds that the job trained on.
SELECT CASE WHEN {{ m }}run_number < r.run_number THEN 'PX002' END AS code,
       {{ stale("j.slurm_job_id", "r.run_number") }} AS words,
       (SELECT a.id
        FROM reallocations AS a
        WHERE a.job_id = {{ job }}id
          AND CASE WHEN {{ m }}run_number = r.run_number
                   THEN a.step IN ('checkpoint_requested', 'checkpointed', 'requeued')
                        AND a.from_restart_count = r.restart_count
                   ELSE a.step IN ('checkpoint_requested', 'checkpointed') END
          AND NOT EXISTS (SELECT 1 FROM leases AS l
                          WHERE {{ seconds("l.expires_at", m ~ "at") }} >= {{ grace_s }})) AS request_id
FROM jobs AS j
LEFT JOIN runs AS r ON r.job_id = j.id
                   AND r.run_number = (SELECT MAX(l.run_number) FROM runs AS l WHERE l.job_id = {{ job }}id)
WHERE j.id = {{ job }}id

-- name: move
-- What a reallocation of the job moves, a row a node; of no other job's, whatever number is named.
SELECT a.reason, n.side, n.node_name, n.num_gpus
FROM reallocations AS a
LEFT JOIN reallocation_nodes AS n ON n.reallocation_id = a.id
WHERE a.id = {{ m }}request_id AND a.job_id = {{ job }}id

-- name: promise
-- The last answer to the moment by which its owner wants the job to be finished; null before the first.
SELECT j.promise AS state, j.promise_gpus AS least_gpus, j.promise_finish_at AS finish_at, j.promise_reason AS reason
FROM jobs AS j
WHERE j.id = {{ job }}id

-- name: generation
-- The newest generation after that of the caller, a row a member; of this start of the job only.
SELECT j.slurm_job_id, g.number, g.state, g.at, g.restart_count, g.meeting, g.standstill_s, g.reason,
       n.member_id, n.node_name, n.ready
FROM generations AS g
JOIN jobs AS j ON j.id = g.job_id
JOIN generation_members AS n ON n.job_id = g.job_id AND n.number = g.number
WHERE g.job_id = {{ job }}id
  AND g.number = (SELECT MAX(l.number) FROM generations AS l
                  WHERE l.job_id = {{ job }}id AND l.number > {{ m }}after AND l.restart_count = {{ m }}restart_count)
ORDER BY n.rank

-- name: ready
UPDATE generation_members AS n SET ready = true
WHERE n.job_id = {{ job }}id AND n.number = {{ m }}number AND n.member_id = {{ m }}member AND NOT n.ready
  AND EXISTS (SELECT 1 FROM generations AS g
              WHERE g.job_id = {{ job }}id AND g.number = {{ m }}number AND g.state = 'planned'
                AND g.restart_count = {{ m }}restart_count)

-- name: advance
-- A job has one open generation at most, so none is newer than a planned one.
UPDATE generations AS g
SET state = {{ m }}state, at = {{ m }}at, reason = {{ m }}reason, standstill_s = {{ m }}standstill_s,
    meeting = CASE WHEN {{ m }}state = 'regrouped' THEN g.meeting ELSE {{ m }}meeting END
WHERE g.job_id = {{ job }}id AND g.number = {{ m }}number AND g.restart_count = {{ m }}restart_count
  AND CASE {{ m }}state
      WHEN 'committed' THEN g.state = 'planned' AND NOT EXISTS (
          SELECT 1 FROM generation_members AS n
          WHERE n.job_id = g.job_id AND n.number = g.number AND NOT n.ready)
      WHEN 'refused' THEN g.state = 'planned'
      WHEN 'regrouped' THEN g.state = 'committed'
      ELSE {{ sql_false }} END

-- name: advanced
-- A commit that was followed by more counts as well: its answer may have been lost.
SELECT EXISTS (
    SELECT 1 FROM generations AS g
    WHERE g.job_id = {{ job }}id AND g.number = {{ m }}number AND g.restart_count = {{ m }}restart_count
      AND CASE {{ m }}state
          WHEN 'committed' THEN g.state IN ('committed', 'regrouped') AND g.meeting = {{ m }}meeting
          ELSE g.state = {{ m }}state END) AS is_there
