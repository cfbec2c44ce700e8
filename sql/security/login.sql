-- A login, as `pollux db login` makes it. {% if shared %}Shared by jobs of many users: whoever has it can call the
-- seven functions, each with a job's own token, and little else.{% endif %}

DO $login$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {{ name_text }}) THEN
        CREATE ROLE {{ name }} LOGIN;
    END IF;
END
$login$;
ALTER ROLE {{ name }} NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION CONNECTION LIMIT {{ connections }};
ALTER ROLE {{ name }} RESET ALL;
{% for database in set_in %}
ALTER ROLE {{ name }} IN DATABASE {{ database }} RESET ALL;
{% endfor %}
REVOKE {{ name }} FROM pollux_daemon;
{% for role in others %}
REVOKE {{ role }} FROM {{ name }};
{% endfor %}
{% for role in memberships %}
GRANT {{ role }} TO {{ name }};
{% endfor %}
{% if reads_own %}
ALTER ROLE {{ name }} IN DATABASE {{ database }} SET search_path = {{ own }}, {{ schema }};
{% endif %}
{% if "pollux_agent" in memberships %}
-- A token is a parameter of a statement, and parameters may be logged.
ALTER ROLE {{ name }} SET log_parameter_max_length = 0;
ALTER ROLE {{ name }} SET log_parameter_max_length_on_error = 0;
{% endif %}
{% for setting, value in settings %}
ALTER ROLE {{ name }} SET {{ setting }} = '{{ value }}';
{% endfor %}
{% if shared %}
-- It may change most of these for all who come after: the daemon, which may become it, puts that right.
GRANT {{ name }} TO pollux_daemon;
-- From a database in which everybody may end connections of the same login, it could end its siblings'.
{% for database in other_databases %}
REVOKE CONNECT ON DATABASE {{ database }} FROM PUBLIC;
{% endfor %}
{% endif %}
