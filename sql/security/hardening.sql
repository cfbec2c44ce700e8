-- What PostgreSQL lets everybody do who can connect, and a login that untrusted clients share must not do: see and end
-- each other's connections, keep locks that others wait for, fill the disk, run code. A superuser's to apply.
REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC;
GRANT USAGE ON LANGUAGE plpgsql TO pollux_owner, pollux_daemon;
DO $hardening$
DECLARE
    v_function record;
    v_login name;
    v_has text[];
BEGIN
    -- So that the daemon can put right what whoever has a shared login changes about it.
    FOR v_login IN
        SELECT r.rolname
        FROM pg_roles AS r
        JOIN pg_db_role_setting AS s ON s.setrole = r.oid AND s.setdatabase = 0
        WHERE r.rolcanlogin AND NOT r.rolsuper
          AND r.oid IN (SELECT m.member FROM pg_auth_members AS m JOIN pg_roles AS g ON g.oid = m.roleid
                        WHERE g.rolname = 'pollux_agent')
          AND '{{ shared_mark }}' = ANY (s.setconfig)
          AND NOT pg_has_role('pollux_daemon', r.oid, 'MEMBER')
    LOOP
        EXECUTE format('GRANT %I TO pollux_daemon', v_login);
    END LOOP;
    -- Bounds for logins that an earlier release made, or somebody by hand. What is set of them stays.
    FOR v_login, v_has IN
        SELECT r.rolname,
               ARRAY(SELECT split_part(c, '=', 1) FROM pg_db_role_setting AS s, unnest(s.setconfig) AS c
                     WHERE s.setrole = r.oid AND s.setdatabase = 0)
        FROM pg_roles AS r
        WHERE r.rolcanlogin AND NOT r.rolsuper AND NOT pg_has_role(r.oid, 'pollux_daemon', 'MEMBER')
          AND (pg_has_role(r.oid, 'pollux_agent', 'MEMBER') OR pg_has_role(r.oid, 'pollux_reader', 'MEMBER')
               OR pg_has_role(r.oid, 'pollux_analyst', 'MEMBER'))
    LOOP
        {% for setting, value in settings %}
        IF '{{ setting }}' <> ALL (v_has) THEN
            EXECUTE format('ALTER ROLE %I SET {{ setting }} = %L', v_login, '{{ value }}');
        END IF;
        {% endfor %}
    END LOOP;
    -- Readers find their own views: those whom somebody made members by hand, or with an earlier release, too.
    FOR v_login IN
        SELECT r.rolname
        FROM pg_roles AS r
        WHERE r.rolcanlogin AND NOT r.rolsuper AND pg_has_role(r.oid, 'pollux_reader', 'MEMBER')
          AND NOT pg_has_role(r.oid, 'pollux_analyst', 'MEMBER')
          AND NOT pg_has_role(r.oid, 'pollux_daemon', 'MEMBER')
    LOOP
        EXECUTE format('ALTER ROLE %I IN DATABASE %I SET search_path = {{ own }}, {{ schema }}',
                       v_login, current_database());
    END LOOP;
    -- So that `pollux db check` in another database of this server knows that this one is hardened.
    IF shobj_description((SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()), 'pg_database')
        IS NULL
    THEN
        EXECUTE format('COMMENT ON DATABASE %I IS %L', current_database(), 'pollux store');
    END IF;
    FOR v_function IN
        SELECT p.oid::regprocedure AS name, p.proname LIKE '%terminate\_backend' OR p.proname = 'pg_cancel_backend'
                   AS signals,
               p.proname LIKE '%advisory%' AS locks
        FROM pg_catalog.pg_proc AS p
        WHERE p.pronamespace = 'pg_catalog'::regnamespace
          AND (p.proname IN ('pg_terminate_backend', 'pg_cancel_backend', 'pg_stat_get_activity',
                             'pg_stat_get_progress_info', 'pg_lock_status', 'pg_blocking_pids',
                             'pg_safe_snapshot_blocking_pids', 'pg_isolation_test_session_is_blocked',
                             'pg_prepared_xact', 'pg_logical_emit_message', 'pg_export_snapshot', 'pg_notify', 'pg_sleep', 'pg_sleep_for',
                             'pg_sleep_until', 'lowrite', 'loread')
               OR p.proname LIKE 'pg\_stat\_get\_backend\_%'
               OR p.proname LIKE 'pg\_advisory\_%' OR p.proname LIKE 'pg\_try\_advisory\_%'
               OR p.proname LIKE 'lo\_%')
    LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', v_function.name);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pollux_owner', v_function.name);
        IF v_function.signals THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pg_signal_backend', v_function.name);
        ELSIF NOT v_function.locks THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pg_read_all_stats', v_function.name);
        END IF;
    END LOOP;
END
$hardening$;
