"""`pollux sbatch`: deciding what is submitted, submitting it, and the job's token.

May be imported by `agent/anchor`, `agent/launch`, `agent/node`, `cli`, `functions`.
"""
