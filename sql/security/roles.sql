-- Group roles: nobody logs in as one of them; logins are members. They belong to the whole server, and two
-- databases may be made at once, so that another's success is as good as ours.
{% for role in roles %}
DO $roles$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = '{{ role }}') THEN
        CREATE ROLE {{ role }} NOLOGIN;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;
END
$roles$;
{% endfor %}
COMMENT ON ROLE pollux_agent IS 'May report for a job and poll for it, with the job''s token; has no right on any table.';
COMMENT ON ROLE pollux_reader IS 'May read a person''s own rows of the reporting views, and the sums among them.';
COMMENT ON ROLE pollux_analyst IS 'May read everybody''s rows of the reporting views.';
COMMENT ON ROLE pollux_daemon IS 'May read and write all of the store.';
{% if superuser %}
COMMENT ON ROLE pollux_owner IS 'Owns the tables and functions, so that no function runs as a superuser.';
{% endif %}
DO $roles$
BEGIN
    -- Asked first: a grant that is there already would still be written, which two databases at once cannot.
    IF NOT pg_catalog.pg_has_role('pollux_analyst', 'pollux_reader', 'MEMBER') THEN
        GRANT pollux_reader TO pollux_analyst;
    END IF;
{% if superuser %}
    -- To end connections of jobs that last too long: see pollux_end_long_connections.
    IF NOT pg_catalog.pg_has_role('pollux_owner', 'pg_signal_backend', 'MEMBER') THEN
        GRANT pg_signal_backend, pg_read_all_stats TO pollux_owner;
    END IF;
{% endif %}
EXCEPTION WHEN unique_violation THEN
    NULL;
END
$roles$;
