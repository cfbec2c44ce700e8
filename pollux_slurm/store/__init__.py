"""The meeting point of jobs and daemon: schema, repository, migrations."""
