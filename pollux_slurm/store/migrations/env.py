"""Alembic's entry: run the migrations on the connection, and in the transaction, that we were given."""

from alembic import context

from pollux_slurm.store.schema import VERSION_TABLE, Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
    # SQLite changes a table by copying it.
    render_as_batch=True,
)
context.run_migrations()
