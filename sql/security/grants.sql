-- Who may do what in this database. Applied after every change of the schema; safe to apply twice.
REVOKE ALL ON DATABASE {{ database }} FROM PUBLIC;
REVOKE CREATE ON SCHEMA {{ schema }} FROM PUBLIC;
{% for relation in tables + views + ["pollux_allowances"] %}
REVOKE ALL ON {{ relation }} FROM PUBLIC;
{% endfor %}
{% for function in functions %}
REVOKE ALL ON FUNCTION {{ function }} FROM PUBLIC;
{% endfor %}
{% if granted %}
GRANT CONNECT ON DATABASE {{ database }} TO pollux_agent, pollux_reader, pollux_analyst, pollux_daemon;
GRANT USAGE ON SCHEMA {{ schema }} TO pollux_agent, pollux_reader, pollux_analyst, pollux_daemon;

GRANT EXECUTE ON FUNCTION
    pollux_report(text, text), pollux_poll(text, integer), pollux_move(text, bigint),
    pollux_promise(text), pollux_generation(text, integer, integer), pollux_ready(text, integer, integer, text),
    pollux_advance(text, integer, integer, text, text, double precision, text)
TO pollux_agent, pollux_daemon;

GRANT SELECT ON {{ version_table }} TO pollux_reader, pollux_analyst;
{% for view in views %}
REVOKE ALL ON {{ view }} FROM pollux_reader;
GRANT SELECT ON {{ view }} TO pollux_analyst, pollux_daemon;
{% endfor %}

GRANT SELECT ON {{ version_table }} TO pollux_daemon;
{% for table in tables %}
GRANT SELECT, INSERT, UPDATE, DELETE ON {{ table }} TO pollux_daemon;
{% endfor %}
{% for sequence in sequences %}
GRANT USAGE ON SEQUENCE {{ sequence }} TO pollux_daemon;
{% endfor %}
GRANT EXECUTE ON FUNCTION
    pollux_record(text, text, timestamp with time zone, boolean),
    pollux_answer(text, integer, timestamp with time zone),
    pollux_end_long_connections(double precision, double precision, double precision, double precision)
TO pollux_daemon;
{% endif %}
