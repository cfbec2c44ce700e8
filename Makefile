# Two commands for a fresh machine: `make demo` and `make test`. Each installs what it needs and is safe to run twice.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-for-demo
FAST_TESTS := -m "not slurm and not torch and not e2e and not slow and not full" tests/agent tests/launch tests/system tests/goodput tests/policy tests/daemon tests/test_*.py

.PHONY: demo test docs pictures check test-full lint bench-agent bench-training bench-predictions bench-policy bench-pathologies bench-liars bench-gradient-noise bench-noise bench-users bench-round bench-autoscaling bench-store bench-slurm bench-moves bench-regroup check-simulator test-slurm-versions chaos check-books check-site release clean packages test-packages

# Debian's packages and Python's are installed side by side.
demo:
	@$(MAKE) --no-print-directory -j2 $(DEMO_STAMP) packages
	$(VENV)/bin/python examples/demo/run.py

test:
	@$(MAKE) --no-print-directory -j2 $(STAMP) test-packages
	.ci/check

# The documentation as a site: built without a warning into site/, and served on this machine until Ctrl-C.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	$(VENV)/bin/python -m http.server 8000 --bind 127.0.0.1 --directory site

# The pictures of the documentation, from real runs; some five minutes.
pictures: $(STAMP) packages
	$(VENV)/bin/python examples/pictures.py

# What a developer runs after each change, within 90 s on two idle cores: format, lint, types, and the fast tests.
check: $(STAMP) lint
	$(VENV)/bin/pytest -q -n 2 $(FAST_TESTS)

# All of `make test`, and what takes longer: examples rehearsed, other releases of Slurm, the books of a day's mixture
# of jobs, faults of every kind. About an hour.
test-full: test test-slurm-versions check-books
	$(VENV)/bin/pytest -q -m full
	$(VENV)/bin/python -m tests.chaos --faults 60 --seed 11 --pause 1

lint: $(STAMP)
	$(VENV)/bin/ruff format --check . && $(VENV)/bin/ruff check . && $(VENV)/bin/mypy

# What the training library costs, against plain DistributedDataParallel; on a GPU where there is one.
# More in BENCH_OPTIONS, say: make bench-agent BENCH_OPTIONS="--replicas 1 --passes 2"
bench-agent: $(STAMP)
	$(VENV)/bin/python benchmarks/agent.py --optimizer sgd $(BENCH_OPTIONS)
	$(VENV)/bin/python benchmarks/agent.py --optimizer adam $(BENCH_OPTIONS)

# A real training on this machine's GPU (on its CPU a small one): fixed against adaptive batch, what stopping and going
# on takes, the noise scale by two estimators.
bench-training: $(STAMP)
	for part in compare moves noise; do $(VENV)/bin/python -m benchmarks.training $$part $(BENCH_OPTIONS) || exit 1; done

# How well the throughput model predicts the published traces; POLLUX_TRACES names their folder.
bench-predictions: $(STAMP)
	$(VENV)/bin/python -m benchmarks.predictions

# How long a scheduling decision takes at four sizes, and how far from the best it may be.
bench-policy: $(STAMP)
	$(VENV)/bin/python -m benchmarks.policy

# How often each objective does what no scheduler should, on random small problems; about a minute.
bench-pathologies: $(STAMP)
	$(VENV)/bin/python -m benchmarks.policy_pathologies

# One ImageNet job on a cluster that grows with it, against fixed sizes; POLLUX_TRACES names the traces' folder.
bench-autoscaling: $(STAMP)
	$(VENV)/bin/python -m benchmarks.autoscaling

# The same jobs on a private Slurm and in a simulation, moved by requeue and in place: their average completion
# times must agree within 10 %. Ten to twenty minutes.
check-simulator: $(STAMP) packages
	$(VENV)/bin/python -m benchmarks.sandbox

# What the store holds: agents, a round of 2,000 jobs, each view and page on a year's history. Some twenty minutes, 3 GB in
# the temporary folder. The parts by themselves: python -m benchmarks.store --help.
bench-store: $(STAMP)
	@.ci/packages tests
	$(VENV)/bin/python -m benchmarks.store agents sqlite --agents 200
	$(VENV)/bin/python -m benchmarks.store agents postgresql --agents 100 --poll-s 2
	$(VENV)/bin/python -m benchmarks.store agents postgresql --agents 2000 --poll-s 2 --pgbouncer
	$(VENV)/bin/python -m benchmarks.store round sqlite
	$(VENV)/bin/python -m benchmarks.store round postgresql
	$(VENV)/bin/python -m benchmarks.store views sqlite --plans
	$(VENV)/bin/python -m benchmarks.store views postgresql --plans
	$(VENV)/bin/python -m benchmarks.store pages sqlite

# What false epochs and models and late reports gain under each objective, some ten minutes; POLLUX_TRACES and
# POLLUX_WORKLOAD name the published data. One objective: BENCH_OPTIONS="--objective price-rank"; several
# workloads, and one case with the truth: BENCH_OPTIONS="--case late"
bench-liars: $(STAMP)
	$(VENV)/bin/python -m benchmarks.policy_false_reports $(POLLUX_WORKLOAD) $(BENCH_OPTIONS)

# How often the intervals of one replica's gradient noise contain the truth; half an hour.
bench-gradient-noise: $(STAMP)
	$(VENV)/bin/python -m benchmarks.gradient_noise $(BENCH_OPTIONS)

# What noisy measurements cost the published workloads, with the guards against them and without; most of an hour.
bench-noise: $(STAMP)
	$(VENV)/bin/python -m benchmarks.noise --jobs 2 $(POLLUX_WORKLOAD)

# What shares between users do to completion times, and what splitting one's work into more jobs gains; POLLUX_TRACES
# and POLLUX_WORKLOAD name the published data. Some five minutes.
bench-users: $(STAMP)
	$(VENV)/bin/python -m benchmarks.policy_users averages $(POLLUX_WORKLOAD)
	$(VENV)/bin/python -m benchmarks.policy_users splitting $(POLLUX_WORKLOAD)
	$(VENV)/bin/python -m benchmarks.policy_users memory

# How long a whole round takes the daemon itself, for 1,000 nodes and 2,000 jobs behind a synthetic Slurm.
bench-round: $(STAMP)
	$(VENV)/bin/python -m benchmarks.daemon_round

# A daemon's rounds on a real slurmctld with 200 nodes and 100 sleeping jobs: wall time, and RPCs by sdiag.
# Two to five minutes; each node is a slurmd of its own, some 2 GB in all.
bench-slurm: $(STAMP) packages
	$(VENV)/bin/python -m benchmarks.slurm_scale $(BENCH_OPTIONS)

# Where the time of a move goes on a private Slurm: eight sleeping jobs side by side, moved by requeue, and one real
# training, moved in place and by requeue, under two settings of the scheduler. A quarter of an hour.
bench-moves: $(STAMP) packages
	$(VENV)/bin/python -m benchmarks.slurm_scale --nodes 8 --jobs 8 --rounds 1 --moves 24 --toggle $(BENCH_OPTIONS)
	$(VENV)/bin/python -m benchmarks.moves_in_place
	$(VENV)/bin/python -m benchmarks.moves_in_place --default-scheduler

# How long a training stands still when replicas join and leave, and when it is started again: 100 MB and 1 GB
# of state, by parts, 20 times each. Half an hour, with nothing else running.
bench-regroup: $(STAMP)
	$(VENV)/bin/python -m benchmarks.regroup $(BENCH_OPTIONS)
	$(VENV)/bin/python -m benchmarks.regroup --ready

# A release of this tree: version, changelog, sources and wheel in dist/, checked by twine and installed offline. Uploads
# nothing: make release VERSION=0.2.0
release: $(STAMP)
	.ci/release "$(VERSION)"

# The contract with Slurm, its hazards, the daemon's moves and a training in place on other releases: Debian's packages of 24.11 and
# 26.05, unpacked below SLURM_ROOTS (made once, 400 MB each; as root). docs/slurm-versions.md says what was seen.
SLURM_ROOTS ?= $(HOME)/.cache/pollux-slurm-roots
test-slurm-versions: export POLLUX_TEST_SLURM_ROOTS = $(SLURM_ROOTS)
test-slurm-versions: $(STAMP)
	@.ci/packages versions
	$(VENV)/bin/python -m tests.slurm.roots
	$(VENV)/bin/pytest -q tests/slurm/test_versions.py
	for release in 24.11 26.05; do PATH="$(SLURM_ROOTS)/$$release/bin:$$PATH" $(VENV)/bin/pytest -q \
	  tests/slurm/test_hazards.py tests/daemon/test_on_slurm.py tests/e2e/test_in_place.py || exit 1; done

# Real jobs on a private Slurm while everything around them fails, 200 times; about an hour. docs/chaos.md.
# More in CHAOS_OPTIONS, say: make chaos CHAOS_OPTIONS="--seed 2 --faults 500 --store postgresql"
chaos: $(STAMP) packages
	$(VENV)/bin/python -m tests.chaos $(CHAOS_OPTIONS)

# GPU hours, states, starts and ends in the store against Slurm's own, over a mixture of jobs on a private Slurm: once by
# slurmctld's log, once by sacct, with a slurmdbd on a MariaDB of its own. Some six minutes; BOOKS_OPTIONS=--short takes three.
check-books: $(STAMP)
	@.ci/packages tests
	$(VENV)/bin/python -m tests.books $(BOOKS_OPTIONS)

# Busy queues, limits and partition rules as sites have them, on a private Slurm: single cases, some minutes, and all of
# them together for half an hour. More in SITE_OPTIONS, say: make check-site SITE_OPTIONS="--minutes 3 --seed 2"
check-site: $(STAMP)
	@.ci/packages tests
	$(VENV)/bin/pytest -q tests/site
	$(VENV)/bin/python -m tests.site $(SITE_OPTIONS)

packages:
	@.ci/packages

test-packages:
	@.ci/packages tests

$(STAMP): pyproject.toml .ci/constraints.txt
	PYTHON=$(PYTHON) .ci/install --upgrade -e '.[torch,postgres,lightning,transformers,trackers,view,docs,dev]'
	touch $@ $(DEMO_STAMP)

# What the demo imports (its images are a file of scikit-learn's); `make test` adds the rest.
$(DEMO_STAMP): pyproject.toml .ci/constraints.txt
	PYTHON=$(PYTHON) .ci/install -e '.[torch,view]' scikit-learn
	touch $@

clean:
	rm -rf $(VENV) build dist demo-run check-run
