"""The model of one job: throughput, statistical efficiency, goodput, and their fitting."""
