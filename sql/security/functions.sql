{% macro refuse(found) %}
IF {{ found }}.code IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = {{ found }}.code, MESSAGE = {{ found }}.words;
    END IF;
{%- endmacro %}
-- What a job may do on PostgreSQL, and all that it may do: the seven functions at the end of this file.
-- Whoever calls them is an untrusted client. The functions find its job, limit its reports and run the statements
-- of sql/agent_api/statements.sql; columns with their checks (sql/schema/postgresql.sql) keep out what no report has.
--
-- The helpers have no search_path of their own: only the functions below call them, whose is fixed, and nobody
-- else may. Errors have SQLSTATEs of their own: PX001 unknown token, PX002 stale run, PX003 report refused, PX004 too
-- many reports. What a column does not take has PostgreSQL's.

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

-- The job of this token; an error where there is none.
CREATE FUNCTION pollux_job_of_token(p_token text) RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_token_sha256 CONSTANT text :=
        CASE WHEN octet_length(p_token) <= 1024 THEN encode(sha256(convert_to(p_token, 'UTF8')), 'hex') END;
    v_token_user_id CONSTANT bigint := substring(p_token FROM '^([0-9]{1,10})-');
    job record;
BEGIN
    {{ statements.job | indent }}
    INTO job;
    {{ refuse("job") }}
    RETURN job.id;
END
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

-- Record a report as of p_at, and return what fits into memory by jobs of its kind: see pollux_report.
CREATE FUNCTION pollux_record(
    p_token text, p_report text, p_at timestamp with time zone, p_limited boolean
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$
DECLARE
    v_job_id CONSTANT bigint := pollux_job_of_token(p_token);
    m record;
    admitted record;
    run record;
    confirmed record;
BEGIN
    IF p_report IS NULL OR octet_length(p_report) > {{ max_bytes }} THEN
        RAISE EXCEPTION USING ERRCODE = 'PX003', MESSAGE = format(
            'report refused: it has %s bytes, and may have {{ max_bytes }}', octet_length(p_report)
        );
    END IF;
    PERFORM pollux_take_turn(
        v_job_id, GREATEST(1.0, octet_length(p_report) / {{ ordinary_bytes }}.0), p_at, p_limited
    );
    SELECT p_at AS at, p_limited AS limited, x.* INTO m
    FROM jsonb_to_record(p_report::jsonb) AS x (
        run_number integer, restart_count integer, sequence bigint, phase text, gpus_per_node jsonb, warnings jsonb,
        num_steps bigint, first_step_s double precision, restore_s double precision,
        global_batch_size bigint, atomic_batch_size bigint, accumulation_steps bigint, throughput double precision,
        predicted_throughput double precision, step_time_s double precision, efficiency double precision,
        progress double precision, epoch bigint, total_epochs bigint, num_examples bigint,
        initial_batch_size bigint, max_batch_size bigint, min_atomic bigint, max_atomic bigint, accumulation boolean,
        grad_sqr double precision, grad_var double precision, noise_low double precision, noise_high double precision,
        alpha_g double precision, beta_g double precision, alpha_n double precision, beta_n double precision,
        alpha_l double precision, beta_l double precision, gamma double precision,
        max_gpus_seen integer, max_nodes_seen integer,
        failed_atomic bigint, num_parameters bigint, precision text,
        request_id bigint, blocked_s double precision, size_bytes bigint
    );
    {{ statements.admitted | indent }}
    INTO admitted;
    {{ refuse("admitted") }}
    IF admitted.is_repeated THEN
        RETURN admitted.fitting_atomic;
    END IF;
    {% for step in recording %}
    {% if step.part %}
    IF m.{{ step.part }} IS NOT NULL THEN
    {% endif %}
    {{ statements[step.statement] | indent }}
    {% if step.keeps %}
    INTO {{ step.statement }}
    {% endif %}
    ;
    {% if step.part %}
    END IF;
    {% endif %}
    {% endfor %}
    RETURN admitted.fitting_atomic;
END
$$;

-- What the job should do as of p_at: the id of the reallocation that waits for its checkpoint, or null.
CREATE FUNCTION pollux_answer(p_token text, p_run_number integer, p_at timestamp with time zone)
RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$
DECLARE
    v_job_id CONSTANT bigint := pollux_job_of_token(p_token);
    m record;
    poll record;
BEGIN
    SELECT p_run_number AS run_number, p_at AS at INTO m;
    {{ statements.poll | indent }}
    INTO poll;
    {{ refuse("poll") }}
    RETURN poll.request_id;
END
$$;

-- End connections that last too long. Every login may lift its own time-outs, and keep what others need: its share
-- of connections, a processor, temporary files, the queue of notifications. Of logins that only jobs use, those older
-- than any call: a call that is just being answered is not cut off, since a pooler keeps its connections for longer.
-- Of people, in this database: a transaction that lasts longer than any question, and what is idle for long.
-- Of both: a transaction that holds rows of the store, for which the daemon's moves wait.
CREATE FUNCTION pollux_end_long_connections(
    p_call_s double precision, p_question_s double precision, p_idle_s double precision, p_lock_s double precision
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
    ), writers AS (
        SELECT DISTINCT l.pid
        FROM pg_locks AS l
        JOIN pg_class AS c ON c.oid = l.relation AND c.relnamespace = '{{ schema }}'::regnamespace
        JOIN pg_database AS d ON d.oid = l.database AND d.datname = current_database()
        WHERE l.granted AND l.mode <> 'AccessShareLock'
    )
    SELECT count(*) FILTER (WHERE pg_terminate_backend(a.pid))
    FROM pg_stat_activity AS a
    JOIN logins AS l ON l.oid = a.usesysid
    WHERE a.xact_start < clock_timestamp() - make_interval(secs => p_lock_s)
          AND a.pid IN (SELECT w.pid FROM writers AS w)
       OR CASE
        WHEN l.only_calls THEN
            a.backend_start < clock_timestamp() - make_interval(secs => p_call_s)
            AND (a.state LIKE 'idle%' OR a.xact_start < clock_timestamp() - make_interval(secs => p_call_s))
        ELSE
            a.datname = current_database()
            AND (a.xact_start < clock_timestamp() - make_interval(secs => p_question_s)
                 OR a.state LIKE 'idle%' AND a.state_change < clock_timestamp() - make_interval(secs => p_idle_s))
        END
$$;

-- ---------------------------------------------------------------------------------------- what a job may call

CREATE FUNCTION pollux_report(token text, report text) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$ SELECT pollux_record(token, report, pollux_clock(), true) $$;

CREATE FUNCTION pollux_poll(token text, run_number integer) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$ SELECT pollux_answer(token, run_number, pollux_clock()) $$;

CREATE FUNCTION pollux_move(token text, request_id bigint)
RETURNS TABLE (reason text, side character varying, node_name text, num_gpus integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$
DECLARE
    v_job_id CONSTANT bigint := pollux_job_of_token(token);
    m record;
BEGIN
    SELECT pollux_move.request_id INTO m;
    RETURN QUERY
    {{ statements.move | indent }};
END
$$;

CREATE FUNCTION pollux_promise(token text)
RETURNS TABLE (state character varying, least_gpus integer, finish_at timestamp with time zone, reason text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$
DECLARE
    v_job_id CONSTANT bigint := pollux_job_of_token(token);
BEGIN
    RETURN QUERY
    {{ statements.promise | indent }};
END
$$;

CREATE FUNCTION pollux_generation(token text, restart_count integer, after integer)
RETURNS TABLE (
    slurm_job_id character varying, number integer, state character varying, at timestamp with time zone,
    planned_for integer, meeting text, standstill_s double precision, reason text,
    member_id text, node_name text, ready boolean
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$
DECLARE
    v_job_id CONSTANT bigint := pollux_job_of_token(token);
    m record;
BEGIN
    SELECT pollux_generation.restart_count, pollux_generation.after INTO m;
    RETURN QUERY
    {{ statements.generation | indent }};
END
$$;

CREATE FUNCTION pollux_ready(token text, restart_count integer, number integer, member text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$
DECLARE
    v_job_id CONSTANT bigint := pollux_job_of_token(token);
    m record;
BEGIN
    SELECT pollux_ready.restart_count, pollux_ready.number, pollux_ready.member INTO m;
    {{ statements.ready | indent }};
END
$$;

CREATE FUNCTION pollux_advance(
    token text, restart_count integer, number integer, state text,
    meeting text, standstill_s double precision, reason text
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$
DECLARE
    v_job_id CONSTANT bigint := pollux_job_of_token(token);
    m record;
    advanced record;
BEGIN
    SELECT pollux_clock() AS at, pollux_advance.restart_count, pollux_advance.number, pollux_advance.state,
           pollux_advance.meeting, pollux_advance.standstill_s, pollux_advance.reason
    INTO m;
    -- A lock that is taken means an error at once, and no connection that waits.
    PERFORM FROM generations AS g WHERE g.job_id = v_job_id AND g.number = m.number FOR NO KEY UPDATE NOWAIT;
    {{ statements.advance | indent }};
    {{ statements.advanced | indent }}
    INTO advanced;
    RETURN advanced.is_there;
END
$$;

COMMENT ON FUNCTION pollux_report(text, text) IS
    'Record a job''s report, a JSON object of at most {{ max_bytes }} bytes, with the job''s own token; return how '
    'many examples fit into memory at once by jobs of its kind, or null.';
COMMENT ON FUNCTION pollux_poll(text, integer) IS
    'Return the number of the reallocation that waits for this job''s checkpoint, or null.';
COMMENT ON FUNCTION pollux_move(text, bigint) IS
    'Return what a reallocation of this job moves, from which nodes to which others, and why: a row a node.';
COMMENT ON FUNCTION pollux_promise(text) IS
    'Return the last answer to the moment by which this job is to be finished: a row, of nulls before the first.';
COMMENT ON FUNCTION pollux_generation(text, integer, integer) IS
    'Return the newest generation of this start of the job after a number: a row a member, in rank order.';
COMMENT ON FUNCTION pollux_ready(text, integer, integer, text) IS
    'Report that a newcomer of a planned generation of this job waits to join.';
COMMENT ON FUNCTION pollux_advance(text, integer, integer, text, text, double precision, text) IS
    'Commit or refuse a planned generation of this job, or report its first step; return whether that holds.';
