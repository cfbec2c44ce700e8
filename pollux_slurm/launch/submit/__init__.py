"""`pollux sbatch`: deciding what is submitted, where its checkpoints go, and submitting it.

May be imported by `cli`, `functions`, `launch/anchor`, `launch/run`.
"""
