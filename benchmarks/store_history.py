"""A year of a cluster, generated inside the database, for the queries of `benchmarks.store`.

100,000 jobs in 20 accounts report 50 goodput samples each, in one to three runs with a move between them, on
128 nodes; a round every five minutes decides, each job is in ten of them at most. Times are UTC, from
2025-01-01 on; some jobs run over midnight and month borders, the last fifty are not over.
"""

from __future__ import annotations

import heapq
import math

from sqlalchemy import Connection, text

from pollux_slurm.store.rounds.daily_sums import sum_decisions
from pollux_slurm.store.schema.triggers import create_triggers, drop_triggers, fill_day_sums

FIRST_S = 1_735_689_600  # 2025-01-01 00:00 UTC
YEAR_S = 365 * 86400
NUM_SAMPLES = 50
ROUND_S = 300
ROUND_TEXT = 2000
GPUS_PER_NODE = 4

_THETA = ", ".join(("0.05", "0.001", "0.04", "0.002", "0.03", "0.001", "1.5"))


def fill_history(
    connection: Connection,
    num_jobs: int,
    *,
    num_nodes: int = 128,
    num_active: int = 50,
    round_text_bytes: int = ROUND_TEXT,
) -> None:
    """Fill an empty store with a year of `num_jobs` jobs, sums by day included.

    The last `num_active` jobs never end, the others end within the year. A job has two nodes for itself while
    `num_nodes` has two for each job at a time, about one node for 1,500 jobs; with fewer, nodes are overfull.
    `round_text_bytes` is about the length of each round's problem and decision; there are 105,000 rounds.
    """
    sqlite = connection.dialect.name == "sqlite"

    def run(statement: str) -> None:
        connection.exec_driver_sql(statement if sqlite else statement.replace("%", "%%"))

    def moment(seconds: str) -> str:
        if sqlite:
            return f"strftime('%Y-%m-%d %H:%M:%S.000000', {FIRST_S} + ({seconds}), 'unixepoch')"
        return f"to_timestamp({FIRST_S} + ({seconds}))"

    drop_triggers(connection)
    yes, no = ("1", "0") if sqlite else ("true", "false")
    if not sqlite:
        run("SET LOCAL session_replication_role = replica")  # no checks of foreign keys, row by row
    run("CREATE TEMPORARY TABLE numbers (i INTEGER PRIMARY KEY)")
    if sqlite:
        run(
            "INSERT INTO numbers WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n"
            f" WHERE i < {max(num_jobs, YEAR_S // ROUND_S)}) SELECT i FROM n"
        )
    else:
        run(f"INSERT INTO numbers SELECT generate_series(0, {max(num_jobs, YEAR_S // ROUND_S)})")
    hex_of = "printf('%064x', n.i)" if sqlite else "lpad(to_hex(n.i), 64, '0')"

    # What each job is like, in seconds since the year's beginning. The longest runs for less than a day.
    interval_s = (YEAR_S - 86400) / num_jobs
    run(
        "CREATE TEMPORARY TABLE shapes AS SELECT n.i AS job, 1 + n.i % 3 AS num_runs, 1 + n.i % 2"
        " AS num_nodes,"
        " CASE WHEN n.i % 10 < 7 THEN 30 WHEN n.i % 10 < 9 THEN 120 ELSE 1200 END AS every_s,"
        f" CAST((n.i - 1) * {interval_s!r} AS INTEGER) AS submitted_s,"
        f" CAST((n.i - 1) * {interval_s!r} AS INTEGER) + 5 + (n.i * 37) % 600 AS started_s,"
        f" CASE WHEN n.i > {num_jobs - num_active} THEN {no} ELSE {yes} END AS is_over"
        f" FROM numbers AS n WHERE n.i BETWEEN 1 AND {num_jobs}"
    )
    first_of = f"((r.i * {NUM_SAMPLES} + s.num_runs - 1) / s.num_runs)"
    last_of = f"(((r.i + 1) * {NUM_SAMPLES} + s.num_runs - 1) / s.num_runs)"
    run(
        "CREATE TEMPORARY TABLE starts AS SELECT s.*, r.i AS run, s.job * 3 + r.i AS run_id,"
        f" {first_of} AS first_k, {last_of} AS end_k,"
        f" s.started_s + {first_of} * s.every_s + r.i * 60 AS begin_s,"
        f" s.started_s + {last_of} * s.every_s + r.i * 60 AS end_s"
        " FROM shapes AS s JOIN numbers AS r ON r.i < s.num_runs"
    )
    ends = connection.exec_driver_sql("SELECT job, max(end_s) FROM starts GROUP BY job ORDER BY min(begin_s)")
    run("CREATE TEMPORARY TABLE pairs (job INTEGER PRIMARY KEY, pair INTEGER NOT NULL)")
    free = [(0.0, pair) for pair in range(num_nodes // 2)]
    pairs = []
    for job, end_s in ends.all():
        pairs.append({"job": job, "pair": free[0][1]})
        heapq.heapreplace(free, (math.inf if job > num_jobs - num_active else end_s, free[0][1]))
    connection.execute(text("INSERT INTO pairs VALUES (:job, :pair)"), pairs)
    run("INSERT INTO users SELECT 1000 + n.i, 'user' || n.i FROM numbers AS n WHERE n.i < 100")
    run(f"INSERT INTO accounts SELECT 'account' || n.i, {moment('0')} FROM numbers AS n WHERE n.i < 20")
    run(
        "INSERT INTO jobs (id, slurm_job_id, token_sha256, user_id, name, account, partition,"
        " min_gpus, max_gpus,"
        " allow_unconfirmed, cpus_per_gpu, memory_per_gpu_mb, state, submitted_at, registered_at, started_at,"
        f" finished_at) SELECT s.job, CAST(s.job AS TEXT), {hex_of.replace('n.i', 's.job')}, 1000 +"
        " s.job % 100,"
        f" 'train' || (s.job % 500), 'account' || (s.job % 20), 'gpu', 1, NULL, {no}, 4, 8000,"
        f" CASE WHEN s.is_over THEN 'completed' ELSE 'running' END, {moment('s.submitted_s')},"
        f" {moment('s.submitted_s + 5')}, {moment('s.started_s')},"
        " CASE WHEN s.is_over THEN"
        f" {moment(f's.started_s + {NUM_SAMPLES} * s.every_s + s.num_runs * 60')} END"
        " FROM shapes AS s"
    )
    run(
        "INSERT INTO runs (id, job_id, run_number, restart_count, phase, first_report_at, last_report_at,"
        " last_sequence, num_steps, first_step_s, first_step_at, restore_s, gpu_type)"
        f" SELECT t.run_id, t.job, t.run, t.run, 'training', {moment('t.begin_s')},"
        f" {moment('t.end_s')}, t.end_k,"
        f" t.end_k * 100, 10.0, {moment('t.begin_s + t.every_s')}, 2.0,"
        " CASE WHEN p.pair % 4 = 0 THEN 'a100' ELSE 't4' END"
        " FROM starts AS t JOIN pairs AS p ON p.job = t.job"
    )
    gpus = f"1 + (t.job + t.run) % {GPUS_PER_NODE}"
    node = "'node' || (2 * p.pair + (t.run + m.i) % 2)"
    on_nodes = "JOIN pairs AS p ON p.job = t.job JOIN numbers AS m ON m.i < t.num_nodes"
    run(
        f"INSERT INTO run_nodes SELECT t.run_id, m.i, {gpus} FROM starts AS t JOIN numbers AS m ON"
        " m.i < t.num_nodes"
    )
    run(
        "INSERT INTO allocations (job_id, number, started_at, ended_at)"
        f" SELECT t.job, t.run, {moment('t.begin_s - 10')}, CASE WHEN t.is_over OR t.run < t.num_runs - 1"
        f" THEN {moment('t.end_s + 20')} END FROM starts AS t"
    )
    run(f"INSERT INTO allocation_nodes SELECT t.job, t.run, {node}, {gpus} FROM starts AS t {on_nodes}")
    run(
        "INSERT INTO goodput_samples (run_id, sequence, at, global_batch_size, atomic_batch_size,"
        " accumulation_steps, throughput, predicted_throughput, step_time_s, efficiency, progress, epoch,"
        " total_epochs) SELECT t.run_id, k.i + 1,"
        f" {moment('t.started_s + (k.i + 1) * t.every_s + t.run * 60')},"
        " 256, 64, 1, 100.0 + (t.job * 31 + k.i * 7) % 300, 110.0 + (t.job * 31 + k.i * 5) % 300, 0.5,"
        " 0.5 + (k.i + t.job) % 50 / 100.0, (k.i + 1) * 80.0, k.i / 5, 10"
        " FROM starts AS t JOIN numbers AS k ON k.i >= t.first_k AND k.i < t.end_k"
    )
    run(
        "INSERT INTO model_versions (job_id, at, initial_batch_size, max_batch_size, min_atomic, max_atomic,"
        " accumulation, grad_sqr, grad_var, alpha_g, beta_g, alpha_n, beta_n, alpha_l, beta_l, gamma,"
        " max_gpus_seen, max_nodes_seen, run_number)"
        f" SELECT s.job, {moment('s.started_s + v.i * 300')}, 128, 1024, 1, 256, {yes}, 0.5, 3.0,"
        f" {_THETA}, 4, 2, 0"
        " FROM shapes AS s JOIN numbers AS v ON v.i < 3"
    )

    # A round sees the jobs and GPUs at its time: the sum of all changes up to it.
    def round_at(seconds: str) -> str:
        return f"({seconds} + {ROUND_S - 1}) / {ROUND_S}"

    held = f"t.num_nodes * ({gpus})"
    over = "t.is_over OR t.run < t.num_runs - 1"
    finished_s = f"s.started_s + {NUM_SAMPLES} * s.every_s + s.num_runs * 60"
    run(
        "CREATE TEMPORARY TABLE changes AS"
        f" SELECT {round_at('t.begin_s - 10')} AS i, {held} AS gpus, 1 AS served, 0 AS jobs FROM starts AS t"
        f" UNION ALL SELECT {round_at('t.end_s + 20')}, -{held}, -1, 0 FROM starts AS t WHERE {over}"
        f" UNION ALL SELECT {round_at('s.submitted_s')}, 0, 0, 1 FROM shapes AS s"
        f" UNION ALL SELECT {round_at(finished_s)}, 0, 0, -1 FROM shapes AS s WHERE s.is_over"
        " UNION ALL SELECT n.i, 0, 0, 0 FROM numbers AS n"
    )
    sums = ", ".join(
        f"CAST(SUM(SUM({of})) OVER (ORDER BY i) AS INTEGER) AS {of}" for of in ("gpus", "served", "jobs")
    )
    run(f"CREATE TEMPORARY TABLE states AS SELECT i, {sums} FROM changes GROUP BY i")
    # A round's problem, which no view shows, must not be in the way of what they do.
    problem = (
        f"printf('%.{round_text_bytes}c', 'x')"
        if sqlite
        else f"repeat(md5(n.i::text), {round_text_bytes // 32})"
    )
    total = GPUS_PER_NODE * num_nodes
    run(
        "INSERT INTO rounds (id, at, shadow, objective, solver, fitness, problem, decision, upper_bound, gap,"
        " timed_out, num_jobs, num_served, num_gpus, total_gpus, fair_share_gpus, mean_speedup, min_speedup,"
        f" solve_s) SELECT n.i + 1, {moment(f'n.i * {ROUND_S}')}, {no}, 'generalized-mean', 'exact', 1.2,"
        f" {problem}, '{{}}', 1.25, 0.04, {no}, n.jobs, n.served, n.gpus, {total},"
        f" CASE WHEN n.jobs > {total} THEN 1 WHEN n.jobs > 0 THEN {total} / n.jobs ELSE {total} END,"
        f" 1.4, 0.9, 0.05 FROM states AS n WHERE n.i < {YEAR_S // ROUND_S}"
    )
    # Ten rounds since a job's submission, as long as it runs: it gets what it holds.
    at_s = f"(t.submitted_s / {ROUND_S} + 1 + d.i) * {ROUND_S}"
    decided = (
        "FROM starts AS t JOIN numbers AS d ON d.i < 10 {nodes}"
        f" WHERE t.submitted_s / {ROUND_S} + 2 + d.i <= {YEAR_S // ROUND_S}"
        f" AND {at_s} >= t.begin_s - 10 AND ({at_s} < t.end_s + 20 OR NOT ({over}))"
    )
    run(
        "INSERT INTO decisions (round_id, job_id, num_gpus, num_nodes, speedup, goodput,"
        " one_gpu_goodput, penalty, bound_by, explanation)"
        f" SELECT t.submitted_s / {ROUND_S} + 2 + d.i, t.job, {held}, t.num_nodes,"
        " 0.5 + (t.job + d.i) % 20 / 10.0, 150.0, 60.0, 1.0, 'nothing',"
        " 'no larger number is predicted faster' " + decided.format(nodes="")
    )
    run(
        f"INSERT INTO decision_nodes SELECT t.submitted_s / {ROUND_S} + 2 + d.i, t.job, {node}, {gpus} "
        + decided.format(nodes=on_nodes)
    )
    run(
        "INSERT INTO reallocations (id, job_id, round_id, step, moves_running, from_restart_count, cause)"
        f" SELECT t.run_id, t.job, CASE WHEN t.begin_s < {YEAR_S} THEN t.begin_s / {ROUND_S} + 1"
        " END, 'confirmed',"
        f" {yes}, t.run - 1, 'decision' FROM starts AS t WHERE t.run > 0"
    )
    for step, offset in (
        ("planned", "- 50"),
        ("checkpoint_requested", "- 48"),
        ("checkpointed", "- 40"),
        ("requeued", "- 38"),
        ("reshaped", "- 35"),
        ("released", "- 30"),
        ("running", "- 10"),
        ("confirmed", "+ t.every_s"),
    ):
        run(
            f"INSERT INTO reallocation_steps SELECT t.run_id, '{step}', {moment(f't.begin_s {offset}')}"
            " FROM starts AS t WHERE t.run > 0"
        )
    for side, run_of_side in (("source", "t.run - 1"), ("target", "t.run")):
        side_node, side_gpus = (part.replace("t.run", f"({run_of_side})") for part in (node, gpus))
        run(
            f"INSERT INTO reallocation_nodes SELECT t.run_id, '{side}', {side_node}, {side_gpus}"
            f" FROM starts AS t {on_nodes} WHERE t.run > 0"
        )
    run(
        "INSERT INTO checkpoints (run_id, sequence, at, reallocation_id, blocked_s, size_bytes)"
        f" SELECT t.run_id - 1, 1000000, {moment('t.begin_s - 40')}, t.run_id, 1.5, 1000000"
        " FROM starts AS t WHERE t.run > 0"
    )
    run(
        "INSERT INTO nodes SELECT 'node' || n.i, CASE WHEN n.i / 2 % 4 = 0 THEN 'a100' ELSE 't4' END,"
        f" {GPUS_PER_NODE}, {moment('0')}, {moment(str(YEAR_S))} FROM numbers AS n WHERE n.i < {num_nodes}"
    )
    day = "date({0})" if sqlite else "({0})::date"
    run(
        f"INSERT INTO node_days SELECT 'node' || n.i, {day.format(moment('d.i * 86400 + 3600'))},"
        f" 288, 1152.0, 345600.0 FROM numbers AS n JOIN numbers AS d ON d.i < 365 WHERE n.i < {num_nodes}"
    )
    fill_day_sums(connection)
    sum_decisions(connection)
    for table in ("shapes", "starts", "pairs", "changes", "states", "numbers"):
        run(f"DROP TABLE {table}")
    create_triggers(connection)
