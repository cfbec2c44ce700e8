"""The agent, without torch: what lives in a training process, and what it agrees on with its launcher.

May be imported by `agent/checkpoints`, `agent/measure`, `agent/membership`, `functions`, `launch`,
`rehearsal`, `torch`.
"""
