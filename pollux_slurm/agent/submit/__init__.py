"""`pollux sbatch`: deciding what is submitted, submitting it, and the job's token.

May be imported by `agent/launch`, `agent/node`, `cli`, `functions`.
"""
