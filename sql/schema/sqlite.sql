-- Schema 0106 of a pollux store on sqlite. Generated: pollux db schema sqlite
-- Times are UTC. A store is made by `pollux db init`, not from this text.

-- accounts: Slurm accounts that jobs are charged to.
--   account: Slurm's name of it; may be empty.
--   first_seen_at: When the daemon first read a job of it.

CREATE TABLE accounts (
    account TEXT NOT NULL,
    first_seen_at DATETIME NOT NULL,
    CONSTRAINT pk_accounts PRIMARY KEY (account)
);

-- leases: The right to act, which one daemon has at a time.
--   name: What the lease is for.
--   owner: The daemon that has it.
--   renewed_at: When this owner acquired or last renewed it.
--   expires_at: When it expires unless renewed.
--   interval_s: Longest time between its rounds, seconds; null where not recorded.
--   watch_s: Interval at which it polls Slurm, seconds; null where not recorded.

CREATE TABLE leases (
    name VARCHAR(32) NOT NULL,
    owner TEXT NOT NULL,
    renewed_at DATETIME NOT NULL,
    expires_at DATETIME NOT NULL,
    interval_s DOUBLE,
    watch_s DOUBLE,
    CONSTRAINT pk_leases PRIMARY KEY (name)
);

-- nodes: Nodes that rounds could use, including removed ones.
--   node_name: Slurm's name of it.
--   gpu_type: Slurm's name of its GPUs; empty for nameless ones.
--   num_gpus: GPUs that the last round could allocate there.
--   first_seen_at: When a round could first use it.
--   last_seen_at: When a round could last use it.

CREATE TABLE nodes (
    node_name TEXT NOT NULL,
    gpu_type TEXT NOT NULL,
    num_gpus INTEGER NOT NULL,
    first_seen_at DATETIME NOT NULL,
    last_seen_at DATETIME NOT NULL,
    CONSTRAINT pk_nodes PRIMARY KEY (node_name)
);

-- rounds: One row per round that decided, with its problem and decision.
--   id: The round's number; increases.
--   at: When it was decided.
--   shadow: Was it in shadow mode: recorded, not enacted?
--   objective: Name of the objective.
--   solver: Name of the solver.
--   fitness: The objective's value at the decision.
--   problem: The problem as versioned JSON, for replays.
--   decision: The decision as versioned JSON, for replays.
--   upper_bound: Upper bound of the fitness with as many served jobs; null if none was proved.
--   gap: (upper_bound - fitness) / upper_bound; null without a bound.
--   timed_out: Did the search end at its time limit?
--   num_jobs: Jobs that it decided about.
--   num_served: Jobs that got GPUs.
--   num_gpus: GPUs that it allocated.
--   total_gpus: GPUs that it could allocate.
--   fair_share_gpus: Fair share of a job in GPUs, at which speedup is 1.
--   mean_speedup: Mean over its jobs of speedup; null without jobs.
--   min_speedup: Smallest speedup of its jobs; null without jobs.
--   solve_s: Time of the decision, seconds; null where not measured.

CREATE TABLE rounds (
    id INTEGER NOT NULL,
    at DATETIME NOT NULL,
    shadow BOOLEAN NOT NULL,
    objective TEXT NOT NULL,
    solver TEXT NOT NULL,
    fitness DOUBLE NOT NULL,
    problem TEXT NOT NULL,
    decision TEXT NOT NULL,
    upper_bound DOUBLE,
    gap DOUBLE,
    timed_out BOOLEAN NOT NULL,
    num_jobs INTEGER NOT NULL,
    num_served INTEGER NOT NULL,
    num_gpus INTEGER NOT NULL,
    total_gpus INTEGER NOT NULL,
    fair_share_gpus INTEGER NOT NULL,
    mean_speedup DOUBLE,
    min_speedup DOUBLE,
    solve_s DOUBLE,
    CONSTRAINT pk_rounds PRIMARY KEY (id),
    CONSTRAINT ck_rounds_shadow CHECK (shadow IN (0, 1))
);

CREATE INDEX ix_rounds_at ON rounds (at);

-- users: Owners of jobs, as Slurm authenticated them.
--   user_id: Unix user id.
--   user_name: Login name last seen with this id.

CREATE TABLE users (
    user_id INTEGER NOT NULL,
    user_name TEXT NOT NULL,
    CONSTRAINT pk_users PRIMARY KEY (user_id),
    CONSTRAINT ck_users_user_id CHECK (user_id >= 0)
);

-- gpu_prices: Prices of a round: what one more GPU of a type would have added.
--   round_id: The round.
--   gpu_type: Slurm's name of it; may be empty.
--   price: Lagrange multiplier, in units of the objective.

CREATE TABLE gpu_prices (
    round_id INTEGER NOT NULL,
    gpu_type TEXT NOT NULL,
    price DOUBLE NOT NULL,
    CONSTRAINT pk_gpu_prices PRIMARY KEY (round_id, gpu_type),
    CONSTRAINT fk_gpu_prices_round_id_rounds FOREIGN KEY(round_id) REFERENCES rounds (id) ON DELETE CASCADE
);

-- jobs: Adaptive jobs, one row each, with the terms from their Slurm Comment.
--   id: This database's id of the job.
--   slurm_job_id: Slurm's job id as text.
--   first_job_id: First row of the same submission, whose token its owner replaced; null for the first.
--   token_sha256: SHA-256 (hex) of the token that the job reports with.
--   user_id: The owner.
--   name: Job name.
--   account: Slurm account it is charged to; may be empty.
--   partition: Slurm partition.
--   min_gpus: Fewest GPUs that it can be given.
--   max_gpus: Most GPUs; null for no bound.
--   allow_unconfirmed: May it be requeued when its checkpoint was not confirmed in time?
--   in_place: Does it move in place, its GPUs in jobs of their own?
--   cpus_per_gpu: CPUs that come with each GPU.
--   memory_per_gpu_mb: Memory that comes with each GPU, in MiB.
--   state: State in the last snapshot of Slurm.
--   submitted_at: When it was first submitted.
--   registered_at: When the daemon registered it.
--   started_at: When it first started; null before.
--   finished_at: When the job ended; null while it is not over.
--   time_limit_s: Time limit of one run when it was registered, seconds; null for none, or unknown.
--   required_nodes: Nodes that its owner named, separated by commas; null for none.
--   submitted_gpus: GPUs that its owner submitted it with; null where unknown.
--   kind: What it trains: its owner's name for it, or a digest; null for none.
--   finish_by: When its owner wants it finished; null for no wish.
--   promise: The last round's answer to that; null before one.
--   promise_gpus: Fewest GPUs that keep an accepted promise now; null for any other answer.
--   promise_finish_at: When it is finished with these, in nine of ten cases; of a refused one the earliest; or null.
--   promise_reason: What the answer lacks, or why the promise ended; null for neither.
--   fitting_atomic: Largest micro-batch that fits into memory by jobs of its kind, examples; null: unknown.
--   not_moved_reason: Why the last round could not move it; null when it could.
--   estimated: Is an interval of it, or its end, an estimate, because Slurm's records lack it?

CREATE TABLE jobs (
    id INTEGER NOT NULL,
    slurm_job_id VARCHAR(64) NOT NULL,
    first_job_id INTEGER,
    token_sha256 VARCHAR(64) NOT NULL,
    user_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    account TEXT NOT NULL,
    partition TEXT NOT NULL,
    min_gpus INTEGER NOT NULL,
    max_gpus INTEGER,
    allow_unconfirmed BOOLEAN NOT NULL,
    in_place BOOLEAN DEFAULT 0 NOT NULL,
    cpus_per_gpu INTEGER NOT NULL,
    memory_per_gpu_mb INTEGER NOT NULL,
    state VARCHAR(32) NOT NULL,
    submitted_at DATETIME NOT NULL,
    registered_at DATETIME NOT NULL,
    started_at DATETIME,
    finished_at DATETIME,
    time_limit_s DOUBLE,
    required_nodes TEXT,
    submitted_gpus INTEGER,
    kind VARCHAR(32),
    finish_by DATETIME,
    promise VARCHAR(32),
    promise_gpus INTEGER,
    promise_finish_at DATETIME,
    promise_reason TEXT,
    fitting_atomic INTEGER,
    not_moved_reason TEXT,
    estimated BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT pk_jobs PRIMARY KEY (id),
    CONSTRAINT ck_jobs_token_sha256 CHECK (length(token_sha256) = 64),
    CONSTRAINT uq_jobs_token_sha256_user_id UNIQUE (token_sha256, user_id),
    CONSTRAINT ck_jobs_min_gpus CHECK (min_gpus >= 1),
    CONSTRAINT ck_jobs_max_gpus CHECK (max_gpus IS NULL OR max_gpus >= min_gpus),
    CONSTRAINT ck_jobs_cpus_per_gpu CHECK (cpus_per_gpu >= 0),
    CONSTRAINT ck_jobs_memory_per_gpu_mb CHECK (memory_per_gpu_mb >= 0),
    CONSTRAINT ck_jobs_finished_at CHECK ((finished_at IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled', 'timeout'))),
    CONSTRAINT fk_jobs_user_id_users FOREIGN KEY(user_id) REFERENCES users (user_id),
    CONSTRAINT fk_jobs_account_accounts FOREIGN KEY(account) REFERENCES accounts (account),
    CONSTRAINT ck_jobs_allow_unconfirmed CHECK (allow_unconfirmed IN (0, 1)),
    CONSTRAINT ck_jobs_in_place CHECK (in_place IN (0, 1)),
    CONSTRAINT ck_jobs_state CHECK (state IN ('pending', 'running', 'completing', 'suspended', 'completed', 'failed', 'cancelled', 'timeout')),
    CONSTRAINT ck_jobs_promise CHECK (promise IN ('unknown', 'refused', 'accepted', 'ended'))
);

CREATE INDEX ix_jobs_account_submitted_at ON jobs (account, submitted_at);

CREATE INDEX ix_jobs_estimated ON jobs (estimated) WHERE estimated;

CREATE INDEX ix_jobs_finished_at ON jobs (finished_at);

CREATE INDEX ix_jobs_first_job_id ON jobs (first_job_id);

CREATE INDEX ix_jobs_kind_id ON jobs (kind, id);

CREATE INDEX ix_jobs_slurm_job_id_id ON jobs (slurm_job_id, id);

CREATE INDEX ix_jobs_started_at ON jobs (started_at);

CREATE INDEX ix_jobs_submitted_at ON jobs (submitted_at);

CREATE INDEX ix_jobs_user_id_submitted_at ON jobs (user_id, submitted_at);

CREATE UNIQUE INDEX uq_jobs_unfinished_slurm_job_id ON jobs (slurm_job_id) WHERE finished_at IS NULL;

-- node_days: Sums over one day's rounds of what they could allocate on a node.
--   node_name: The node.
--   day: The day, in UTC.
--   num_rounds: Rounds that could use the node.
--   gpus_sum: Sum of the GPUs that they could allocate there.
--   available_gpu_s: These GPUs times the time since the previous round, at most an hour.

CREATE TABLE node_days (
    node_name TEXT NOT NULL,
    day DATE NOT NULL,
    num_rounds INTEGER NOT NULL,
    gpus_sum DOUBLE NOT NULL,
    available_gpu_s DOUBLE NOT NULL,
    CONSTRAINT pk_node_days PRIMARY KEY (node_name, day),
    CONSTRAINT ck_node_days_num_rounds CHECK (num_rounds >= 1),
    CONSTRAINT ck_node_days_sums CHECK (gpus_sum >= 0 AND available_gpu_s >= 0),
    CONSTRAINT fk_node_days_node_name_nodes FOREIGN KEY(node_name) REFERENCES nodes (node_name) ON DELETE CASCADE
);

CREATE INDEX ix_node_days_day ON node_days (day);

-- allocations: Allocation intervals: times in which a job has one allocation.
--   job_id: The job.
--   number: Number of the interval within the job: 0, 1, ...
--   started_at: When the interval began.
--   ended_at: When it ended; null while it lasts.
--   restart_count: Slurm's restart count of its run; null where unknown.
--   estimated: Is its begin or end an estimate, because Slurm does not show it?

CREATE TABLE allocations (
    job_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    started_at DATETIME NOT NULL,
    ended_at DATETIME,
    restart_count INTEGER,
    estimated BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT pk_allocations PRIMARY KEY (job_id, number),
    CONSTRAINT ck_allocations_number CHECK (number >= 0),
    CONSTRAINT ck_allocations_ended_at CHECK (ended_at >= started_at),
    CONSTRAINT fk_allocations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX ix_allocations_started_at ON allocations (started_at);

CREATE UNIQUE INDEX uq_allocations_open ON allocations (job_id) WHERE ended_at IS NULL;

-- decisions: The allocation that a round decided for each job, and why.
--   round_id: The round.
--   job_id: The job.
--   num_gpus: GPUs allocated in all.
--   num_nodes: Nodes of these GPUs.
--   speedup: Predicted goodput over that at the job's fair share.
--   goodput: Predicted goodput, examples per second; null without a model.
--   one_gpu_goodput: Predicted best goodput on one GPU; null without a model of throughput.
--   penalty: Restart penalty applied, 0 to 1; 1 is none.
--   bound_by: The limit that kept the job from more GPUs.
--   runner_up_gpus: GPUs of the second-best configuration.
--   runner_up_nodes: Nodes of the second-best configuration.
--   runner_up_speedup: Speedup in that configuration.
--   runner_up_gpu_type: GPU type of that configuration.
--   runner_up_cost: What it would have cost other jobs beyond `cost`, in units of the objective.
--   cost: Cost of these GPUs to other jobs at the round's prices, in units of the objective.
--   gpu_type: Type of these GPUs; null for none, several types or nameless ones.
--   global_batch_size: Predicted best M, examples per step; null without a model.
--   atomic_batch_size: Its m, examples of a micro-batch.
--   accumulation_steps: Its s, accumulation steps per step.
--   declared_gain: Factor by which the declared epochs changed the weight; null where they did not count.
--   declaration_doubt: Why the declared epochs did not count; null where they did.
--   pinned_reason: Why the job had to keep its allocation; null where it could change.
--   excluded_reason: Why the job was excluded; null when it took part.
--   explanation: The decision and its reasons in one line.

CREATE TABLE decisions (
    round_id INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    num_gpus INTEGER NOT NULL,
    num_nodes INTEGER NOT NULL,
    speedup DOUBLE NOT NULL,
    goodput DOUBLE,
    one_gpu_goodput DOUBLE,
    penalty DOUBLE NOT NULL,
    bound_by VARCHAR(32) NOT NULL,
    runner_up_gpus INTEGER,
    runner_up_nodes INTEGER,
    runner_up_speedup DOUBLE,
    runner_up_gpu_type TEXT,
    runner_up_cost DOUBLE,
    cost DOUBLE,
    gpu_type TEXT,
    global_batch_size INTEGER,
    atomic_batch_size INTEGER,
    accumulation_steps INTEGER,
    declared_gain DOUBLE,
    declaration_doubt TEXT,
    pinned_reason TEXT,
    excluded_reason TEXT,
    explanation TEXT NOT NULL,
    CONSTRAINT pk_decisions PRIMARY KEY (round_id, job_id),
    CONSTRAINT ck_decisions_num_gpus CHECK (num_gpus >= 0),
    CONSTRAINT ck_decisions_num_nodes CHECK (num_nodes >= 0 AND num_nodes <= num_gpus),
    CONSTRAINT ck_decisions_runner_up CHECK ((runner_up_gpus IS NULL) = (runner_up_nodes IS NULL)),
    CONSTRAINT fk_decisions_round_id_rounds FOREIGN KEY(round_id) REFERENCES rounds (id) ON DELETE CASCADE,
    CONSTRAINT fk_decisions_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX ix_decisions_job_id_round_id ON decisions (job_id, round_id);

-- declarations: Every total number of epochs that a job has declared, in order.
--   job_id: The job.
--   number: Number of the declaration within the job: 0, 1, ...
--   total_epochs: Epochs declared.
--   at: When it was first declared.
--   epoch: The current epoch then.
--   progress: Progress until then, in units of M0.
--   least_total_progress: Smallest progress * total / epoch of any report since; null before the first epoch ended.

CREATE TABLE declarations (
    job_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    total_epochs INTEGER NOT NULL,
    at DATETIME NOT NULL,
    epoch INTEGER NOT NULL,
    progress DOUBLE NOT NULL,
    least_total_progress DOUBLE,
    CONSTRAINT pk_declarations PRIMARY KEY (job_id, number),
    CONSTRAINT uq_declarations_job_id_total_epochs UNIQUE (job_id, total_epochs),
    CONSTRAINT ck_declarations_number CHECK (number >= 0),
    CONSTRAINT ck_declarations_total_epochs CHECK (total_epochs BETWEEN 0 AND 1000000000),
    CONSTRAINT ck_declarations_epoch CHECK (epoch BETWEEN 0 AND 1000000000),
    CONSTRAINT ck_declarations_progress CHECK (progress BETWEEN 0.0 AND 1e+18),
    CONSTRAINT ck_declarations_least_total_progress CHECK (least_total_progress BETWEEN 0 AND 1e27),
    CONSTRAINT fk_declarations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

-- generations: Generations: memberships of a job whose replicas join and leave while it trains.
--   job_id: The job.
--   number: Number within the job, over all its starts: 1, 2, ...
--   state: Its current state.
--   at: When it came into this state.
--   restart_count: Slurm's restart count of the start of the job that it was planned for.
--   meeting: Address at which its members meet; null before it is committed.
--   standstill_s: How long training stood still for it, seconds; null before its first step.
--   reason: Why it was refused, withdrawn or failed, for people; null otherwise.

CREATE TABLE generations (
    job_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    state VARCHAR(32) NOT NULL,
    at DATETIME NOT NULL,
    restart_count INTEGER NOT NULL,
    meeting TEXT,
    standstill_s DOUBLE,
    reason TEXT,
    CONSTRAINT pk_generations PRIMARY KEY (job_id, number),
    CONSTRAINT ck_generations_restart_count CHECK (restart_count BETWEEN 0 AND 1000000),
    CONSTRAINT ck_generations_standstill_s CHECK (standstill_s BETWEEN 0.0 AND 10000000.0),
    CONSTRAINT ck_generations_number CHECK (number BETWEEN 1 AND 1000000),
    CONSTRAINT ck_generations_meeting CHECK (length(meeting) BETWEEN 1 AND 300),
    CONSTRAINT ck_generations_reason CHECK (length(reason) <= 1024),
    CONSTRAINT ck_generations_committed CHECK ((state IN ('committed', 'regrouped', 'failed')) = (meeting IS NOT NULL)),
    CONSTRAINT ck_generations_regrouped CHECK ((state = 'regrouped') = (standstill_s IS NOT NULL)),
    CONSTRAINT fk_generations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    CONSTRAINT ck_generations_state CHECK (state IN ('planned', 'committed', 'regrouped', 'refused', 'withdrawn', 'failed'))
);

CREATE UNIQUE INDEX uq_generations_open ON generations (job_id) WHERE state IN ('planned', 'committed');

-- job_days: Sums over one day's decisions about a job.
--   job_id: The job.
--   day: The day, in UTC.
--   num_rounds: Rounds that decided about the job.
--   gpus_sum: Sum of the GPUs allocated.
--   fair_share_gpus_sum: Sum of its fair shares, in GPUs.
--   speedup_sum: Sum of the speedups over its fair share.
--   num_compared: Rounds with a predicted goodput at the fair share.
--   fair_share_goodput_sum: Sum of these goodputs, examples per second.
--   num_one_gpu: Rounds with a predicted goodput on one GPU.
--   one_gpu_goodput_sum: Sum of these goodputs, examples per second.

CREATE TABLE job_days (
    job_id INTEGER NOT NULL,
    day DATE NOT NULL,
    num_rounds INTEGER NOT NULL,
    gpus_sum DOUBLE NOT NULL,
    fair_share_gpus_sum DOUBLE NOT NULL,
    speedup_sum DOUBLE NOT NULL,
    num_compared INTEGER NOT NULL,
    fair_share_goodput_sum DOUBLE NOT NULL,
    num_one_gpu INTEGER NOT NULL,
    one_gpu_goodput_sum DOUBLE NOT NULL,
    CONSTRAINT pk_job_days PRIMARY KEY (job_id, day),
    CONSTRAINT ck_job_days_num_compared CHECK (num_rounds >= num_compared AND num_compared >= 0),
    CONSTRAINT ck_job_days_num_one_gpu CHECK (num_rounds >= num_one_gpu AND num_one_gpu >= 0),
    CONSTRAINT fk_job_days_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX ix_job_days_day ON job_days (day);

-- model_versions: Goodput models of a job; a row is added only when something in it changed.
--   id: Id of the version; increases.
--   job_id: The job.
--   at: When it was reported.
--   initial_batch_size: M0, examples.
--   max_batch_size: Largest global batch allowed, examples; null for always M0.
--   min_atomic: Smallest micro-batch, examples.
--   max_atomic: Largest micro-batch, examples; null for no bound.
--   accumulation: May gradients be accumulated?
--   grad_sqr: Squared norm of the true gradient; null before it is known.
--   grad_var: Trace of the gradient's covariance at batch M0; null before it is known.
--   alpha_g: Fixed time of a micro-batch, seconds.
--   beta_g: Time of a micro-batch per example, seconds.
--   alpha_n: Synchronisation across nodes, seconds.
--   beta_n: The same per replica above two, seconds.
--   alpha_l: Synchronisation on one node, seconds.
--   beta_l: The same per replica above two, seconds.
--   gamma: Overlap of computation and synchronisation, 1 (none) to 10.
--   max_gpus_seen: Most GPUs that the job reports to have run on.
--   max_nodes_seen: Most nodes that the job reports to have run on.
--   noise_low: Low end of the noise scale's confidence interval, examples; null where not reported.
--   noise_high: Its high end, examples; null where unbounded.
--   run_number: The run that measured it; null where it came from the checkpoint of another run.
--   failed_atomic: Smallest micro-batch that ran out of memory, examples; null for none.
--   num_parameters: Parameters that are trained; null where not reported.
--   precision: Type of numbers that it computes with, as PyTorch names it; null where not reported.

CREATE TABLE model_versions (
    id INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    at DATETIME NOT NULL,
    initial_batch_size INTEGER NOT NULL,
    max_batch_size INTEGER,
    min_atomic INTEGER NOT NULL,
    max_atomic INTEGER,
    accumulation BOOLEAN NOT NULL,
    grad_sqr DOUBLE,
    grad_var DOUBLE,
    alpha_g DOUBLE,
    beta_g DOUBLE,
    alpha_n DOUBLE,
    beta_n DOUBLE,
    alpha_l DOUBLE,
    beta_l DOUBLE,
    gamma DOUBLE,
    max_gpus_seen INTEGER NOT NULL,
    max_nodes_seen INTEGER NOT NULL,
    noise_low DOUBLE,
    noise_high DOUBLE,
    run_number INTEGER,
    failed_atomic INTEGER,
    num_parameters INTEGER,
    precision TEXT,
    CONSTRAINT pk_model_versions PRIMARY KEY (id),
    CONSTRAINT ck_model_versions_initial_batch_size CHECK (initial_batch_size BETWEEN 1 AND 1000000000),
    CONSTRAINT ck_model_versions_max_batch_size CHECK (max_batch_size BETWEEN initial_batch_size AND 1000000000),
    CONSTRAINT ck_model_versions_min_atomic CHECK (min_atomic BETWEEN 1 AND COALESCE(max_batch_size, initial_batch_size)),
    CONSTRAINT ck_model_versions_max_atomic CHECK (max_atomic BETWEEN min_atomic AND 1000000000),
    CONSTRAINT ck_model_versions_statistics CHECK ((grad_sqr IS NULL) = (grad_var IS NULL)),
    CONSTRAINT ck_model_versions_grad_sqr CHECK (grad_sqr BETWEEN 0 AND 1e30),
    CONSTRAINT ck_model_versions_grad_var CHECK (grad_var BETWEEN 0 AND 1e30),
    CONSTRAINT ck_model_versions_noise_low CHECK (noise_low BETWEEN 0 AND 1e30),
    CONSTRAINT ck_model_versions_noise_high CHECK (noise_high BETWEEN COALESCE(noise_low, 1e30) AND 1e30),
    CONSTRAINT ck_model_versions_throughput CHECK ((beta_g IS NULL) = (alpha_g IS NULL) AND (alpha_n IS NULL) = (alpha_g IS NULL) AND (beta_n IS NULL) = (alpha_g IS NULL) AND (alpha_l IS NULL) = (alpha_g IS NULL) AND (beta_l IS NULL) = (alpha_g IS NULL) AND (gamma IS NULL) = (alpha_g IS NULL)),
    CONSTRAINT ck_model_versions_alpha_g CHECK (alpha_g BETWEEN 0 AND 1e6),
    CONSTRAINT ck_model_versions_beta_g CHECK (beta_g BETWEEN 0 AND 1e6),
    CONSTRAINT ck_model_versions_alpha_n CHECK (alpha_n BETWEEN 0 AND 1e6),
    CONSTRAINT ck_model_versions_beta_n CHECK (beta_n BETWEEN 0 AND 1e6),
    CONSTRAINT ck_model_versions_alpha_l CHECK (alpha_l BETWEEN 0 AND 1e6),
    CONSTRAINT ck_model_versions_beta_l CHECK (beta_l BETWEEN 0 AND 1e6),
    CONSTRAINT ck_model_versions_gamma CHECK (gamma BETWEEN 1 AND 10),
    CONSTRAINT ck_model_versions_time_per_example CHECK (alpha_g + beta_g >= 1e-9),
    CONSTRAINT ck_model_versions_max_gpus_seen CHECK (max_gpus_seen BETWEEN 0 AND 1000000),
    CONSTRAINT ck_model_versions_max_nodes_seen CHECK (max_nodes_seen BETWEEN 0 AND max_gpus_seen),
    CONSTRAINT ck_model_versions_failed_atomic CHECK (failed_atomic BETWEEN 2 AND 1000000000),
    CONSTRAINT ck_model_versions_num_parameters CHECK (num_parameters BETWEEN 1 AND 1000000000000000),
    CONSTRAINT ck_model_versions_precision CHECK (length(precision) BETWEEN 1 AND 32),
    CONSTRAINT fk_model_versions_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    CONSTRAINT ck_model_versions_accumulation CHECK (accumulation IN (0, 1))
);

CREATE INDEX ix_model_versions_job_id_id ON model_versions (job_id, id);

CREATE INDEX ix_model_versions_job_id_run_number_id ON model_versions (job_id, run_number, id);

-- reallocations: Reallocations: the daemon's journal.
--   id: The reallocation's id; increases.
--   job_id: The job.
--   round_id: The round that decided it.
--   step: Its current step.
--   moves_running: Is a running job moved, rather than a waiting one reshaped?
--   from_restart_count: Slurm's restart count of the job when it was planned.
--   cause: Why it was planned.
--   checkpoint_waived: Did it proceed without a confirmed checkpoint?
--   retargeted: Did it get another target, because other jobs took the first?
--   continued_training: Did the job go on training after the checkpoint it confirmed, so that it was not moved?
--   job_failed: Did the job fail in the target, before its first step?
--   taken_over: Did a daemon repeat a command of it that the previous daemon may still give?
--   reason: Why it was planned and how it ended, for people; null where a round decided.
--   time_left_s: What was left of the time limit at the requeue, seconds; null for no limit.
--   way: How it moves the job: by requeue or in_place.
--   generation: Number of the generation that it last asked for; null before the first.
--   refused: What Slurm answered to its target, where it refused it: never or not_now.
--   refused_at: When Slurm refused it; null where it did not.
--   refused_reason: Slurm's own words for that.
--   refused_request: The job's request then, without its size: the refusal ends when it changes.
--   priority: The priority that it gave the job to keep its place; null for none.
--   priority_ended_at: When that priority was taken off; null while it may last.

CREATE TABLE reallocations (
    id INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    round_id INTEGER,
    step VARCHAR(32) NOT NULL,
    moves_running BOOLEAN NOT NULL,
    from_restart_count INTEGER NOT NULL,
    cause VARCHAR(32) NOT NULL,
    checkpoint_waived BOOLEAN DEFAULT 0 NOT NULL,
    retargeted BOOLEAN DEFAULT 0 NOT NULL,
    continued_training BOOLEAN DEFAULT 0 NOT NULL,
    job_failed BOOLEAN DEFAULT 0 NOT NULL,
    taken_over BOOLEAN DEFAULT 0 NOT NULL,
    reason TEXT,
    time_left_s DOUBLE,
    way VARCHAR(32) DEFAULT 'requeue' NOT NULL,
    generation INTEGER,
    refused VARCHAR(32),
    refused_at DATETIME,
    refused_reason TEXT,
    refused_request TEXT,
    priority INTEGER,
    priority_ended_at DATETIME,
    CONSTRAINT pk_reallocations PRIMARY KEY (id),
    CONSTRAINT ck_reallocations_from_restart_count CHECK (from_restart_count >= 0),
    CONSTRAINT ck_reallocations_generation CHECK (generation BETWEEN 1 AND 1000000),
    CONSTRAINT fk_reallocations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    CONSTRAINT fk_reallocations_round_id_rounds FOREIGN KEY(round_id) REFERENCES rounds (id) ON DELETE SET NULL,
    CONSTRAINT ck_reallocations_step CHECK (step IN ('planned', 'checkpoint_requested', 'checkpointed', 'requeued', 'reshaped', 'released', 'running', 'regroup_requested', 'regrouped', 'confirmed', 'rolled_back', 'failed')),
    CONSTRAINT ck_reallocations_moves_running CHECK (moves_running IN (0, 1)),
    CONSTRAINT ck_reallocations_cause CHECK (cause IN ('decision', 'pause', 'drain', 'resume', 'time_limit', 'after_failure', 'failed_start', 'held_by_slurm', 'stray_wings', 'late_command')),
    CONSTRAINT ck_reallocations_checkpoint_waived CHECK (checkpoint_waived IN (0, 1)),
    CONSTRAINT ck_reallocations_retargeted CHECK (retargeted IN (0, 1)),
    CONSTRAINT ck_reallocations_continued_training CHECK (continued_training IN (0, 1)),
    CONSTRAINT ck_reallocations_job_failed CHECK (job_failed IN (0, 1)),
    CONSTRAINT ck_reallocations_taken_over CHECK (taken_over IN (0, 1)),
    CONSTRAINT ck_reallocations_way CHECK (way IN ('requeue', 'in_place')),
    CONSTRAINT ck_reallocations_refused CHECK (refused IN ('never', 'not_now'))
);

CREATE INDEX ix_reallocations_job_id_id ON reallocations (job_id, id);

CREATE INDEX ix_reallocations_round_id ON reallocations (round_id);

CREATE UNIQUE INDEX uq_reallocations_open ON reallocations (job_id) WHERE step NOT IN ('confirmed', 'rolled_back', 'failed');

-- runs: Runs: one row per start of a job that reported.
--   id: This database's id of the run.
--   job_id: The job.
--   run_number: The run's number in its checkpoint directory: 0, 1, ...
--   restart_count: Slurm's restart count during the run.
--   phase: Phase of the run at its last report.
--   first_report_at: When its first report came.
--   last_report_at: When its last report came.
--   last_sequence: Sequence number of its last report.
--   num_steps: Optimizer steps as last reported.
--   first_step_s: Process start to the end of the first optimizer step, seconds; null before.
--   first_step_at: When that step was first reported.
--   restore_s: Part of it spent reading the checkpoint, seconds.
--   gpu_type: Slurm's type of the GPUs it ran on; null if unknown, nameless or of several types.

CREATE TABLE runs (
    id INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    run_number INTEGER NOT NULL,
    restart_count INTEGER NOT NULL,
    phase VARCHAR(32) NOT NULL,
    first_report_at DATETIME NOT NULL,
    last_report_at DATETIME NOT NULL,
    last_sequence INTEGER NOT NULL,
    num_steps INTEGER NOT NULL,
    first_step_s DOUBLE,
    first_step_at DATETIME,
    restore_s DOUBLE,
    gpu_type TEXT,
    CONSTRAINT pk_runs PRIMARY KEY (id),
    CONSTRAINT uq_runs_job_id_run_number UNIQUE (job_id, run_number),
    CONSTRAINT ck_runs_run_number CHECK (run_number BETWEEN 0 AND 1000000),
    CONSTRAINT ck_runs_restart_count CHECK (restart_count BETWEEN 0 AND 1000000),
    CONSTRAINT ck_runs_num_steps CHECK (num_steps BETWEEN 0 AND 1000000000000000),
    CONSTRAINT ck_runs_first_step_s CHECK (first_step_s BETWEEN 1e-06 AND 10000000.0),
    CONSTRAINT ck_runs_restore_s CHECK (restore_s BETWEEN 0.0 AND 10000000.0),
    CONSTRAINT ck_runs_last_sequence CHECK (last_sequence BETWEEN 0 AND 1000000000000),
    CONSTRAINT ck_runs_last_report_at CHECK (last_report_at >= first_report_at),
    CONSTRAINT ck_runs_first_step_at CHECK ((first_step_s IS NULL) = (first_step_at IS NULL)),
    CONSTRAINT fk_runs_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    CONSTRAINT ck_runs_phase CHECK (phase IN ('starting', 'training', 'waiting', 'finished'))
);

CREATE INDEX ix_runs_first_report_at ON runs (first_report_at);

-- allocation_days: Duration of an ended allocation interval on each day.
--   job_id: The job.
--   number: Number of the interval within the job.
--   day: The day, in UTC.
--   allocated_s: Seconds of the interval on this day.

CREATE TABLE allocation_days (
    job_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    day DATE NOT NULL,
    allocated_s DOUBLE NOT NULL,
    CONSTRAINT pk_allocation_days PRIMARY KEY (job_id, number, day),
    CONSTRAINT fk_allocation_days_job_id_number_allocations FOREIGN KEY(job_id, number) REFERENCES allocations (job_id, number) ON DELETE CASCADE,
    CONSTRAINT ck_allocation_days_allocated_s CHECK (allocated_s >= 0)
);

CREATE INDEX ix_allocation_days_day ON allocation_days (day);

-- allocation_nodes: GPUs on each node in an allocation interval.
--   job_id: The job.
--   number: Number of the interval within the job.
--   node_name: The node.
--   num_gpus: GPUs there.

CREATE TABLE allocation_nodes (
    job_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    node_name TEXT NOT NULL,
    num_gpus INTEGER NOT NULL,
    CONSTRAINT pk_allocation_nodes PRIMARY KEY (job_id, number, node_name),
    CONSTRAINT fk_allocation_nodes_job_id_number_allocations FOREIGN KEY(job_id, number) REFERENCES allocations (job_id, number) ON DELETE CASCADE,
    CONSTRAINT ck_allocation_nodes_num_gpus CHECK (num_gpus >= 1)
);

CREATE INDEX ix_allocation_nodes_node_name ON allocation_nodes (node_name);

-- checkpoints: Checkpoints that runs confirmed.
--   run_id: The run.
--   sequence: Sequence number of the report that confirmed it.
--   at: When it was confirmed.
--   reallocation_id: The reallocation whose request it answered; null for none.
--   blocked_s: How long it blocked training, seconds.
--   size_bytes: Size on disk, bytes.

CREATE TABLE checkpoints (
    run_id INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    at DATETIME NOT NULL,
    reallocation_id INTEGER,
    blocked_s DOUBLE NOT NULL,
    size_bytes INTEGER NOT NULL,
    CONSTRAINT pk_checkpoints PRIMARY KEY (run_id, sequence),
    CONSTRAINT fk_checkpoints_reallocation_id_reallocations FOREIGN KEY(reallocation_id) REFERENCES reallocations (id) ON DELETE SET NULL,
    CONSTRAINT ck_checkpoints_sequence CHECK (sequence BETWEEN 0 AND 1000000000000),
    CONSTRAINT ck_checkpoints_blocked_s CHECK (blocked_s BETWEEN 0.0 AND 10000000.0),
    CONSTRAINT ck_checkpoints_size_bytes CHECK (size_bytes BETWEEN 0 AND 1152921504606846976),
    CONSTRAINT fk_checkpoints_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

CREATE INDEX ix_checkpoints_at ON checkpoints (at);

CREATE UNIQUE INDEX uq_checkpoints_reallocation_id ON checkpoints (reallocation_id);

-- decision_nodes: GPUs of a decision on each node.
--   round_id: The round.
--   job_id: The job.
--   node_name: The node.
--   num_gpus: GPUs there.

CREATE TABLE decision_nodes (
    round_id INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    node_name TEXT NOT NULL,
    num_gpus INTEGER NOT NULL,
    CONSTRAINT pk_decision_nodes PRIMARY KEY (round_id, job_id, node_name),
    CONSTRAINT fk_decision_nodes_round_id_job_id_decisions FOREIGN KEY(round_id, job_id) REFERENCES decisions (round_id, job_id) ON DELETE CASCADE,
    CONSTRAINT ck_decision_nodes_num_gpus CHECK (num_gpus >= 1)
);

-- generation_members: The processes of a generation, by rank.
--   job_id: The job.
--   number: Number of the generation within the job.
--   rank: Rank of the process in it: 0, 1, ...
--   member_id: Id of the process, the same in all generations that it belongs to.
--   node_name: The node that it runs on.
--   ready: Does it train already, or wait to join?

CREATE TABLE generation_members (
    job_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    member_id TEXT NOT NULL,
    node_name TEXT NOT NULL,
    ready BOOLEAN NOT NULL,
    CONSTRAINT pk_generation_members PRIMARY KEY (job_id, number, rank),
    CONSTRAINT fk_generation_members_job_id_number_generations FOREIGN KEY(job_id, number) REFERENCES generations (job_id, number) ON DELETE CASCADE,
    CONSTRAINT uq_generation_members_job_id_number_member_id UNIQUE (job_id, number, member_id),
    CONSTRAINT ck_generation_members_rank CHECK (rank BETWEEN 0 AND 9999),
    CONSTRAINT ck_generation_members_member_id CHECK (length(member_id) BETWEEN 1 AND 64),
    CONSTRAINT ck_generation_members_ready CHECK (ready IN (0, 1))
);

-- goodput_samples: Measurements of runs: one row per report after the first step.
--   run_id: The run.
--   sequence: Sequence number of the report within the run.
--   at: When it was reported.
--   global_batch_size: M, examples per step.
--   atomic_batch_size: m, examples of a micro-batch.
--   accumulation_steps: s, accumulation steps per step.
--   throughput: Measured, examples per second.
--   predicted_throughput: Predicted by the current model, examples per second.
--   step_time_s: Mean time of a step, seconds.
--   efficiency: Statistical efficiency, 0 to 1; goodput is throughput times efficiency.
--   progress: Progress, in units of M0.
--   epoch: The current epoch, from 0.
--   total_epochs: Declared number of epochs; null if none.
--   num_examples: Examples that the run has processed so far, by its own count; null where it reports none.

CREATE TABLE goodput_samples (
    run_id INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    at DATETIME NOT NULL,
    global_batch_size INTEGER,
    atomic_batch_size INTEGER,
    accumulation_steps INTEGER,
    throughput DOUBLE,
    predicted_throughput DOUBLE,
    step_time_s DOUBLE,
    efficiency DOUBLE,
    progress DOUBLE NOT NULL,
    epoch INTEGER NOT NULL,
    total_epochs INTEGER,
    num_examples INTEGER,
    CONSTRAINT pk_goodput_samples PRIMARY KEY (run_id, sequence),
    CONSTRAINT ck_goodput_samples_sequence CHECK (sequence BETWEEN 0 AND 1000000000000),
    CONSTRAINT ck_goodput_samples_global_batch_size CHECK (global_batch_size BETWEEN 1 AND 1000000000),
    CONSTRAINT ck_goodput_samples_atomic_batch_size CHECK (atomic_batch_size BETWEEN 1 AND 1000000000),
    CONSTRAINT ck_goodput_samples_accumulation_steps CHECK (accumulation_steps BETWEEN 0 AND 1000000000),
    CONSTRAINT ck_goodput_samples_throughput CHECK (throughput BETWEEN 1e-07 AND 1000000000000.0),
    CONSTRAINT ck_goodput_samples_predicted_throughput CHECK (predicted_throughput BETWEEN 1e-07 AND 1000000000000.0),
    CONSTRAINT ck_goodput_samples_step_time_s CHECK (step_time_s BETWEEN 1e-06 AND 10000000.0),
    CONSTRAINT ck_goodput_samples_efficiency CHECK (efficiency BETWEEN 1e-09 AND 1.0),
    CONSTRAINT ck_goodput_samples_progress CHECK (progress BETWEEN 0.0 AND 1e+18),
    CONSTRAINT ck_goodput_samples_epoch CHECK (epoch BETWEEN 0 AND 1000000000),
    CONSTRAINT ck_goodput_samples_total_epochs CHECK (total_epochs BETWEEN 0 AND 1000000000),
    CONSTRAINT ck_goodput_samples_num_examples CHECK (num_examples BETWEEN 0 AND 1000000000000000),
    CONSTRAINT ck_goodput_samples_batch CHECK ((global_batch_size IS NULL) = (atomic_batch_size IS NULL) AND (global_batch_size IS NULL) = (accumulation_steps IS NULL)),
    CONSTRAINT fk_goodput_samples_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

CREATE INDEX ix_goodput_samples_at ON goodput_samples (at);

-- reallocation_nodes: GPUs per node before (source) and after (target) a move, and what Slurm refused.
--   reallocation_id: The reallocation.
--   side: source, target or refused.
--   node_name: The node.
--   num_gpus: GPUs there.

CREATE TABLE reallocation_nodes (
    reallocation_id INTEGER NOT NULL,
    side VARCHAR(32) NOT NULL,
    node_name TEXT NOT NULL,
    num_gpus INTEGER NOT NULL,
    CONSTRAINT pk_reallocation_nodes PRIMARY KEY (reallocation_id, side, node_name),
    CONSTRAINT ck_reallocation_nodes_num_gpus CHECK (num_gpus >= 1),
    CONSTRAINT fk_reallocation_nodes_reallocation_id_reallocations FOREIGN KEY(reallocation_id) REFERENCES reallocations (id) ON DELETE CASCADE,
    CONSTRAINT ck_reallocation_nodes_side CHECK (side IN ('source', 'target', 'refused'))
);

-- reallocation_steps: When a reallocation entered each of its steps.
--   reallocation_id: The reallocation.
--   step: The step.
--   at: When it was journaled.

CREATE TABLE reallocation_steps (
    reallocation_id INTEGER NOT NULL,
    step VARCHAR(32) NOT NULL,
    at DATETIME NOT NULL,
    CONSTRAINT pk_reallocation_steps PRIMARY KEY (reallocation_id, step),
    CONSTRAINT fk_reallocation_steps_reallocation_id_reallocations FOREIGN KEY(reallocation_id) REFERENCES reallocations (id) ON DELETE CASCADE,
    CONSTRAINT ck_reallocation_steps_step CHECK (step IN ('planned', 'checkpoint_requested', 'checkpointed', 'requeued', 'reshaped', 'released', 'running', 'regroup_requested', 'regrouped', 'confirmed', 'rolled_back', 'failed'))
);

CREATE INDEX ix_reallocation_steps_at ON reallocation_steps (at);

CREATE INDEX ix_reallocation_steps_step_at ON reallocation_steps (step, at);

-- run_days: Sums over the goodput samples of a run on a day, by the time they cover.
--   run_id: The run.
--   day: The day, in UTC.
--   num_samples: Samples reported on this day.
--   progress: Largest progress reported, in units of M0.
--   trained_s: Time covered by samples with a throughput, seconds.
--   trained_gpu_s: The same times the run's GPUs.
--   examples: Throughput times time: examples processed.
--   measured_s: Time covered by samples with throughput and efficiency, seconds.
--   useful_examples: Goodput times time: useful examples.
--   efficiency_s: Efficiency times time, over measured_s.
--   useful_gpu_s: Efficiency times time times GPUs, over measured_s.
--   num_compared: Samples with a measured and a predicted throughput.
--   compared_s: Time that they cover, seconds.
--   compared_examples: Their measured throughput times time.
--   predicted_examples: Their predicted throughput times time.
--   error_sum: Sum over them of predicted/measured - 1, each at most a million.
--   abs_error_sum: The same without signs.
--   counted_examples: Examples that the run counted; throughput times time where it reports no count.

CREATE TABLE run_days (
    run_id INTEGER NOT NULL,
    day DATE NOT NULL,
    num_samples INTEGER NOT NULL,
    progress DOUBLE NOT NULL,
    trained_s DOUBLE NOT NULL,
    trained_gpu_s DOUBLE NOT NULL,
    examples DOUBLE NOT NULL,
    measured_s DOUBLE NOT NULL,
    useful_examples DOUBLE NOT NULL,
    efficiency_s DOUBLE NOT NULL,
    useful_gpu_s DOUBLE NOT NULL,
    num_compared INTEGER NOT NULL,
    compared_s DOUBLE NOT NULL,
    compared_examples DOUBLE NOT NULL,
    predicted_examples DOUBLE NOT NULL,
    error_sum DOUBLE NOT NULL,
    abs_error_sum DOUBLE NOT NULL,
    counted_examples DOUBLE DEFAULT 0 NOT NULL,
    CONSTRAINT pk_run_days PRIMARY KEY (run_id, day),
    CONSTRAINT ck_run_days_counts CHECK (num_samples >= 0 AND num_compared >= 0),
    CONSTRAINT ck_run_days_times CHECK (trained_s >= 0 AND measured_s >= 0 AND compared_s >= 0),
    CONSTRAINT fk_run_days_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

CREATE INDEX ix_run_days_day ON run_days (day);

-- run_nodes: GPUs that a run uses on each of its nodes, by node rank.
--   run_id: The run.
--   node_rank: Rank of the node: 0, 1, ...
--   num_gpus: GPUs used there.

CREATE TABLE run_nodes (
    run_id INTEGER NOT NULL,
    node_rank INTEGER NOT NULL,
    num_gpus INTEGER NOT NULL,
    CONSTRAINT pk_run_nodes PRIMARY KEY (run_id, node_rank),
    CONSTRAINT ck_run_nodes_node_rank CHECK (node_rank BETWEEN 0 AND 9999),
    CONSTRAINT ck_run_nodes_num_gpus CHECK (num_gpus BETWEEN 1 AND 1024),
    CONSTRAINT fk_run_nodes_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

-- run_warnings: Warnings of runs, by name; `pollux explain` explains each.
--   run_id: The run.
--   warning: Name of the warning.
--   first_seen_at: When a report of the run first had it.

CREATE TABLE run_warnings (
    run_id INTEGER NOT NULL,
    warning TEXT NOT NULL,
    first_seen_at DATETIME NOT NULL,
    CONSTRAINT pk_run_warnings PRIMARY KEY (run_id, warning),
    CONSTRAINT ck_run_warnings_warning CHECK (length(warning) BETWEEN 1 AND 64),
    CONSTRAINT fk_run_warnings_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

CREATE TRIGGER goodput_samples_sum AFTER INSERT ON goodput_samples FOR EACH ROW BEGIN INSERT INTO run_days (run_id, day, num_samples, progress, trained_s, trained_gpu_s, examples, measured_s, useful_examples, efficiency_s, useful_gpu_s, num_compared, compared_s, compared_examples, predicted_examples, error_sum, abs_error_sum, counted_examples) SELECT p.run_id, p.day, SUM(p.n), MAX(p.progress), SUM(CASE WHEN p.throughput IS NULL THEN 0.0 ELSE p.s END), SUM(CASE WHEN p.throughput IS NULL THEN 0.0 ELSE p.s * p.gpus END), SUM(COALESCE(p.throughput * p.s, 0.0)), SUM(CASE WHEN p.goodput IS NULL THEN 0.0 ELSE p.s END), SUM(COALESCE(p.goodput * p.s, 0.0)), SUM(CASE WHEN p.goodput IS NULL THEN 0.0 ELSE p.efficiency * p.s END), SUM(CASE WHEN p.goodput IS NULL THEN 0.0 ELSE p.efficiency * p.s * p.gpus END), SUM(CASE WHEN p.error IS NULL THEN 0 ELSE p.n END), SUM(CASE WHEN p.error IS NULL THEN 0.0 ELSE p.s END), SUM(CASE WHEN p.error IS NULL THEN 0.0 ELSE p.throughput * p.s END), SUM(CASE WHEN p.error IS NULL THEN 0.0 ELSE p.predicted * p.s END), SUM(COALESCE(p.error, 0.0) * p.n), SUM(ABS(COALESCE(p.error, 0.0)) * p.n), SUM(COALESCE(p.counted * p.s / p.covered_s, p.throughput * p.s, 0.0)) FROM ( WITH bounded AS ( SELECT s.run_id, s.at, CASE WHEN s.num_examples < s.previous_examples THEN 0 ELSE s.num_examples - COALESCE(s.previous_examples, 0) END AS counted, s.progress, CASE WHEN s.throughput < 1e-9 THEN 1e-9 ELSE s.throughput END AS throughput, CASE WHEN s.efficiency < 1e-9 THEN 1e-9 ELSE s.efficiency END AS efficiency, CASE WHEN s.predicted_throughput < 1e-9 THEN 1e-9 ELSE s.predicted_throughput END AS predicted, COALESCE((ROUND((ROUND((julianday(substr(s.at, 1, 19)) - julianday(substr(s.previous_at, 1, 19))) * 86400.0) * 1000000 + substr(s.at, 21, 6) - substr(s.previous_at, 21, 6)) / 1000.0) / 1000.0), (ROUND((ROUND((julianday(substr(s.at, 1, 19)) - julianday(substr(r.first_report_at, 1, 19))) * 86400.0) * 1000000 + substr(s.at, 21, 6) - substr(r.first_report_at, 21, 6)) / 1000.0) / 1000.0) - COALESCE(r.first_step_s, 0.0)) AS elapsed_s, CASE WHEN s.step_time_s >= 0.001 THEN s.step_time_s ELSE 0.001 END AS step_s, (ROUND((ROUND((julianday(substr(s.at, 1, 19)) - julianday(substr((date(s.at) || ' 00:00:00.000000'), 1, 19))) * 86400.0) * 1000000 + substr(s.at, 21, 6) - substr((date(s.at) || ' 00:00:00.000000'), 21, 6)) / 1000.0) / 1000.0) AS today_s, (SELECT SUM(n.num_gpus) FROM run_nodes AS n WHERE n.run_id = s.run_id) AS reported_gpus, (SELECT SUM(n.num_gpus) FROM allocations AS a JOIN allocation_nodes AS n ON n.job_id = a.job_id AND n.number = a.number WHERE a.job_id = r.job_id AND a.started_at <= s.at AND (a.ended_at IS NULL OR a.ended_at > s.at)) AS allocated_gpus FROM (SELECT NEW.run_id AS run_id, NEW.at AS at, NEW.progress AS progress, NEW.throughput AS throughput, NEW.efficiency AS efficiency, NEW.predicted_throughput AS predicted_throughput, NEW.step_time_s AS step_time_s, NEW.num_examples AS num_examples, (SELECT b.num_examples FROM goodput_samples AS b WHERE b.run_id = NEW.run_id AND b.sequence < NEW.sequence ORDER BY b.sequence DESC LIMIT 1) AS previous_examples, (SELECT b.at FROM goodput_samples AS b WHERE b.run_id = NEW.run_id AND b.sequence < NEW.sequence ORDER BY b.sequence DESC LIMIT 1) AS previous_at) AS s JOIN runs AS r ON r.id = s.run_id ), covered AS ( SELECT c.*, c.throughput * c.efficiency AS goodput, COALESCE(MIN(c.reported_gpus, c.allocated_gpus), c.reported_gpus, 0) AS gpus, CASE WHEN c.predicted > c.throughput * 1e6 THEN 1e6 ELSE c.predicted / c.throughput - 1.0 END AS error, MIN(3600.0, MAX(c.elapsed_s, c.step_s)) AS covered_s FROM bounded AS c ) SELECT c.run_id, date(c.at) AS day, 1 AS n, MIN(c.covered_s, c.today_s) AS s, c.progress, c.throughput, c.efficiency, c.predicted, c.goodput, c.error, c.gpus, c.counted, c.covered_s FROM covered AS c UNION ALL SELECT c.run_id, date(c.at, '-1 day'), 0, c.covered_s - c.today_s, c.progress, c.throughput, c.efficiency, c.predicted, c.goodput, c.error, c.gpus, c.counted, c.covered_s FROM covered AS c WHERE c.covered_s > c.today_s ) AS p WHERE true GROUP BY p.run_id, p.day ON CONFLICT (run_id, day) DO UPDATE SET num_samples = run_days.num_samples + excluded.num_samples, progress = MAX(run_days.progress, excluded.progress), trained_s = run_days.trained_s + excluded.trained_s, trained_gpu_s = run_days.trained_gpu_s + excluded.trained_gpu_s, examples = run_days.examples + excluded.examples, measured_s = run_days.measured_s + excluded.measured_s, useful_examples = run_days.useful_examples + excluded.useful_examples, efficiency_s = run_days.efficiency_s + excluded.efficiency_s, useful_gpu_s = run_days.useful_gpu_s + excluded.useful_gpu_s, num_compared = run_days.num_compared + excluded.num_compared, compared_s = run_days.compared_s + excluded.compared_s, compared_examples = run_days.compared_examples + excluded.compared_examples, predicted_examples = run_days.predicted_examples + excluded.predicted_examples, error_sum = run_days.error_sum + excluded.error_sum, abs_error_sum = run_days.abs_error_sum + excluded.abs_error_sum, counted_examples = run_days.counted_examples + excluded.counted_examples; END;

CREATE TRIGGER allocations_begun AFTER INSERT ON allocations FOR EACH ROW BEGIN INSERT INTO allocation_days (job_id, number, day, allocated_s) SELECT d.job_id, d.number, d.day, (ROUND((ROUND((julianday(substr(MIN(d.ended_at, (date(d.day, '+1 day') || ' 00:00:00.000000')), 1, 19)) - julianday(substr(MAX(d.started_at, (d.day || ' 00:00:00.000000')), 1, 19))) * 86400.0) * 1000000 + substr(MIN(d.ended_at, (date(d.day, '+1 day') || ' 00:00:00.000000')), 21, 6) - substr(MAX(d.started_at, (d.day || ' 00:00:00.000000')), 21, 6)) / 1000.0) / 1000.0) FROM ( WITH RECURSIVE days AS ( SELECT a.job_id, a.number, a.started_at, a.ended_at, date(a.started_at) AS day FROM (SELECT NEW.job_id AS job_id, NEW.number AS number, NEW.started_at AS started_at, NEW.ended_at AS ended_at) AS a WHERE a.ended_at IS NOT NULL UNION ALL SELECT a.job_id, a.number, a.started_at, a.ended_at, date(a.day, '+1 day') FROM days AS a WHERE (date(a.day, '+1 day') || ' 00:00:00.000000') < a.ended_at ) SELECT * FROM days ) AS d WHERE true ON CONFLICT (job_id, number, day) DO UPDATE SET allocated_s = excluded.allocated_s; END;

CREATE TRIGGER allocations_ended AFTER UPDATE OF ended_at ON allocations FOR EACH ROW BEGIN INSERT INTO allocation_days (job_id, number, day, allocated_s) SELECT d.job_id, d.number, d.day, (ROUND((ROUND((julianday(substr(MIN(d.ended_at, (date(d.day, '+1 day') || ' 00:00:00.000000')), 1, 19)) - julianday(substr(MAX(d.started_at, (d.day || ' 00:00:00.000000')), 1, 19))) * 86400.0) * 1000000 + substr(MIN(d.ended_at, (date(d.day, '+1 day') || ' 00:00:00.000000')), 21, 6) - substr(MAX(d.started_at, (d.day || ' 00:00:00.000000')), 21, 6)) / 1000.0) / 1000.0) FROM ( WITH RECURSIVE days AS ( SELECT a.job_id, a.number, a.started_at, a.ended_at, date(a.started_at) AS day FROM (SELECT NEW.job_id AS job_id, NEW.number AS number, NEW.started_at AS started_at, NEW.ended_at AS ended_at) AS a WHERE a.ended_at IS NOT NULL UNION ALL SELECT a.job_id, a.number, a.started_at, a.ended_at, date(a.day, '+1 day') FROM days AS a WHERE (date(a.day, '+1 day') || ' 00:00:00.000000') < a.ended_at ) SELECT * FROM days ) AS d WHERE true ON CONFLICT (job_id, number, day) DO UPDATE SET allocated_s = excluded.allocated_s; END;

-- One row per reallocation: its cause, source and target, how it ended, the time of each step, its cost in
-- seconds, and the goodput before and after. reason is a text for people; group by cause.
-- checkpoint_s is how long the checkpoint blocked training, hold_s the time from its confirmation to the release,
-- slurm_s from requeue to start (it overlaps hold_s), launch_s from start to the first step, total_s the whole
-- restart delay: these are of moves by requeue. Of moves in place, standstill_s is how long training stood still,
-- and warm_up_s how long the gained GPUs, if any, were idle before. goodput_before and goodput_after are means over
-- the whole run that ended and the whole next run; in place, that is what the job was before and after the regroup.
CREATE VIEW reallocation_history AS
SELECT x.reallocation_id,
       x.job_id,
       x.slurm_job_id,
       x.user_name,
       x.account,
       x.round_id,
       x.cause,
       x.way,
       x.step,
       x.checkpoint_waived,
       x.retargeted,
       x.continued_training,
       x.job_failed,
       x.taken_over,
       x.reason,
       x.moves_running,
       x.planned_at,
       x.requested_at,
       x.checkpointed_at,
       x.requeued_at,
       x.released_at,
       x.running_at,
       x.first_step_at,
       x.regroup_requested_at,
       x.regrouped_at,
       x.confirmed_at,
       (SELECT MAX(s.at) FROM reallocation_steps AS s WHERE s.reallocation_id = x.reallocation_id) AS last_step_at,
       (SELECT COALESCE(SUM(CASE WHEN n.side = 'source' THEN n.num_gpus END), 0) FROM reallocation_nodes AS n WHERE n.reallocation_id = x.reallocation_id) AS source_gpus,
       (SELECT COUNT(CASE WHEN n.side = 'source' THEN 1 END) FROM reallocation_nodes AS n WHERE n.reallocation_id = x.reallocation_id) AS source_nodes,
       (SELECT COALESCE(SUM(CASE WHEN n.side = 'target' THEN n.num_gpus END), 0) FROM reallocation_nodes AS n WHERE n.reallocation_id = x.reallocation_id) AS target_gpus,
       (SELECT COUNT(CASE WHEN n.side = 'target' THEN 1 END) FROM reallocation_nodes AS n WHERE n.reallocation_id = x.reallocation_id) AS target_nodes,
       x.checkpoint_s,
       MAX(0.0, (ROUND((ROUND((julianday(substr(x.released_at, 1, 19)) - julianday(substr(x.checkpointed_at, 1, 19))) * 86400.0) * 1000000 + substr(x.released_at, 21, 6) - substr(x.checkpointed_at, 21, 6)) / 1000.0) / 1000.0)) AS hold_s,
       MAX(0.0, (ROUND((ROUND((julianday(substr(x.running_at, 1, 19)) - julianday(substr(x.requeued_at, 1, 19))) * 86400.0) * 1000000 + substr(x.running_at, 21, 6) - substr(x.requeued_at, 21, 6)) / 1000.0) / 1000.0)) AS slurm_s,
       MAX(0.0, (ROUND((ROUND((julianday(substr(COALESCE(MIN(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at), 1, 19)) - julianday(substr(x.running_at, 1, 19))) * 86400.0) * 1000000 + substr(COALESCE(MIN(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at), 21, 6) - substr(x.running_at, 21, 6)) / 1000.0) / 1000.0)) AS launch_s,
       CASE WHEN x.requeued_at IS NULL THEN NULL
            WHEN x.checkpoint_s IS NULL THEN MAX(0.0, (ROUND((ROUND((julianday(substr(COALESCE(MIN(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at), 1, 19)) - julianday(substr(x.requeued_at, 1, 19))) * 86400.0) * 1000000 + substr(COALESCE(MIN(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at), 21, 6) - substr(x.requeued_at, 21, 6)) / 1000.0) / 1000.0))
            ELSE MAX(0.0, (ROUND((ROUND((julianday(substr(COALESCE(MIN(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at), 1, 19)) - julianday(substr(x.checkpointed_at, 1, 19))) * 86400.0) * 1000000 + substr(COALESCE(MIN(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at), 21, 6) - substr(x.checkpointed_at, 21, 6)) / 1000.0) / 1000.0) + x.checkpoint_s)
       END AS total_s,
       x.standstill_s,
       CASE WHEN EXISTS (
                SELECT 1
                FROM reallocation_nodes AS n
                LEFT JOIN reallocation_nodes AS o
                       ON o.reallocation_id = n.reallocation_id AND o.side = 'source' AND o.node_name = n.node_name
                WHERE n.reallocation_id = x.reallocation_id AND n.side = 'target' AND n.num_gpus > COALESCE(o.num_gpus, 0)
            ) THEN MAX(0.0, (ROUND((ROUND((julianday(substr(x.regrouped_at, 1, 19)) - julianday(substr(x.regroup_requested_at, 1, 19))) * 86400.0) * 1000000 + substr(x.regrouped_at, 21, 6) - substr(x.regroup_requested_at, 21, 6)) / 1000.0) / 1000.0) - x.standstill_s)
       END AS warm_up_s,
       (SELECT SUM(d.useful_examples) / SUM(d.measured_s) FROM run_days AS d WHERE d.run_id = x.run_before AND d.measured_s > 0.0) AS goodput_before,
       (SELECT SUM(d.useful_examples) / SUM(d.measured_s) FROM run_days AS d WHERE d.run_id = x.run_after AND d.measured_s > 0.0) AS goodput_after
FROM (
    SELECT r.id AS reallocation_id,
           r.job_id,
           j.slurm_job_id,
           u.user_name,
           j.account,
           r.round_id,
           r.cause,
           r.way,
           r.step,
           r.checkpoint_waived,
           r.retargeted,
           r.continued_training,
           r.job_failed,
           r.taken_over,
           r.reason,
           r.moves_running,
           planned.at AS planned_at,
           requested.at AS requested_at,
           checkpointed.at AS checkpointed_at,
           requeued.at AS requeued_at,
           released.at AS released_at,
           running.at AS running_at,
           regroup_requested.at AS regroup_requested_at,
           regrouped.at AS regrouped_at,
           confirmed.at AS confirmed_at,
           g.standstill_s,
           c.blocked_s AS checkpoint_s,
           (SELECT n.first_step_at FROM runs AS n WHERE n.job_id = r.job_id AND n.restart_count > r.from_restart_count AND r.way = 'requeue' AND n.first_step_at IS NOT NULL ORDER BY n.run_number LIMIT 1) AS first_step_at,
           (SELECT n.id FROM runs AS n WHERE n.job_id = r.job_id AND n.restart_count <= r.from_restart_count AND r.moves_running AND (r.way = 'requeue' OR n.first_report_at <= regroup_requested.at) ORDER BY n.run_number DESC LIMIT 1) AS run_before,
           (SELECT n.id FROM runs AS n WHERE n.job_id = r.job_id AND n.restart_count >= r.from_restart_count AND r.step = 'confirmed' AND CASE WHEN r.way = 'requeue' THEN n.restart_count > r.from_restart_count ELSE n.first_report_at > regroup_requested.at END ORDER BY n.run_number LIMIT 1) AS run_after
    FROM reallocations AS r
    JOIN jobs AS j ON j.id = r.job_id
    JOIN users AS u ON u.user_id = j.user_id
    JOIN reallocation_steps AS planned ON planned.reallocation_id = r.id AND planned.step = 'planned'
    LEFT JOIN reallocation_steps AS requested ON requested.reallocation_id = r.id AND requested.step = 'checkpoint_requested'
    LEFT JOIN reallocation_steps AS checkpointed ON checkpointed.reallocation_id = r.id AND checkpointed.step = 'checkpointed'
    LEFT JOIN reallocation_steps AS requeued ON requeued.reallocation_id = r.id AND requeued.step = 'requeued'
    LEFT JOIN reallocation_steps AS released ON released.reallocation_id = r.id AND released.step = 'released'
    LEFT JOIN reallocation_steps AS running ON running.reallocation_id = r.id AND running.step = 'running'
    LEFT JOIN reallocation_steps AS regroup_requested ON regroup_requested.reallocation_id = r.id AND regroup_requested.step = 'regroup_requested'
    LEFT JOIN reallocation_steps AS regrouped ON regrouped.reallocation_id = r.id AND regrouped.step = 'regrouped'
    LEFT JOIN reallocation_steps AS confirmed ON confirmed.reallocation_id = r.id AND confirmed.step = 'confirmed'
    LEFT JOIN generations AS g ON g.job_id = r.job_id AND g.number = r.generation
    LEFT JOIN checkpoints AS c ON c.reallocation_id = r.id
      
) AS x;

-- One row per job: owner, GPU hours, goodput, and the cost of its moves.
-- gpu_hours counts an open allocation interval up to now. Means of throughput, efficiency and goodput are over the
-- time that its reports cover; they and the speedups are null where nothing was measured.
-- speedup_one_gpu is the measured goodput over the one that rounds predicted for it on one GPU,
-- speedup_fair_share over the one that they predicted at its fair share of the cluster.
-- examples are those that its runs counted. restarts are its confirmed moves by requeue, lost_s the sum of their
-- restart delays; regroups are those in place, standstill_s the sum of their standstills.
-- requeues is Slurm's restart count in the last run.
-- gpu_hours are Slurm's own (ElapsedRaw times GPUs), to a second per run. estimated is true where a part of them,
-- or the end, is an estimate, because neither Slurm nor its accounting database has it.
CREATE VIEW job_goodput AS
SELECT x.job_id,
       x.slurm_job_id,
       x.name,
       x.user_name,
       x.account,
       x.partition,
       x.state,
       x.submitted_at,
       x.started_at,
       x.finished_at,
       x.waited_s,
       x.submit_to_finish_s,
       x.gpu_hours,
       x.trained_gpu_hours,
       MIN(1.0, COALESCE((x.trained_gpu_hours / NULLIF(MAX(x.gpu_hours, 0.0), 0.0)), 0.0)) AS progress_share,
       x.num_samples,
       x.throughput,
       x.efficiency,
       x.goodput,
       x.examples,
       x.useful_examples,
       x.progress,
       (x.goodput / NULLIF(MAX(x.one_gpu_goodput, 0.0), 0.0)) AS speedup_one_gpu,
       (x.goodput / NULLIF(MAX(x.fair_share_goodput, 0.0), 0.0)) AS speedup_fair_share,
       x.runs,
       x.restarts,
       x.lost_s,
       x.regroups,
       x.standstill_s,
       x.requeues,
       x.estimated
FROM (
    SELECT j.id AS job_id,
           j.slurm_job_id,
           j.name,
           u.user_name,
           j.account,
           j.partition,
           j.state,
           j.submitted_at,
           j.started_at,
           j.finished_at,
           MAX(0.0, (ROUND((ROUND((julianday(substr(COALESCE(j.started_at, j.finished_at, CURRENT_TIMESTAMP), 1, 19)) - julianday(substr(j.submitted_at, 1, 19))) * 86400.0) * 1000000 + substr(COALESCE(j.started_at, j.finished_at, CURRENT_TIMESTAMP), 21, 6) - substr(j.submitted_at, 21, 6)) / 1000.0) / 1000.0)) AS waited_s,
           (ROUND((ROUND((julianday(substr(j.finished_at, 1, 19)) - julianday(substr(j.submitted_at, 1, 19))) * 86400.0) * 1000000 + substr(j.finished_at, 21, 6) - substr(j.submitted_at, 21, 6)) / 1000.0) / 1000.0) AS submit_to_finish_s,
           COALESCE((SELECT SUM(MAX(0.0, (ROUND((ROUND((julianday(substr(COALESCE(a.ended_at, CURRENT_TIMESTAMP), 1, 19)) - julianday(substr(a.started_at, 1, 19))) * 86400.0) * 1000000 + substr(COALESCE(a.ended_at, CURRENT_TIMESTAMP), 21, 6) - substr(a.started_at, 21, 6)) / 1000.0) / 1000.0)) * n.num_gpus) / 3600.0 FROM allocations AS a JOIN allocation_nodes AS n ON n.job_id = a.job_id AND n.number = a.number WHERE a.job_id = j.id), 0.0) AS gpu_hours,
           COALESCE((SELECT SUM(d.trained_gpu_s) / 3600.0 FROM runs AS r JOIN run_days AS d ON d.run_id = r.id WHERE r.job_id = j.id), 0.0) AS trained_gpu_hours,
           COALESCE((SELECT CAST(TOTAL(d.num_samples) AS BIGINT) FROM runs AS r JOIN run_days AS d ON d.run_id = r.id WHERE r.job_id = j.id), 0) AS num_samples,
           (SELECT (SUM(d.examples) / NULLIF(MAX(SUM(d.trained_s), 0.0), 0.0)) FROM runs AS r JOIN run_days AS d ON d.run_id = r.id WHERE r.job_id = j.id) AS throughput,
           (SELECT (SUM(d.efficiency_s) / NULLIF(MAX(SUM(d.measured_s), 0.0), 0.0)) FROM runs AS r JOIN run_days AS d ON d.run_id = r.id WHERE r.job_id = j.id) AS efficiency,
           (SELECT (SUM(d.useful_examples) / NULLIF(MAX(SUM(d.measured_s), 0.0), 0.0)) FROM runs AS r JOIN run_days AS d ON d.run_id = r.id WHERE r.job_id = j.id) AS goodput,
           COALESCE((SELECT SUM(d.counted_examples) FROM runs AS r JOIN run_days AS d ON d.run_id = r.id WHERE r.job_id = j.id), 0.0) AS examples,
           COALESCE((SELECT SUM(d.useful_examples) FROM runs AS r JOIN run_days AS d ON d.run_id = r.id WHERE r.job_id = j.id), 0.0) AS useful_examples,
           COALESCE((SELECT MAX(d.progress) FROM runs AS r JOIN run_days AS d ON d.run_id = r.id WHERE r.job_id = j.id), 0.0) AS progress,
           (SELECT (SUM(d.one_gpu_goodput_sum) / NULLIF(MAX(TOTAL(d.num_one_gpu), 0.0), 0.0)) FROM job_days AS d WHERE d.job_id = j.id) AS one_gpu_goodput,
           (SELECT (SUM(d.fair_share_goodput_sum) / NULLIF(MAX(TOTAL(d.num_compared), 0.0), 0.0)) FROM job_days AS d WHERE d.job_id = j.id) AS fair_share_goodput,
           (SELECT COUNT(*) FROM runs AS r WHERE r.job_id = j.id) AS runs,
           (SELECT COUNT(*) FROM (
    SELECT c.blocked_s AS checkpoint_s,
           checkpointed.at AS checkpointed_at,
           requeued.at AS requeued_at,
           confirmed.at AS confirmed_at,
           (SELECT n.first_step_at
            FROM runs AS n
            WHERE n.job_id = r.job_id AND n.restart_count > r.from_restart_count AND n.first_step_at IS NOT NULL
            ORDER BY n.run_number
            LIMIT 1) AS first_step_at
    FROM reallocations AS r
    LEFT JOIN reallocation_steps AS checkpointed ON checkpointed.reallocation_id = r.id AND checkpointed.step = 'checkpointed'
    LEFT JOIN reallocation_steps AS requeued ON requeued.reallocation_id = r.id AND requeued.step = 'requeued'
    LEFT JOIN reallocation_steps AS confirmed ON confirmed.reallocation_id = r.id AND confirmed.step = 'confirmed'
    LEFT JOIN checkpoints AS c ON c.reallocation_id = r.id
    WHERE r.job_id = j.id AND r.step = 'confirmed' AND r.moves_running AND r.way = 'requeue'
) AS x) AS restarts,
           COALESCE((SELECT SUM(CASE WHEN x.requeued_at IS NULL THEN NULL
            WHEN x.checkpoint_s IS NULL THEN MAX(0.0, (ROUND((ROUND((julianday(substr(COALESCE(MIN(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at), 1, 19)) - julianday(substr(x.requeued_at, 1, 19))) * 86400.0) * 1000000 + substr(COALESCE(MIN(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at), 21, 6) - substr(x.requeued_at, 21, 6)) / 1000.0) / 1000.0))
            ELSE MAX(0.0, (ROUND((ROUND((julianday(substr(COALESCE(MIN(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at), 1, 19)) - julianday(substr(x.checkpointed_at, 1, 19))) * 86400.0) * 1000000 + substr(COALESCE(MIN(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at), 21, 6) - substr(x.checkpointed_at, 21, 6)) / 1000.0) / 1000.0) + x.checkpoint_s)
       END) FROM (
    SELECT c.blocked_s AS checkpoint_s,
           checkpointed.at AS checkpointed_at,
           requeued.at AS requeued_at,
           confirmed.at AS confirmed_at,
           (SELECT n.first_step_at
            FROM runs AS n
            WHERE n.job_id = r.job_id AND n.restart_count > r.from_restart_count AND n.first_step_at IS NOT NULL
            ORDER BY n.run_number
            LIMIT 1) AS first_step_at
    FROM reallocations AS r
    LEFT JOIN reallocation_steps AS checkpointed ON checkpointed.reallocation_id = r.id AND checkpointed.step = 'checkpointed'
    LEFT JOIN reallocation_steps AS requeued ON requeued.reallocation_id = r.id AND requeued.step = 'requeued'
    LEFT JOIN reallocation_steps AS confirmed ON confirmed.reallocation_id = r.id AND confirmed.step = 'confirmed'
    LEFT JOIN checkpoints AS c ON c.reallocation_id = r.id
    WHERE r.job_id = j.id AND r.step = 'confirmed' AND r.moves_running AND r.way = 'requeue'
) AS x), 0.0) AS lost_s,
           (SELECT COUNT(*) FROM reallocations AS r LEFT JOIN generations AS g ON g.job_id = r.job_id AND g.number = r.generation WHERE r.job_id = j.id AND r.step = 'confirmed' AND r.way = 'in_place') AS regroups,
           COALESCE((SELECT SUM(g.standstill_s) FROM reallocations AS r LEFT JOIN generations AS g ON g.job_id = r.job_id AND g.number = r.generation WHERE r.job_id = j.id AND r.step = 'confirmed' AND r.way = 'in_place'), 0.0) AS standstill_s,
           COALESCE((SELECT MAX(a.restart_count) FROM allocations AS a WHERE a.job_id = j.id), 0) AS requeues,
           j.estimated
    FROM jobs AS j
    JOIN users AS u ON u.user_id = j.user_id
          
) AS x;

-- One row per event of a job; order by job_id, at, rank. event is one of
--   submitted, started, finished (detail: its final state);
--   allocated (from at to until it had num_gpus on num_nodes; detail: GPUs by node; until is null while it has);
--   run (at: its first report; until: its last report; detail: its phase), first_step (of that run);
--   checkpoint (detail: its size; duration_s: how long it blocked training);
--   reallocation (one per step of its journal; num_gpus and num_nodes: of its target, in step planned;
--   detail: the step, and at an end the reason).
-- rank orders events of the same time. Columns that do not apply to an event are null.
CREATE VIEW job_timeline AS
SELECT e.job_id,
       j.slurm_job_id,
       u.user_name,
       j.account,
       e.at,
       e.until,
       (ROUND((ROUND((julianday(substr(e.until, 1, 19)) - julianday(substr(e.at, 1, 19))) * 86400.0) * 1000000 + substr(e.until, 21, 6) - substr(e.at, 21, 6)) / 1000.0) / 1000.0) AS span_s,
       e.rank,
       e.event,
       e.num_gpus,
       e.num_nodes,
       e.duration_s,
       e.run_number,
       e.reallocation_id,
       e.round_id,
       e.detail
FROM (
    SELECT a.job_id,
           a.started_at AS at,
           a.ended_at AS until,
           3 AS rank,
           'allocated' AS event,
           (SELECT COALESCE(SUM(n.num_gpus), 0) FROM (SELECT n.num_gpus, n.node_name || ':' || CAST(n.num_gpus AS TEXT) AS place FROM allocation_nodes AS n WHERE n.job_id = a.job_id AND n.number = a.number ORDER BY n.node_name) AS n) AS num_gpus,
           (SELECT COUNT(*) FROM (SELECT n.num_gpus, n.node_name || ':' || CAST(n.num_gpus AS TEXT) AS place FROM allocation_nodes AS n WHERE n.job_id = a.job_id AND n.number = a.number ORDER BY n.node_name) AS n) AS num_nodes,
           CAST(NULL AS DOUBLE PRECISION) AS duration_s,
           CAST(NULL AS INTEGER) AS run_number,
           CAST(NULL AS BIGINT) AS reallocation_id,
           CAST(NULL AS BIGINT) AS round_id,
           (SELECT group_concat(n.place, '+') FROM (SELECT n.num_gpus, n.node_name || ':' || CAST(n.num_gpus AS TEXT) AS place FROM allocation_nodes AS n WHERE n.job_id = a.job_id AND n.number = a.number ORDER BY n.node_name) AS n) AS detail
    FROM allocations AS a
    
    UNION ALL
    SELECT s.id, s.submitted_at, NULL, 0, 'submitted', NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM jobs AS s
    UNION ALL
    SELECT s.id, s.started_at, NULL, 2, 'started', NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM jobs AS s
    WHERE s.started_at IS NOT NULL
    UNION ALL
    SELECT s.id, s.finished_at, NULL, 9, 'finished', NULL, NULL, NULL, NULL, NULL, NULL, s.state
    FROM jobs AS s
    WHERE s.finished_at IS NOT NULL
    UNION ALL
    SELECT r.job_id, r.first_report_at, r.last_report_at, 4, 'run',
           (SELECT COALESCE(SUM(n.num_gpus), 0) FROM run_nodes AS n WHERE n.run_id = r.id), (SELECT COUNT(*) FROM run_nodes AS n WHERE n.run_id = r.id),
           NULL, r.run_number, NULL, NULL, r.phase
    FROM runs AS r
    
    UNION ALL
    SELECT r.job_id, r.first_step_at, NULL, 5, 'first_step', NULL, NULL, r.first_step_s, r.run_number, NULL, NULL, NULL
    FROM runs AS r
    WHERE r.first_step_at IS NOT NULL
    UNION ALL
    SELECT r.job_id, c.at, NULL, 6, 'checkpoint', NULL, NULL, c.blocked_s, r.run_number, c.reallocation_id, NULL,
           CAST(c.size_bytes AS TEXT) || ' bytes'
    FROM checkpoints AS c
    JOIN runs AS r ON r.id = c.run_id
    UNION ALL
    SELECT m.job_id, s.at, NULL, 7, 'reallocation',
           (SELECT SUM(n.num_gpus) FROM reallocation_nodes AS n WHERE n.reallocation_id = m.id AND n.side = 'target' AND s.step = 'planned'), CASE WHEN s.step = 'planned' THEN (SELECT COUNT(*) FROM reallocation_nodes AS n WHERE n.reallocation_id = m.id AND n.side = 'target' AND s.step = 'planned') END,
           NULL, NULL, m.id, m.round_id,
           CASE WHEN s.step IN ('rolled_back', 'failed') AND m.reason IS NOT NULL THEN s.step || ': ' || m.reason
                ELSE s.step
           END
    FROM reallocation_steps AS s
    JOIN reallocations AS m ON m.id = s.reallocation_id
    
) AS e
JOIN jobs AS j ON j.id = e.job_id
JOIN users AS u ON u.user_id = j.user_id;

-- One row per round: the GPUs it could allocate, what it allocated, its quality, and the moves it caused.
-- solve_s is null where it was not measured.
CREATE VIEW round_history AS
SELECT r.id AS round_id,
       r.at,
       r.shadow,
       r.objective,
       CASE r.solver WHEN 'exact' THEN 'search' ELSE r.solver END AS solver,
       COALESCE(r.num_jobs, 0) AS num_jobs,
       COALESCE(r.num_served, 0) AS num_served,
       COALESCE(r.num_gpus, 0) AS num_gpus,
       r.total_gpus,
       r.fair_share_gpus,
       r.mean_speedup,
       r.min_speedup,
       r.fitness,
       r.upper_bound,
       r.gap,
       COALESCE(r.timed_out, 0) AS timed_out,
       r.solve_s,
       (SELECT COUNT(*) FROM reallocations AS m WHERE m.round_id = r.id) AS num_moves,
       (SELECT COUNT(CASE WHEN m.step = 'confirmed' THEN 1 END) FROM reallocations AS m WHERE m.round_id = r.id) AS num_confirmed,
       (SELECT COUNT(CASE WHEN m.step IN ('rolled_back', 'failed') THEN 1 END) FROM reallocations AS m WHERE m.round_id = r.id) AS num_failed
FROM rounds AS r;

-- One row per account and day (UTC) on which it had GPUs or measured anything.
-- trained_gpu_hours is the part of gpu_hours in which reports show progress, progress_share that fraction (0 to
-- 1), useful_gpu_hours is trained_gpu_hours times statistical efficiency. throughput, efficiency and goodput are
-- means per job while it trained, null where nothing was measured.
CREATE VIEW account_usage AS
SELECT x.day,
       j.account,
       COUNT(DISTINCT x.allocated_job_id) AS num_jobs,
       SUM(x.gpu_s) / 3600.0 AS gpu_hours,
       SUM(x.trained_gpu_s) / 3600.0 AS trained_gpu_hours,
       SUM(x.useful_gpu_s) / 3600.0 AS useful_gpu_hours,
       MIN(1.0, COALESCE((SUM(x.trained_gpu_s) / NULLIF(MAX(SUM(x.gpu_s), 0.0), 0.0)), 0.0)) AS progress_share,
       SUM(x.counted_examples) AS examples,
       SUM(x.useful_examples) AS useful_examples,
       (SUM(x.examples) / NULLIF(MAX(SUM(x.trained_s), 0.0), 0.0)) AS throughput,
       (SUM(x.efficiency_s) / NULLIF(MAX(SUM(x.measured_s), 0.0), 0.0)) AS efficiency,
       (SUM(x.useful_examples) / NULLIF(MAX(SUM(x.measured_s), 0.0), 0.0)) AS goodput
FROM (
SELECT h.day,
       h.job_id,
       h.job_id AS allocated_job_id,
       h.allocated_s * n.num_gpus AS gpu_s,
       0.0 AS trained_gpu_s,
       0.0 AS useful_gpu_s,
       0.0 AS trained_s,
       0.0 AS measured_s,
       0.0 AS examples,
       0.0 AS counted_examples,
       0.0 AS useful_examples,
       0.0 AS efficiency_s
FROM (
SELECT d.job_id, d.number, d.day, d.allocated_s
FROM allocation_days AS d
UNION ALL
SELECT o.job_id,
       o.number,
       o.day,
       (ROUND((ROUND((julianday(substr(MIN(o.ended_at, (date(o.day, '+1 day') || ' 00:00:00.000000')), 1, 19)) - julianday(substr(MAX(o.started_at, (o.day || ' 00:00:00.000000')), 1, 19))) * 86400.0) * 1000000 + substr(MIN(o.ended_at, (date(o.day, '+1 day') || ' 00:00:00.000000')), 21, 6) - substr(MAX(o.started_at, (o.day || ' 00:00:00.000000')), 21, 6)) / 1000.0) / 1000.0)
FROM (
    WITH RECURSIVE days AS (
        SELECT a.job_id, a.number, a.started_at, CURRENT_TIMESTAMP AS ended_at, date(a.started_at) AS day
        FROM allocations AS a
        WHERE a.ended_at IS NULL AND a.started_at <= CURRENT_TIMESTAMP
        UNION ALL
        SELECT a.job_id, a.number, a.started_at, a.ended_at, date(a.day, '+1 day')
        FROM days AS a
        WHERE (date(a.day, '+1 day') || ' 00:00:00.000000') < a.ended_at
    )
    SELECT * FROM days
) AS o) AS h
JOIN allocation_nodes AS n ON n.job_id = h.job_id AND n.number = h.number
UNION ALL
SELECT d.day, r.job_id, NULL, 0.0, d.trained_gpu_s, d.useful_gpu_s, d.trained_s, d.measured_s, d.examples,
       d.counted_examples, d.useful_examples, d.efficiency_s
FROM run_days AS d
JOIN runs AS r ON r.id = d.run_id
) AS x
JOIN jobs AS j ON j.id = x.job_id
GROUP BY x.day, j.account;

-- One row per user, account and day (UTC) on which they had GPUs or measured anything. The other columns are
-- those of account_usage.
CREATE VIEW user_usage AS
SELECT x.day,
       u.user_name,
       j.account,
       COUNT(DISTINCT x.allocated_job_id) AS num_jobs,
       SUM(x.gpu_s) / 3600.0 AS gpu_hours,
       SUM(x.trained_gpu_s) / 3600.0 AS trained_gpu_hours,
       SUM(x.useful_gpu_s) / 3600.0 AS useful_gpu_hours,
       MIN(1.0, COALESCE((SUM(x.trained_gpu_s) / NULLIF(MAX(SUM(x.gpu_s), 0.0), 0.0)), 0.0)) AS progress_share,
       SUM(x.counted_examples) AS examples,
       SUM(x.useful_examples) AS useful_examples,
       (SUM(x.examples) / NULLIF(MAX(SUM(x.trained_s), 0.0), 0.0)) AS throughput,
       (SUM(x.efficiency_s) / NULLIF(MAX(SUM(x.measured_s), 0.0), 0.0)) AS efficiency,
       (SUM(x.useful_examples) / NULLIF(MAX(SUM(x.measured_s), 0.0), 0.0)) AS goodput
FROM (
SELECT h.day,
       h.job_id,
       h.job_id AS allocated_job_id,
       h.allocated_s * n.num_gpus AS gpu_s,
       0.0 AS trained_gpu_s,
       0.0 AS useful_gpu_s,
       0.0 AS trained_s,
       0.0 AS measured_s,
       0.0 AS examples,
       0.0 AS counted_examples,
       0.0 AS useful_examples,
       0.0 AS efficiency_s
FROM (
SELECT d.job_id, d.number, d.day, d.allocated_s
FROM allocation_days AS d
UNION ALL
SELECT o.job_id,
       o.number,
       o.day,
       (ROUND((ROUND((julianday(substr(MIN(o.ended_at, (date(o.day, '+1 day') || ' 00:00:00.000000')), 1, 19)) - julianday(substr(MAX(o.started_at, (o.day || ' 00:00:00.000000')), 1, 19))) * 86400.0) * 1000000 + substr(MIN(o.ended_at, (date(o.day, '+1 day') || ' 00:00:00.000000')), 21, 6) - substr(MAX(o.started_at, (o.day || ' 00:00:00.000000')), 21, 6)) / 1000.0) / 1000.0)
FROM (
    WITH RECURSIVE days AS (
        SELECT a.job_id, a.number, a.started_at, CURRENT_TIMESTAMP AS ended_at, date(a.started_at) AS day
        FROM allocations AS a
        WHERE a.ended_at IS NULL AND a.started_at <= CURRENT_TIMESTAMP
        UNION ALL
        SELECT a.job_id, a.number, a.started_at, a.ended_at, date(a.day, '+1 day')
        FROM days AS a
        WHERE (date(a.day, '+1 day') || ' 00:00:00.000000') < a.ended_at
    )
    SELECT * FROM days
) AS o) AS h
JOIN allocation_nodes AS n ON n.job_id = h.job_id AND n.number = h.number
UNION ALL
SELECT d.day, r.job_id, NULL, 0.0, d.trained_gpu_s, d.useful_gpu_s, d.trained_s, d.measured_s, d.examples,
       d.counted_examples, d.useful_examples, d.efficiency_s
FROM run_days AS d
JOIN runs AS r ON r.id = d.run_id
) AS x
JOIN jobs AS j ON j.id = x.job_id
JOIN users AS u ON u.user_id = j.user_id
GROUP BY x.day, u.user_name, j.account;

-- One row per node and day (UTC) on which a round could use it or an adaptive job had GPUs there.
-- num_gpus is the mean that rounds could allocate there, available_gpu_hours that times the time that these rounds
-- cover; both are 0 for a node that no round of the day could use. utilization is gpu_hours over
-- available_gpu_hours, at most 1. gpu_type is empty where unknown.
CREATE VIEW node_usage AS
SELECT x.day,
       x.node_name,
       COALESCE((SELECT k.gpu_type FROM nodes AS k WHERE k.node_name = x.node_name), '') AS gpu_type,
       COUNT(DISTINCT x.allocated_job_id) AS num_jobs,
       SUM(x.gpu_s) / 3600.0 AS gpu_hours,
       COALESCE((SUM(x.gpus_sum) / NULLIF(MAX(TOTAL(x.num_rounds), 0.0), 0.0)), 0.0) AS num_gpus,
       SUM(x.available_gpu_s) / 3600.0 AS available_gpu_hours,
       CASE WHEN SUM(x.gpu_s) >= SUM(x.available_gpu_s) AND SUM(x.gpu_s) > 0.0 THEN 1.0
            WHEN SUM(x.available_gpu_s) > 0.0 THEN SUM(x.gpu_s) / SUM(x.available_gpu_s)
            ELSE 0.0
       END AS utilization
FROM (
    SELECT h.day, n.node_name, h.job_id AS allocated_job_id, h.allocated_s * n.num_gpus AS gpu_s, 0.0 AS gpus_sum,
           0 AS num_rounds, 0.0 AS available_gpu_s
    FROM (
SELECT d.job_id, d.number, d.day, d.allocated_s
FROM allocation_days AS d
UNION ALL
SELECT o.job_id,
       o.number,
       o.day,
       (ROUND((ROUND((julianday(substr(MIN(o.ended_at, (date(o.day, '+1 day') || ' 00:00:00.000000')), 1, 19)) - julianday(substr(MAX(o.started_at, (o.day || ' 00:00:00.000000')), 1, 19))) * 86400.0) * 1000000 + substr(MIN(o.ended_at, (date(o.day, '+1 day') || ' 00:00:00.000000')), 21, 6) - substr(MAX(o.started_at, (o.day || ' 00:00:00.000000')), 21, 6)) / 1000.0) / 1000.0)
FROM (
    WITH RECURSIVE days AS (
        SELECT a.job_id, a.number, a.started_at, CURRENT_TIMESTAMP AS ended_at, date(a.started_at) AS day
        FROM allocations AS a
        WHERE a.ended_at IS NULL AND a.started_at <= CURRENT_TIMESTAMP
        UNION ALL
        SELECT a.job_id, a.number, a.started_at, a.ended_at, date(a.day, '+1 day')
        FROM days AS a
        WHERE (date(a.day, '+1 day') || ' 00:00:00.000000') < a.ended_at
    )
    SELECT * FROM days
) AS o
    ) AS h
    JOIN allocation_nodes AS n ON n.job_id = h.job_id AND n.number = h.number
    UNION ALL
    SELECT d.day, d.node_name, NULL, 0.0, d.gpus_sum, d.num_rounds, d.available_gpu_s
    FROM node_days AS d
) AS x
GROUP BY x.day, x.node_name;

-- One row per run and day (UTC): predicted against measured throughput, over the samples that have both.
-- mean_error is the mean of predicted/measured - 1, positive where the model predicted too much; mean_abs_error
-- is the mean of its absolute values. gpu_type is empty where unknown.
CREATE VIEW model_accuracy AS
SELECT r.job_id,
       j.slurm_job_id,
       u.user_name,
       j.account,
       r.run_number,
       d.day,
       COALESCE(r.gpu_type, (SELECT CASE WHEN COUNT(DISTINCT k.gpu_type) = 1 THEN MIN(k.gpu_type) END FROM allocations AS a JOIN allocation_nodes AS n ON n.job_id = a.job_id AND n.number = a.number JOIN nodes AS k ON k.node_name = n.node_name WHERE a.job_id = r.job_id AND a.restart_count = r.restart_count), '') AS gpu_type,
       (SELECT COALESCE(SUM(n.num_gpus), 0) FROM run_nodes AS n WHERE n.run_id = r.id) AS num_gpus,
       (SELECT COUNT(*) FROM run_nodes AS n WHERE n.run_id = r.id) AS num_nodes,
       d.num_compared AS num_samples,
       (d.compared_examples / NULLIF(MAX(d.compared_s, 0.0), 0.0)) AS throughput,
       (d.predicted_examples / NULLIF(MAX(d.compared_s, 0.0), 0.0)) AS predicted_throughput,
       d.error_sum / d.num_compared AS mean_error,
       d.abs_error_sum / d.num_compared AS mean_abs_error
FROM run_days AS d
JOIN runs AS r ON r.id = d.run_id
JOIN jobs AS j ON j.id = r.job_id
JOIN users AS u ON u.user_id = j.user_id
 
WHERE d.num_compared > 0;

-- One row per job: its finish-time fairness (Themis, NSDI 2020).
-- rho is elapsed_s / fair_share_s: its time from submission to its end (so far), over the time that the same work
-- would have taken on its fair share of the cluster from the start, at the goodput that rounds predicted there.
-- At rho <= 1 it was not worse off than on an equal part of the cluster. Null where nothing was measured or
-- predicted. fair_share_gpus, mean_gpus and mean_speedup are means over the rounds that decided about it, null
-- where none did.
CREATE VIEW fairness AS
SELECT x.job_id,
       x.slurm_job_id,
       x.name,
       x.user_name,
       x.account,
       x.state,
       x.submitted_at,
       x.finished_at,
       x.elapsed_s,
       x.waited_s,
       x.num_rounds,
       x.fair_share_gpus,
       x.mean_gpus,
       x.mean_speedup,
       x.goodput,
       x.fair_share_goodput,
       (x.goodput * x.trained_s / NULLIF(MAX(x.fair_share_goodput, 0.0), 0.0)) AS fair_share_s,
       (x.elapsed_s / NULLIF(MAX((x.goodput * x.trained_s / NULLIF(MAX(x.fair_share_goodput, 0.0), 0.0)), 0.0), 0.0)) AS rho
FROM (
    SELECT j.id AS job_id,
           j.slurm_job_id,
           j.name,
           u.user_name,
           j.account,
           j.state,
           j.submitted_at,
           j.finished_at,
           MAX(0.0, (ROUND((ROUND((julianday(substr(COALESCE(j.finished_at, CURRENT_TIMESTAMP), 1, 19)) - julianday(substr(j.submitted_at, 1, 19))) * 86400.0) * 1000000 + substr(COALESCE(j.finished_at, CURRENT_TIMESTAMP), 21, 6) - substr(j.submitted_at, 21, 6)) / 1000.0) / 1000.0)) AS elapsed_s,
           MAX(0.0, (ROUND((ROUND((julianday(substr(COALESCE(j.started_at, j.finished_at, CURRENT_TIMESTAMP), 1, 19)) - julianday(substr(j.submitted_at, 1, 19))) * 86400.0) * 1000000 + substr(COALESCE(j.started_at, j.finished_at, CURRENT_TIMESTAMP), 21, 6) - substr(j.submitted_at, 21, 6)) / 1000.0) / 1000.0)) AS waited_s,
           COALESCE((SELECT CAST(TOTAL(d.num_rounds) AS BIGINT) FROM job_days AS d WHERE d.job_id = j.id), 0) AS num_rounds,
           (SELECT (SUM(d.fair_share_gpus_sum) / NULLIF(MAX(TOTAL(CASE WHEN d.fair_share_gpus_sum > 0.0 THEN d.num_rounds END), 0.0), 0.0)) FROM job_days AS d WHERE d.job_id = j.id) AS fair_share_gpus,
           (SELECT (SUM(d.gpus_sum) / NULLIF(MAX(TOTAL(d.num_rounds), 0.0), 0.0)) FROM job_days AS d WHERE d.job_id = j.id) AS mean_gpus,
           (SELECT (SUM(d.speedup_sum) / NULLIF(MAX(TOTAL(d.num_rounds), 0.0), 0.0)) FROM job_days AS d WHERE d.job_id = j.id) AS mean_speedup,
           (SELECT (SUM(d.fair_share_goodput_sum) / NULLIF(MAX(TOTAL(d.num_compared), 0.0), 0.0)) FROM job_days AS d WHERE d.job_id = j.id) AS fair_share_goodput,
           (SELECT (SUM(d.useful_examples) / NULLIF(MAX(SUM(d.measured_s), 0.0), 0.0)) FROM runs AS r JOIN run_days AS d ON d.run_id = r.id WHERE r.job_id = j.id) AS goodput,
           (SELECT SUM(d.trained_s) FROM runs AS r JOIN run_days AS d ON d.run_id = r.id WHERE r.job_id = j.id) AS trained_s
    FROM jobs AS j
    JOIN users AS u ON u.user_id = j.user_id
     
) AS x;

-- One row per goodput sample: what a run measured since its previous sample. Select one job at a time.
-- num_gpus and num_nodes are those that the run used, goodput is throughput times efficiency in examples per
-- second, progress is in units of M0. What was not measured is null. Pruning deletes the samples of
-- old jobs.
CREATE VIEW job_samples AS
SELECT r.job_id,
       j.slurm_job_id,
       u.user_name,
       j.account,
       r.run_number,
       s.sequence,
       s.at,
       (SELECT COALESCE(SUM(n.num_gpus), 0) FROM run_nodes AS n WHERE n.run_id = r.id) AS num_gpus,
       (SELECT COUNT(*) FROM run_nodes AS n WHERE n.run_id = r.id) AS num_nodes,
       s.global_batch_size,
       s.atomic_batch_size,
       s.accumulation_steps,
       s.throughput,
       s.predicted_throughput,
       s.efficiency,
       s.throughput * s.efficiency AS goodput,
       s.progress,
       s.epoch,
       s.total_epochs
FROM goodput_samples AS s
JOIN runs AS r ON r.id = s.run_id
JOIN jobs AS j ON j.id = r.job_id
JOIN users AS u ON u.user_id = j.user_id;

-- One row per job that has a kind. max_gpus_seen: the most GPUs on which it measured its steps, 0 before.
CREATE VIEW job_kinds AS
SELECT j.id AS job_id,
       j.slurm_job_id,
       j.name,
       u.user_name,
       j.account,
       j.state,
       j.submitted_at,
       j.kind,
       (SELECT COALESCE(MAX(m.max_gpus_seen), 0) FROM model_versions AS m WHERE m.job_id = j.id AND m.alpha_g IS NOT NULL) AS max_gpus_seen
FROM jobs AS j
JOIN users AS u ON u.user_id = j.user_id

WHERE j.kind IS NOT NULL;

-- One row: today (UTC), and the days 7, 30 and 365 days before it, for queries about a time up to now.
CREATE VIEW calendar AS
SELECT date('now', '-0 day') AS today,
       date('now', '-7 day') AS week_ago,
       date('now', '-30 day') AS month_ago,
       date('now', '-365 day') AS year_ago;
