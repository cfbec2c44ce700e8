"""The agent, without torch: launching and submitting jobs, measuring steps, reporting, the checkpoint folder.

May be imported by `agent/anchor`, `agent/checkpoints`, `agent/launch`, `agent/measure`,
`agent/membership`, `agent/node`, `agent/step`, `agent/submit`, `cli`, `daemon`, `functions`,
`rehearsal`, `simulator`, `torch`, `trackers`.
"""
