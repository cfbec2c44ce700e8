"""`pollux sbatch`: what is submitted, and the job's token.

May be imported by `agent/launch`, `cli`.
"""
