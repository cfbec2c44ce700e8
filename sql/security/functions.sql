-- What a job may do on PostgreSQL, and all that it may do: pollux_report, pollux_poll and pollux_move, at the
-- end of this file. They do what pollux_slurm.store.agent_api.sqlite_api does on SQLite; one contract suite holds both to it. Whoever
-- calls them is a stranger: each number is checked here, whatever the caller has checked before.
--
-- The helpers have no search_path of their own: only the functions below call them, whose is fixed, and nobody
-- else may. Errors have SQLSTATEs of their own: PX001 unknown token, PX002 stale run, PX003 report refused, PX004 too
-- many reports.

-- How many reports a job may send just now. Not logged: after a crash every job starts with a full allowance.
-- Its row is also the lock that lines up a job's reports. No other row that a report locks is ever waited for
-- by the daemon or another job: a caller may leave its transaction open for as long as it likes.
CREATE UNLOGGED TABLE pollux_allowances (
    job_id bigint PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    reports_left double precision NOT NULL,
    refilled_at timestamp with time zone NOT NULL
);
COMMENT ON TABLE pollux_allowances IS 'How many reports each job may send just now.';
COMMENT ON COLUMN pollux_allowances.job_id IS 'The job.';
COMMENT ON COLUMN pollux_allowances.reports_left IS 'Reports of ordinary size.';
COMMENT ON COLUMN pollux_allowances.refilled_at IS 'When that was counted.';

-- The time of a report is the server's: a job cannot choose it.
CREATE FUNCTION pollux_clock() RETURNS timestamp with time zone
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$ SELECT clock_timestamp() $$;

-- A finite number of a report, null where there is none. JSON knows neither NaN nor infinity; texts that say
-- so are no numbers. The comparison is exact, however many digits were sent.
CREATE FUNCTION pollux_number(
    p_from jsonb, p_key text, p_least numeric, p_most numeric, p_name text DEFAULT NULL
) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    v_value CONSTANT jsonb := p_from -> p_key;
    v_number numeric;
BEGIN
    IF v_value IS NULL OR jsonb_typeof(v_value) = 'null' THEN
        RETURN NULL;
    END IF;
    IF jsonb_typeof(v_value) = 'number' THEN
        v_number := v_value::numeric;
        IF v_number BETWEEN p_least AND p_most THEN
            RETURN v_number::double precision;
        END IF;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'PX003', MESSAGE = format(
        'report refused: %s must be a finite number from %s to %s',
        COALESCE(p_name, p_key), p_least::double precision, p_most::double precision
    );
END
$$;

-- A whole number that must be there.
CREATE FUNCTION pollux_whole(
    p_from jsonb, p_key text, p_least bigint, p_most bigint, p_name text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    v_value CONSTANT jsonb := p_from -> p_key;
    v_number numeric;
BEGIN
    IF jsonb_typeof(v_value) = 'number' THEN
        v_number := v_value::numeric;
        IF v_number BETWEEN p_least AND p_most AND v_number = trunc(v_number) THEN
            RETURN v_number::bigint;
        END IF;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'PX003', MESSAGE = format(
        'report refused: %s must be a whole number from %s to %s', COALESCE(p_name, p_key), p_least, p_most
    );
END
$$;

-- A real number that must be there.
CREATE FUNCTION pollux_real(
    p_from jsonb, p_key text, p_least numeric, p_most numeric, p_name text DEFAULT NULL
) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    v_number CONSTANT double precision := pollux_number(p_from, p_key, p_least, p_most, p_name);
BEGIN
    IF v_number IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'PX003',
            MESSAGE = format('report refused: %s is missing', COALESCE(p_name, p_key));
    END IF;
    RETURN v_number;
END
$$;

-- An object of a report, null where there is none.
CREATE FUNCTION pollux_part(p_from jsonb, p_key text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    v_value CONSTANT jsonb := p_from -> p_key;
BEGIN
    CASE COALESCE(jsonb_typeof(v_value), 'null')
        WHEN 'null' THEN RETURN NULL;
        WHEN 'object' THEN RETURN v_value;
        ELSE RAISE EXCEPTION USING ERRCODE = 'PX003',
            MESSAGE = format('report refused: %s must be an object', p_key);
    END CASE;
END
$$;

-- The job that speaks with this token, among those of the user whose id it begins with: its hash is public, and
-- others can put it into their jobs' Comments.
CREATE FUNCTION pollux_job_of_token(p_token text) RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_job record;
BEGIN
    IF octet_length(p_token) <= 1024 THEN
        SELECT j.id, j.slurm_job_id, j.finished_at INTO v_job
        FROM jobs AS j
        WHERE j.token_sha256 = encode(sha256(convert_to(p_token, 'UTF8')), 'hex')
          AND j.user_id = substring(p_token FROM '^([0-9]{1,10})-')::bigint;
        IF v_job.finished_at IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'PX001', MESSAGE = format(
                'job %s is over, and its token works no longer', v_job.slurm_job_id
            );
        ELSIF FOUND THEN
            RETURN v_job.id;
        END IF;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'PX001', MESSAGE =
        'no job is registered with this token yet; the daemon registers it from its Slurm Comment in one of '
        'its next rounds';
END
$$;

-- How many nodes Slurm was seen to give a job, or is about to: of its last stretch, or of a move under way. One
-- without GPUs may tell of a single node.
CREATE FUNCTION pollux_most_nodes(p_job_id bigint) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT GREATEST(max(x.num_nodes), 1)
    FROM (
        SELECT count(*) AS num_nodes
        FROM allocation_nodes AS n
        WHERE n.job_id = p_job_id
          -- A stretch that was entered later may lie before the last.
          AND n.number = (SELECT a.number FROM allocations AS a WHERE a.job_id = p_job_id
                          ORDER BY a.started_at DESC, a.number DESC LIMIT 1)
        UNION ALL
        SELECT count(*)
        FROM reallocations AS a
        JOIN reallocation_nodes AS n ON n.reallocation_id = a.id AND n.side = 'target'
        WHERE a.job_id = p_job_id AND a.step NOT IN ({{ ends }})
    ) AS x
$$;

-- Wait for no other report of this job, and take the cost of one from its allowance. A report of ordinary size
-- costs 1; the allowance of {{ burst }} grows by {{ refill_per_s }} a second. The jobs of a user that run have
-- {{ user_burst }} and {{ user_per_s }} a second between them, but each at least {{ least_burst }} and
-- {{ least_per_s }}: no row of a user's is locked, since one job of theirs would then wait for another.
CREATE FUNCTION pollux_take_turn(
    p_job_id bigint, p_cost double precision, p_at timestamp with time zone, p_limited boolean
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_job record;
    v_burst double precision;
    v_per_s double precision;
    v_left double precision;
BEGIN
    SELECT j.slurm_job_id,
           j.state <> 'pending' OR j.started_at IS NOT NULL OR EXISTS (
               SELECT FROM reallocations AS a WHERE a.job_id = j.id AND a.step NOT IN ({{ ends }})
           ) AS ran,
           (SELECT GREATEST(count(*), 1) FROM jobs AS s
            WHERE s.user_id = j.user_id AND s.finished_at IS NULL AND s.state <> 'pending') AS siblings
    INTO v_job
    FROM jobs AS j
    WHERE j.id = p_job_id;
    IF p_limited AND NOT v_job.ran THEN
        RAISE EXCEPTION USING ERRCODE = 'PX001', MESSAGE = format(
            'job %s was not seen to run yet; the daemon looks for it in one of its next rounds', v_job.slurm_job_id
        );
    END IF;
    v_burst := GREATEST(LEAST({{ burst }}, {{ user_burst }}.0 / v_job.siblings), {{ least_burst }});
    v_per_s := GREATEST(LEAST({{ refill_per_s }}, {{ user_per_s }}.0 / v_job.siblings), {{ least_per_s }});
    -- A lock that is taken means an error at once, and no connection that waits.
    PERFORM FROM pollux_allowances AS a WHERE a.job_id = p_job_id FOR NO KEY UPDATE NOWAIT;
    IF NOT FOUND THEN
        INSERT INTO pollux_allowances (job_id, reports_left, refilled_at) VALUES (p_job_id, v_burst, p_at)
        ON CONFLICT DO NOTHING;
        PERFORM FROM pollux_allowances AS a WHERE a.job_id = p_job_id FOR NO KEY UPDATE NOWAIT;
    END IF;
    IF NOT p_limited THEN
        RETURN;
    END IF;
    SELECT LEAST(v_burst, a.reports_left + v_per_s * GREATEST(extract(epoch FROM p_at - a.refilled_at), 0))
    INTO v_left
    FROM pollux_allowances AS a
    WHERE a.job_id = p_job_id;
    IF v_left < p_cost THEN
        -- Whoever sends without pause is slowed down, so that it does not take the others' processor.
        PERFORM pg_sleep(0.1);
        RAISE EXCEPTION USING ERRCODE = 'PX004', MESSAGE = format(
            'this job reports too often: %s reports at once, then %s a second',
            floor(v_burst), round(v_per_s::numeric, 2)::double precision
        );
    END IF;
    UPDATE pollux_allowances AS a SET reports_left = v_left - p_cost, refilled_at = p_at
    WHERE a.job_id = p_job_id;
END
$$;

-- The goodput model of a report as a row of model_versions without its number, checked as
-- pollux_slurm.goodput.checks does.
CREATE FUNCTION pollux_model(p_model jsonb, p_job_id bigint, p_at timestamp with time zone)
RETURNS model_versions
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_limits CONSTANT jsonb := COALESCE(pollux_part(p_model, 'limits'), '{}'::jsonb);
    v_statistics CONSTANT jsonb := pollux_part(p_model, 'statistics');
    v_theta CONSTANT jsonb := pollux_part(p_model, 'throughput');
    v_row model_versions;
BEGIN
    v_row.job_id := p_job_id;
    v_row.at := p_at;
    v_row.initial_batch_size := pollux_whole(v_limits, 'initial_batch_size', 1, 1000000000);
    IF jsonb_typeof(v_limits -> 'max_batch_size') <> 'null' THEN
        v_row.max_batch_size :=
            pollux_whole(v_limits, 'max_batch_size', v_row.initial_batch_size, 1000000000);
    END IF;
    v_row.min_atomic := pollux_whole(
        v_limits, 'min_atomic', 1, COALESCE(v_row.max_batch_size, v_row.initial_batch_size)
    );
    IF jsonb_typeof(v_limits -> 'max_atomic') <> 'null' THEN
        v_row.max_atomic := pollux_whole(v_limits, 'max_atomic', v_row.min_atomic, 1000000000);
    END IF;
    IF jsonb_typeof(v_limits -> 'accumulation') IS DISTINCT FROM 'boolean' THEN
        RAISE EXCEPTION USING ERRCODE = 'PX003',
            MESSAGE = 'report refused: limits.accumulation must be true or false';
    END IF;
    v_row.accumulation := (v_limits -> 'accumulation')::boolean;
    IF v_statistics IS NOT NULL THEN
        v_row.grad_sqr := pollux_real(v_statistics, 'sqr', 0, 1e30, 'statistics.sqr');
        v_row.grad_var := pollux_real(v_statistics, 'var', 0, 1e30, 'statistics.var');
        v_row.noise_low := pollux_number(v_statistics, 'noise_low', 0, 1e30);
        -- Without a low end there is no interval at all, and nothing that a high one would be above.
        v_row.noise_high := pollux_number(v_statistics, 'noise_high', COALESCE(v_row.noise_low, 1e30)::numeric, 1e30);
    END IF;
    IF v_theta IS NOT NULL THEN
        SELECT pollux_real(v_theta, 'alpha_g', 0, 1e6), pollux_real(v_theta, 'beta_g', 0, 1e6),
               pollux_real(v_theta, 'alpha_n', 0, 1e6), pollux_real(v_theta, 'beta_n', 0, 1e6),
               pollux_real(v_theta, 'alpha_l', 0, 1e6), pollux_real(v_theta, 'beta_l', 0, 1e6),
               pollux_real(v_theta, 'gamma', 1, 10)
        INTO v_row.alpha_g, v_row.beta_g, v_row.alpha_n, v_row.beta_n, v_row.alpha_l, v_row.beta_l, v_row.gamma;
        IF v_row.alpha_g + v_row.beta_g < 1e-9 THEN
            RAISE EXCEPTION USING ERRCODE = 'PX003',
                MESSAGE = 'report refused: alpha_g + beta_g must be at least 1e-09 s';
        END IF;
    END IF;
    v_row.max_gpus_seen := pollux_whole(p_model, 'max_gpus_seen', 0, 1000000);
    v_row.max_nodes_seen := pollux_whole(p_model, 'max_nodes_seen', 0, v_row.max_gpus_seen);
    RETURN v_row;
END
$$;

-- Record a report as of p_at.
CREATE FUNCTION pollux_record(
    p_token text, p_report text, p_at timestamp with time zone, p_limited boolean
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$
DECLARE
    v_at timestamp with time zone := p_at;
    v_job_id CONSTANT bigint := pollux_job_of_token(p_token);
    v_slurm_job_id text;
    v_report jsonb;
    v_run runs;
    v_run_number integer;
    v_restart_count integer;
    v_sequence bigint;
    v_phase text;
    v_nodes integer[];
    v_num_steps bigint;
    v_num_examples bigint;
    v_progress double precision;
    v_epoch bigint;
    v_total_epochs bigint;
    v_first_step_s double precision;
    v_restore_s double precision;
    v_throughput double precision;
    v_predicted double precision;
    v_step_time_s double precision;
    v_efficiency double precision;
    v_batch jsonb;
    v_global bigint;
    v_atomic bigint;
    v_accumulation bigint;
    v_warnings jsonb;
    v_checkpoint jsonb;
    v_request_id bigint;
    v_blocked_s double precision;
    v_size_bytes bigint;
    v_model model_versions;
    v_known model_versions;
    v_declared record;
    v_least double precision;
    v_count integer;
BEGIN
    IF p_report IS NULL OR octet_length(p_report) > {{ max_bytes }} THEN
        RAISE EXCEPTION USING ERRCODE = 'PX003', MESSAGE = format(
            'report refused: it has %s bytes, and may have {{ max_bytes }}', octet_length(p_report)
        );
    END IF;
    PERFORM pollux_take_turn(
        v_job_id, GREATEST(1.0, octet_length(p_report) / {{ ordinary_bytes }}.0), p_at, p_limited
    );
    v_report := p_report::jsonb;

    -- The checks of pollux_slurm.store.agent_api.report_checks.
    -- In one statement, which a new connection prepares in a fraction of the time of many.
    SELECT pollux_whole(v_report, 'run_number', 0, 1000000),
           pollux_whole(v_report, 'restart_count', 0, 1000000),
           pollux_whole(v_report, 'sequence', 0, 1000000000000),
           pollux_whole(v_report, 'num_steps', 0, 1000000000000000),
           -- An agent of an earlier release tells none.
           CASE WHEN COALESCE(jsonb_typeof(v_report -> 'num_examples'), 'null') <> 'null'
                THEN pollux_whole(v_report, 'num_examples', 0, 1000000000000000) END,
           pollux_real(v_report, 'progress', 0, 1e18),
           pollux_whole(v_report, 'epoch', 0, 1000000000),
           CASE WHEN jsonb_typeof(v_report -> 'total_epochs') <> 'null'
                THEN pollux_whole(v_report, 'total_epochs', 0, 1000000000) END,
           pollux_number(v_report, 'first_step_s', {{ least_s }}, 1e7),
           pollux_number(v_report, 'restore_s', 0, 1e7),
           pollux_number(v_report, 'throughput', {{ least_rate }}, 1e12),
           pollux_number(v_report, 'predicted_throughput', {{ least_rate }}, 1e12),
           pollux_number(v_report, 'step_time_s', {{ least_s }}, 1e7),
           pollux_number(v_report, 'efficiency', {{ least_efficiency }}, 1.000001),
           pollux_part(v_report, 'batch'),
           pollux_part(v_report, 'checkpoint')
    INTO v_run_number, v_restart_count, v_sequence, v_num_steps, v_num_examples, v_progress, v_epoch, v_total_epochs,
         v_first_step_s, v_restore_s, v_throughput, v_predicted, v_step_time_s, v_efficiency, v_batch, v_checkpoint;
    v_phase := v_report ->> 'phase';
    IF v_phase IS NULL OR v_phase NOT IN ('starting', 'training', 'waiting', 'finished') THEN
        RAISE EXCEPTION USING ERRCODE = 'PX003', MESSAGE = 'report refused: phase must be one that a run has';
    END IF;
    IF jsonb_typeof(v_report -> 'gpus_per_node') IS DISTINCT FROM 'array'
        OR jsonb_array_length(v_report -> 'gpus_per_node') NOT BETWEEN 1 AND 10000
    THEN
        RAISE EXCEPTION USING ERRCODE = 'PX003', MESSAGE = 'report refused: gpus_per_node must be 1 to 10000 nodes';
    END IF;
    SELECT array_agg(pollux_whole(jsonb_build_object('n', e.value), 'n', 1, 1024, 'gpus_per_node') ORDER BY e.rank)
    INTO v_nodes
    FROM jsonb_array_elements(v_report -> 'gpus_per_node') WITH ORDINALITY AS e (value, rank);
    IF p_limited AND cardinality(v_nodes) > pollux_most_nodes(v_job_id) THEN
        RAISE EXCEPTION USING ERRCODE = 'PX001', MESSAGE = format(
            'the job tells of %s nodes and was seen on %s; the daemon looks again in one of its next rounds',
            cardinality(v_nodes), pollux_most_nodes(v_job_id)
        );
    END IF;
    -- Computed in floating point it may overshoot 1 by rounding.
    IF v_efficiency > 1 THEN
        v_efficiency := 1;
    END IF;
    v_warnings := v_report -> 'warnings';
    IF COALESCE(jsonb_typeof(v_warnings), 'null') = 'null' THEN
        v_warnings := '[]'::jsonb;
    END IF;
    IF jsonb_typeof(v_warnings) <> 'array' OR jsonb_array_length(v_warnings) > {{ max_warnings }} THEN
        RAISE EXCEPTION USING ERRCODE = 'PX003',
            MESSAGE = 'report refused: warnings must be at most {{ max_warnings }} names';
    END IF;
    IF v_batch IS NOT NULL THEN
        SELECT pollux_whole(v_batch, 'global_batch_size', 1, 1000000000, 'batch.global_batch_size'),
               pollux_whole(v_batch, 'atomic_batch_size', 1, 1000000000, 'batch.atomic_batch_size'),
               pollux_whole(v_batch, 'accumulation_steps', 0, 1000000000, 'batch.accumulation_steps')
        INTO v_global, v_atomic, v_accumulation;
    END IF;
    IF v_checkpoint IS NOT NULL THEN
        IF jsonb_typeof(v_checkpoint -> 'request_id') <> 'null' THEN
            v_request_id := pollux_whole(v_checkpoint, 'request_id', 0, 9223372036854775807, 'checkpoint.request_id');
        END IF;
        v_blocked_s := pollux_real(v_checkpoint, 'blocked_s', 0, 1e7, 'checkpoint.blocked_s');
        v_size_bytes := pollux_whole(v_checkpoint, 'size_bytes', 0, 1152921504606846976, 'checkpoint.size_bytes');
    END IF;
    IF pollux_part(v_report, 'model') IS NOT NULL THEN
        v_model := pollux_model(v_report -> 'model', v_job_id, p_at);
    END IF;

    -- May this run report, and is the report new?
    SELECT j.slurm_job_id INTO v_slurm_job_id FROM jobs AS j WHERE j.id = v_job_id;
    SELECT r.* INTO v_run FROM runs AS r WHERE r.job_id = v_job_id ORDER BY r.run_number DESC LIMIT 1;
    IF FOUND THEN
        IF v_run_number < v_run.run_number THEN
            RAISE EXCEPTION USING ERRCODE = 'PX002', MESSAGE = format(
                'job %s: run %s is not its current run, which is %s; this process is a leftover and must stop writing',
                v_slurm_job_id, v_run_number, v_run.run_number
            );
        ELSIF v_restart_count < v_run.restart_count THEN
            RAISE EXCEPTION USING ERRCODE = 'PX003', MESSAGE = format(
                'report refused: job %s: restart_count went back from %s to %s',
                v_slurm_job_id, v_run.restart_count, v_restart_count
            );
        ELSIF v_run_number = v_run.run_number AND v_restart_count > v_run.restart_count THEN
            RAISE EXCEPTION USING ERRCODE = 'PX003', MESSAGE = format(
                'report refused: job %s: run %s began at restart_count %s; a start with %s must claim a run number of '
                'its own', v_slurm_job_id, v_run_number, v_run.restart_count, v_restart_count
            );
        ELSIF v_run_number = v_run.run_number AND v_sequence <= v_run.last_sequence THEN
            RETURN;  -- recorded before
        END IF;
    END IF;

    IF v_run.id IS NULL OR v_run_number > v_run.run_number THEN
        INSERT INTO runs (job_id, run_number, restart_count, phase, first_report_at, last_report_at,
                          last_sequence, num_steps, first_step_s, first_step_at, restore_s)
        VALUES (v_job_id, v_run_number, v_restart_count, v_phase, v_at, v_at, v_sequence, v_num_steps,
                v_first_step_s, CASE WHEN v_first_step_s IS NOT NULL THEN v_at END, v_restore_s)
        RETURNING * INTO v_run;
        INSERT INTO run_nodes (run_id, node_rank, num_gpus)
        SELECT v_run.id, n.rank - 1, n.num_gpus FROM unnest(v_nodes) WITH ORDINALITY AS n (num_gpus, rank);
    ELSE
        -- A clock that was set back must not put a report before the one that it follows.
        v_at := GREATEST(v_at, v_run.last_report_at);
        UPDATE runs AS r
        SET phase = v_phase,
            last_report_at = v_at,
            last_sequence = v_sequence,
            num_steps = v_num_steps,
            first_step_s = COALESCE(r.first_step_s, v_first_step_s),
            first_step_at = CASE WHEN r.first_step_s IS NULL AND v_first_step_s IS NOT NULL
                                 THEN v_at ELSE r.first_step_at END,
            restore_s = COALESCE(v_restore_s, r.restore_s)
        WHERE r.id = v_run.id;
        IF v_nodes IS DISTINCT FROM (
            SELECT array_agg(n.num_gpus ORDER BY n.node_rank) FROM run_nodes AS n WHERE n.run_id = v_run.id
        ) THEN
            DELETE FROM run_nodes AS n WHERE n.run_id = v_run.id;
            INSERT INTO run_nodes (run_id, node_rank, num_gpus)
            SELECT v_run.id, n.rank - 1, n.num_gpus FROM unnest(v_nodes) WITH ORDINALITY AS n (num_gpus, rank);
        END IF;
    END IF;

    -- A version of the model for every change of it: other numbers, or told by another run. What a run tells
    -- before it has measured anything comes from its checkpoint: another run's model.
    IF v_model.initial_batch_size IS NOT NULL THEN
        v_model.at := v_at;
        v_model.run_number := CASE WHEN v_throughput IS NOT NULL THEN v_run_number END;
        SELECT m.* INTO v_known FROM model_versions AS m WHERE m.job_id = v_job_id ORDER BY m.id DESC LIMIT 1;
        IF NOT FOUND OR NOT (
            {% for name in model_columns %}v_model.{{ name }} IS NOT DISTINCT FROM v_known.{{ name }} AND
            {% endfor %}(v_model.run_number IS NULL OR v_model.run_number IS NOT DISTINCT FROM v_known.run_number)
        ) THEN
            INSERT INTO model_versions (
                job_id, at, run_number{% for name in model_columns %}, {{ name }}{% endfor %}
            ) VALUES (
                v_model.job_id, v_model.at, v_model.run_number{% for name in model_columns %}, v_model.{{ name }}{% endfor %}
            );
        END IF;
    END IF;

    -- At the start nothing is measured, and progress and epoch are not yet restored from the checkpoint.
    IF NOT (v_phase = 'starting' AND v_throughput IS NULL) THEN
        INSERT INTO goodput_samples (run_id, sequence, at, global_batch_size, atomic_batch_size, accumulation_steps,
                                     throughput, predicted_throughput, step_time_s, efficiency, progress, epoch,
                                     total_epochs, num_examples)
        VALUES (v_run.id, v_sequence, v_at, v_global, v_atomic, v_accumulation, v_throughput, v_predicted,
                v_step_time_s, v_efficiency, v_progress, v_epoch, v_total_epochs, v_num_examples);
        IF v_total_epochs IS NOT NULL THEN
            IF v_epoch > 0 THEN
                v_least := v_progress * v_total_epochs / v_epoch;
            END IF;
            SELECT d.number, d.least_total_progress INTO v_declared
            FROM declarations AS d WHERE d.job_id = v_job_id AND d.total_epochs = v_total_epochs;
            IF NOT FOUND THEN
                SELECT count(*) INTO v_count FROM declarations AS d WHERE d.job_id = v_job_id;
                IF v_count < {{ max_declarations }} THEN
                    INSERT INTO declarations (job_id, number, total_epochs, at, epoch, progress, least_total_progress)
                    VALUES (v_job_id, v_count, v_total_epochs, v_at, v_epoch, v_progress, v_least);
                END IF;
            ELSIF v_least < COALESCE(v_declared.least_total_progress, 'infinity') THEN
                UPDATE declarations AS d SET least_total_progress = v_least
                WHERE d.job_id = v_job_id AND d.number = v_declared.number;
            END IF;
        END IF;
    END IF;

    -- Only names that this release knows; those of a newer library are passed over.
    INSERT INTO run_warnings (run_id, warning, first_seen_at)
    SELECT v_run.id, w.name, v_at
    FROM jsonb_array_elements_text(v_warnings) AS w (name)
    WHERE w.name IN ({% for warning in warnings %}'{{ warning }}'{% if not loop.last %}, {% endif %}{% endfor %})
    ON CONFLICT DO NOTHING;

    IF v_checkpoint IS NOT NULL THEN
        -- The job's own request, still waiting, and planned for this start of the job.
        UPDATE reallocations AS a SET step = 'checkpointed'
        WHERE a.id = v_request_id AND a.job_id = v_job_id AND a.step = 'checkpoint_requested'
          AND a.from_restart_count = v_run.restart_count;
        IF FOUND THEN
            INSERT INTO reallocation_steps (reallocation_id, step, at) VALUES (v_request_id, 'checkpointed', v_at);
        ELSE
            v_request_id := NULL;
        END IF;
        -- Training did not stand still for it before it was asked for, or before the run.
        v_blocked_s := LEAST(v_blocked_s, GREATEST(extract(epoch FROM v_at - COALESCE(
            (SELECT s.at FROM reallocation_steps AS s
             WHERE s.reallocation_id = v_request_id AND s.step = 'checkpoint_requested'),
            (SELECT r.first_report_at FROM runs AS r WHERE r.id = v_run.id)
        ))::double precision, 0.0));
        INSERT INTO checkpoints (run_id, sequence, at, reallocation_id, blocked_s, size_bytes)
        VALUES (v_run.id, v_sequence, v_at, v_request_id, v_blocked_s, v_size_bytes);
    END IF;
END
$$;

-- What the job should do as of p_at: the id of the reallocation that waits for its checkpoint, or null.
CREATE FUNCTION pollux_answer(p_token text, p_run_number integer, p_at timestamp with time zone)
RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$
DECLARE
    v_job_id CONSTANT bigint := pollux_job_of_token(p_token);
    v_run record;
    v_wanted bigint;
BEGIN
    IF p_run_number IS NULL OR p_run_number NOT BETWEEN 0 AND 1000000 THEN
        RAISE EXCEPTION USING ERRCODE = 'PX003',
            MESSAGE = 'report refused: run_number must be a whole number from 0 to 1000000';
    END IF;
    SELECT r.run_number, r.restart_count, j.slurm_job_id INTO v_run
    FROM runs AS r JOIN jobs AS j ON j.id = r.job_id
    WHERE r.job_id = v_job_id ORDER BY r.run_number DESC LIMIT 1;
    IF p_run_number < v_run.run_number THEN
        RAISE EXCEPTION USING ERRCODE = 'PX002', MESSAGE = format(
            'job %s: run %s is not its current run, which is %s; this process is a leftover and must stop writing',
            v_run.slurm_job_id, p_run_number, v_run.run_number
        );
    END IF;
    SELECT a.id INTO v_wanted
    FROM reallocations AS a
    WHERE a.job_id = v_job_id
      AND CASE
          -- A request is for the start of the job that it was planned for: neither for a process left over from
          -- before that has not reported yet, nor for the run after, which another hand has started. Once the
          -- requeue is under way, the run that confirmed still waits for its end.
          WHEN p_run_number = v_run.run_number THEN
              a.step IN ('checkpoint_requested', 'checkpointed', 'requeued')
              AND a.from_restart_count = v_run.restart_count
          ELSE a.step IN ('checkpoint_requested', 'checkpointed')
          END
      -- Nobody waits for a daemon that has died: its lease tells. The next finds that the job went on.
      AND NOT EXISTS (
          SELECT FROM leases AS l WHERE l.expires_at <= p_at - make_interval(secs => {{ grace_s }})
      );
    RETURN v_wanted;
END
$$;

-- End connections that last too long. Every login may lift its own time-outs, and keep what others need: its share
-- of connections, a processor, temporary files, the queue of notifications. Of logins that only jobs use, those older
-- than any call: a call that is just being answered is not cut off, since a pooler keeps its connections for longer.
-- Of people, in this database: a transaction that lasts longer than any question, and what is idle for long.
CREATE FUNCTION pollux_end_long_connections(
    p_call_s double precision, p_question_s double precision, p_idle_s double precision
) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    WITH logins AS (
        SELECT r.oid,
               NOT EXISTS (SELECT FROM pg_auth_members AS m JOIN pg_roles AS o ON o.oid = m.roleid
                           WHERE m.member = r.oid AND o.rolname <> 'pollux_agent') AS only_calls
        FROM pg_roles AS r
        JOIN pg_roles AS g ON g.rolname IN ('pollux_agent', 'pollux_reader', 'pollux_analyst', 'pollux_daemon')
                              AND pg_has_role(r.oid, g.oid, 'MEMBER')
        WHERE r.rolcanlogin AND NOT r.rolsuper
        GROUP BY r.oid
        HAVING bool_and(g.rolname <> 'pollux_daemon')
    )
    SELECT count(*) FILTER (WHERE pg_terminate_backend(a.pid))
    FROM pg_stat_activity AS a
    JOIN logins AS l ON l.oid = a.usesysid
    WHERE CASE
        WHEN l.only_calls THEN
            a.backend_start < clock_timestamp() - make_interval(secs => p_call_s)
            AND (a.state LIKE 'idle%' OR a.xact_start < clock_timestamp() - make_interval(secs => p_call_s))
        ELSE
            a.datname = current_database()
            AND (a.xact_start < clock_timestamp() - make_interval(secs => p_question_s)
                 OR a.state LIKE 'idle%' AND a.state_change < clock_timestamp() - make_interval(secs => p_idle_s))
        END
$$;

-- ---------------------------------------------------------------------------------------------- the three doors

CREATE FUNCTION pollux_report(token text, report text) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$ SELECT pollux_record(token, report, pollux_clock(), true) $$;

CREATE FUNCTION pollux_poll(token text, run_number integer) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$ SELECT pollux_answer(token, run_number, pollux_clock()) $$;

-- For its own reallocation only, whatever number it names.
CREATE FUNCTION pollux_move(token text, request_id bigint) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$
DECLARE
    v_job_id CONSTANT bigint := pollux_job_of_token(token);
    v_move jsonb;
BEGIN
    SELECT jsonb_build_object('reason', a.reason) || jsonb_object_agg(s.side, COALESCE(
        (SELECT jsonb_object_agg(n.node_name, n.num_gpus) FROM reallocation_nodes AS n
         WHERE n.reallocation_id = a.id AND n.side = s.side), '{}'::jsonb))
    INTO v_move
    FROM reallocations AS a CROSS JOIN (VALUES ('source'), ('target')) AS s (side)
    WHERE a.id = request_id AND a.job_id = v_job_id
    GROUP BY a.id;
    RETURN v_move;
END
$$;

COMMENT ON FUNCTION pollux_report(text, text) IS
    'Record a job''s report, a JSON object of at most {{ max_bytes }} bytes, with the job''s own token.';
COMMENT ON FUNCTION pollux_poll(text, integer) IS
    'Return the number of the reallocation that waits for this job''s checkpoint, or null.';
COMMENT ON FUNCTION pollux_move(text, bigint) IS
    'Return from which nodes to which others a reallocation of this job moves it, and why, or null.';
