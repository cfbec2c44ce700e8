-- What a reader may read: the reporting views by the same names, with the person's own rows. What is asked of them is
-- planned and counted inside of functions, where no condition of the caller's comes: neither EXPLAIN nor the
-- planner's estimates reveal others' rows. Of views by job, one job at a time is asked for, so that a question
-- about one job reads no other.
CREATE SCHEMA {{ own }}{% if superuser %} AUTHORIZATION pollux_owner{% endif %};
{% if superuser %}
SET LOCAL ROLE pollux_owner;
{% endif %}

CREATE FUNCTION {{ own }}.own_jobs(OUT job_id bigint, OUT slurm_job_id text) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$
    SELECT j.id, j.slurm_job_id FROM jobs AS j JOIN users AS u ON u.user_id = j.user_id
    WHERE u.user_name = session_user
$$;

{% for view, columns in by_job.items() %}
CREATE FUNCTION {{ own }}.{{ view }}_of(p_job_id bigint) RETURNS SETOF {{ schema }}.{{ view }}
LANGUAGE sql STABLE ROWS 10 SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$ SELECT v.* FROM {{ schema }}.{{ view }} AS v WHERE v.job_id = p_job_id AND v.user_name = session_user $$;
CREATE VIEW {{ own }}.{{ view }} AS
SELECT {% for name in columns %}{{ "o" if name in ("job_id", "slurm_job_id") else "v" }}.{{ name }}{% if not loop.last %}, {% endif %}{% endfor %}

FROM {{ own }}.own_jobs() AS o CROSS JOIN LATERAL {{ own }}.{{ view }}_of(o.job_id) AS v;
{% endfor %}

{% for view in whole %}
CREATE FUNCTION {{ own }}.{{ view }}_rows() RETURNS SETOF {{ schema }}.{{ view }}
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, {{ schema }}, pg_temp
AS $$ SELECT v.* FROM {{ schema }}.{{ view }} AS v{% if view not in (aggregates | map(attribute=0) | list) %} WHERE v.user_name = session_user{% endif %} $$;
CREATE VIEW {{ own }}.{{ view }} AS SELECT * FROM {{ own }}.{{ view }}_rows();
{% endfor %}

{% for view, reveals in aggregates %}
COMMENT ON VIEW {{ own }}.{{ view }} IS '{{ reveals }}';
{% endfor %}
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {{ own }} FROM PUBLIC;
GRANT USAGE ON SCHEMA {{ own }} TO pollux_reader;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {{ own }} TO pollux_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA {{ own }} TO pollux_reader;
{% if superuser %}
RESET ROLE;
{% endif %}
