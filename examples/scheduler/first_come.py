"""A scheduler in plain Python: first come, first served, each job with the GPUs that it requested.

pollux simulate examples/scheduler/experiment.toml --traces TRACES
"""

import json
import sys

for line in sys.stdin:
    asked = json.loads(line)["round"]
    problem = asked["problem"]
    wanted = {one["job_id"]: one["num_gpus"] for one in asked["requests"]}
    free = {node["name"]: node["num_gpus"] for node in problem["nodes"]}
    given = {}
    for job in problem["jobs"]:  # who runs goes on
        if job["current"]:
            given[job["job_id"]] = job["current"]
            for node, gpus in job["current"].items():
                free[node] -= gpus
    for job in sorted(problem["jobs"], key=lambda job: -job["age_s"]):
        missing = wanted[job["job_id"]]
        if job["job_id"] in given:
            continue
        if missing > sum(free.values()):
            break  # nobody overtakes
        nodes = given[job["job_id"]] = {}
        while missing:
            node = max(free, key=free.__getitem__)
            nodes[node] = min(free[node], missing)
            free[node] -= nodes[node]
            missing -= nodes[node]
    print(json.dumps({"allocations": given}), flush=True)
