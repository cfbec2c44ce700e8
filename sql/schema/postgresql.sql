-- Schema 0106 of a pollux store on postgresql. Generated: pollux db schema postgresql
-- Times are UTC. A store is made by `pollux db init`, not from this text.

CREATE TABLE accounts (
    account TEXT NOT NULL,
    first_seen_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_accounts PRIMARY KEY (account)
);

COMMENT ON TABLE accounts IS 'Slurm accounts that jobs are charged to.';
COMMENT ON COLUMN accounts.account IS 'Slurm''s name of it; may be empty.';
COMMENT ON COLUMN accounts.first_seen_at IS 'When the daemon first read a job of it.';

CREATE TABLE leases (
    name VARCHAR(32) NOT NULL,
    owner TEXT NOT NULL,
    renewed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    interval_s DOUBLE PRECISION,
    watch_s DOUBLE PRECISION,
    CONSTRAINT pk_leases PRIMARY KEY (name)
);

COMMENT ON TABLE leases IS 'The right to act, which one daemon has at a time.';
COMMENT ON COLUMN leases.name IS 'What the lease is for.';
COMMENT ON COLUMN leases.owner IS 'The daemon that has it.';
COMMENT ON COLUMN leases.renewed_at IS 'When this owner acquired or last renewed it.';
COMMENT ON COLUMN leases.expires_at IS 'When it expires unless renewed.';
COMMENT ON COLUMN leases.interval_s IS 'Longest time between its rounds, seconds; null where not recorded.';
COMMENT ON COLUMN leases.watch_s IS 'Interval at which it polls Slurm, seconds; null where not recorded.';

CREATE TABLE nodes (
    node_name TEXT NOT NULL,
    gpu_type TEXT NOT NULL,
    num_gpus INTEGER NOT NULL,
    first_seen_at TIMESTAMP WITH TIME ZONE NOT NULL,
    last_seen_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_nodes PRIMARY KEY (node_name)
);

COMMENT ON TABLE nodes IS 'Nodes that rounds could use, including removed ones.';
COMMENT ON COLUMN nodes.node_name IS 'Slurm''s name of it.';
COMMENT ON COLUMN nodes.gpu_type IS 'Slurm''s name of its GPUs; empty for nameless ones.';
COMMENT ON COLUMN nodes.num_gpus IS 'GPUs that the last round could allocate there.';
COMMENT ON COLUMN nodes.first_seen_at IS 'When a round could first use it.';
COMMENT ON COLUMN nodes.last_seen_at IS 'When a round could last use it.';

CREATE TABLE rounds (
    id BIGSERIAL NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    shadow BOOLEAN NOT NULL,
    objective TEXT NOT NULL,
    solver TEXT NOT NULL,
    fitness DOUBLE PRECISION NOT NULL,
    problem TEXT NOT NULL,
    decision TEXT NOT NULL,
    upper_bound DOUBLE PRECISION,
    gap DOUBLE PRECISION,
    timed_out BOOLEAN NOT NULL,
    num_jobs INTEGER NOT NULL,
    num_served INTEGER NOT NULL,
    num_gpus INTEGER NOT NULL,
    total_gpus INTEGER NOT NULL,
    fair_share_gpus INTEGER NOT NULL,
    mean_speedup DOUBLE PRECISION,
    min_speedup DOUBLE PRECISION,
    solve_s DOUBLE PRECISION,
    CONSTRAINT pk_rounds PRIMARY KEY (id)
);

CREATE INDEX ix_rounds_at ON rounds (at);

COMMENT ON TABLE rounds IS 'One row per round that decided, with its problem and decision.';
COMMENT ON COLUMN rounds.id IS 'The round''s number; increases.';
COMMENT ON COLUMN rounds.at IS 'When it was decided.';
COMMENT ON COLUMN rounds.shadow IS 'Was it in shadow mode: recorded, not enacted?';
COMMENT ON COLUMN rounds.objective IS 'Name of the objective.';
COMMENT ON COLUMN rounds.solver IS 'Name of the solver.';
COMMENT ON COLUMN rounds.fitness IS 'The objective''s value at the decision.';
COMMENT ON COLUMN rounds.problem IS 'The problem as versioned JSON, for replays.';
COMMENT ON COLUMN rounds.decision IS 'The decision as versioned JSON, for replays.';
COMMENT ON COLUMN rounds.upper_bound IS 'Upper bound of the fitness with as many served jobs; null if none was proved.';
COMMENT ON COLUMN rounds.gap IS '(upper_bound - fitness) / upper_bound; null without a bound.';
COMMENT ON COLUMN rounds.timed_out IS 'Did the search end at its time limit?';
COMMENT ON COLUMN rounds.num_jobs IS 'Jobs that it decided about.';
COMMENT ON COLUMN rounds.num_served IS 'Jobs that got GPUs.';
COMMENT ON COLUMN rounds.num_gpus IS 'GPUs that it allocated.';
COMMENT ON COLUMN rounds.total_gpus IS 'GPUs that it could allocate.';
COMMENT ON COLUMN rounds.fair_share_gpus IS 'Fair share of a job in GPUs, at which speedup is 1.';
COMMENT ON COLUMN rounds.mean_speedup IS 'Mean over its jobs of speedup; null without jobs.';
COMMENT ON COLUMN rounds.min_speedup IS 'Smallest speedup of its jobs; null without jobs.';
COMMENT ON COLUMN rounds.solve_s IS 'Time of the decision, seconds; null where not measured.';

CREATE TABLE users (
    user_id BIGINT NOT NULL,
    user_name TEXT NOT NULL,
    CONSTRAINT pk_users PRIMARY KEY (user_id),
    CONSTRAINT ck_users_user_id CHECK (user_id >= 0)
);

COMMENT ON TABLE users IS 'Owners of jobs, as Slurm authenticated them.';
COMMENT ON COLUMN users.user_id IS 'Unix user id.';
COMMENT ON COLUMN users.user_name IS 'Login name last seen with this id.';

CREATE TABLE gpu_prices (
    round_id BIGINT NOT NULL,
    gpu_type TEXT NOT NULL,
    price DOUBLE PRECISION NOT NULL,
    CONSTRAINT pk_gpu_prices PRIMARY KEY (round_id, gpu_type),
    CONSTRAINT fk_gpu_prices_round_id_rounds FOREIGN KEY(round_id) REFERENCES rounds (id) ON DELETE CASCADE
);

COMMENT ON TABLE gpu_prices IS 'Prices of a round: what one more GPU of a type would have added.';
COMMENT ON COLUMN gpu_prices.round_id IS 'The round.';
COMMENT ON COLUMN gpu_prices.gpu_type IS 'Slurm''s name of it; may be empty.';
COMMENT ON COLUMN gpu_prices.price IS 'Lagrange multiplier, in units of the objective.';

CREATE TABLE jobs (
    id BIGSERIAL NOT NULL,
    slurm_job_id VARCHAR(64) NOT NULL,
    first_job_id BIGINT,
    token_sha256 VARCHAR(64) NOT NULL,
    user_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    account TEXT NOT NULL,
    partition TEXT NOT NULL,
    min_gpus INTEGER NOT NULL,
    max_gpus INTEGER,
    allow_unconfirmed BOOLEAN NOT NULL,
    in_place BOOLEAN DEFAULT false NOT NULL,
    cpus_per_gpu INTEGER NOT NULL,
    memory_per_gpu_mb BIGINT NOT NULL,
    state VARCHAR(32) NOT NULL,
    submitted_at TIMESTAMP WITH TIME ZONE NOT NULL,
    registered_at TIMESTAMP WITH TIME ZONE NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    time_limit_s DOUBLE PRECISION,
    required_nodes TEXT,
    submitted_gpus INTEGER,
    kind VARCHAR(32),
    finish_by TIMESTAMP WITH TIME ZONE,
    promise VARCHAR(32),
    promise_gpus INTEGER,
    promise_finish_at TIMESTAMP WITH TIME ZONE,
    promise_reason TEXT,
    fitting_atomic BIGINT,
    not_moved_reason TEXT,
    estimated BOOLEAN DEFAULT false NOT NULL,
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

COMMENT ON TABLE jobs IS 'Adaptive jobs, one row each, with the terms from their Slurm Comment.';
COMMENT ON COLUMN jobs.id IS 'This database''s id of the job.';
COMMENT ON COLUMN jobs.slurm_job_id IS 'Slurm''s job id as text.';
COMMENT ON COLUMN jobs.first_job_id IS 'First row of the same submission, whose token its owner replaced; null for the first.';
COMMENT ON COLUMN jobs.token_sha256 IS 'SHA-256 (hex) of the token that the job reports with.';
COMMENT ON COLUMN jobs.user_id IS 'The owner.';
COMMENT ON COLUMN jobs.name IS 'Job name.';
COMMENT ON COLUMN jobs.account IS 'Slurm account it is charged to; may be empty.';
COMMENT ON COLUMN jobs.partition IS 'Slurm partition.';
COMMENT ON COLUMN jobs.min_gpus IS 'Fewest GPUs that it can be given.';
COMMENT ON COLUMN jobs.max_gpus IS 'Most GPUs; null for no bound.';
COMMENT ON COLUMN jobs.allow_unconfirmed IS 'May it be requeued when its checkpoint was not confirmed in time?';
COMMENT ON COLUMN jobs.in_place IS 'Does it move in place, its GPUs in jobs of their own?';
COMMENT ON COLUMN jobs.cpus_per_gpu IS 'CPUs that come with each GPU.';
COMMENT ON COLUMN jobs.memory_per_gpu_mb IS 'Memory that comes with each GPU, in MiB.';
COMMENT ON COLUMN jobs.state IS 'State in the last snapshot of Slurm.';
COMMENT ON COLUMN jobs.submitted_at IS 'When it was first submitted.';
COMMENT ON COLUMN jobs.registered_at IS 'When the daemon registered it.';
COMMENT ON COLUMN jobs.started_at IS 'When it first started; null before.';
COMMENT ON COLUMN jobs.finished_at IS 'When the job ended; null while it is not over.';
COMMENT ON COLUMN jobs.time_limit_s IS 'Time limit of one run when it was registered, seconds; null for none, or unknown.';
COMMENT ON COLUMN jobs.required_nodes IS 'Nodes that its owner named, separated by commas; null for none.';
COMMENT ON COLUMN jobs.submitted_gpus IS 'GPUs that its owner submitted it with; null where unknown.';
COMMENT ON COLUMN jobs.kind IS 'What it trains: its owner''s name for it, or a digest; null for none.';
COMMENT ON COLUMN jobs.finish_by IS 'When its owner wants it finished; null for no wish.';
COMMENT ON COLUMN jobs.promise IS 'The last round''s answer to that; null before one.';
COMMENT ON COLUMN jobs.promise_gpus IS 'Fewest GPUs that keep an accepted promise now; null for any other answer.';
COMMENT ON COLUMN jobs.promise_finish_at IS 'When it is finished with these, in nine of ten cases; of a refused one the earliest; or null.';
COMMENT ON COLUMN jobs.promise_reason IS 'What the answer lacks, or why the promise ended; null for neither.';
COMMENT ON COLUMN jobs.fitting_atomic IS 'Largest micro-batch that fits into memory by jobs of its kind, examples; null: unknown.';
COMMENT ON COLUMN jobs.not_moved_reason IS 'Why the last round could not move it; null when it could.';
COMMENT ON COLUMN jobs.estimated IS 'Is an interval of it, or its end, an estimate, because Slurm''s records lack it?';

CREATE TABLE node_days (
    node_name TEXT NOT NULL,
    day DATE NOT NULL,
    num_rounds BIGINT NOT NULL,
    gpus_sum DOUBLE PRECISION NOT NULL,
    available_gpu_s DOUBLE PRECISION NOT NULL,
    CONSTRAINT pk_node_days PRIMARY KEY (node_name, day),
    CONSTRAINT ck_node_days_num_rounds CHECK (num_rounds >= 1),
    CONSTRAINT ck_node_days_sums CHECK (gpus_sum >= 0 AND available_gpu_s >= 0),
    CONSTRAINT fk_node_days_node_name_nodes FOREIGN KEY(node_name) REFERENCES nodes (node_name) ON DELETE CASCADE
);

CREATE INDEX ix_node_days_day ON node_days (day);

COMMENT ON TABLE node_days IS 'Sums over one day''s rounds of what they could allocate on a node.';
COMMENT ON COLUMN node_days.node_name IS 'The node.';
COMMENT ON COLUMN node_days.day IS 'The day, in UTC.';
COMMENT ON COLUMN node_days.num_rounds IS 'Rounds that could use the node.';
COMMENT ON COLUMN node_days.gpus_sum IS 'Sum of the GPUs that they could allocate there.';
COMMENT ON COLUMN node_days.available_gpu_s IS 'These GPUs times the time since the previous round, at most an hour.';

CREATE TABLE allocations (
    job_id BIGINT NOT NULL,
    number INTEGER NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    restart_count INTEGER,
    estimated BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT pk_allocations PRIMARY KEY (job_id, number),
    CONSTRAINT ck_allocations_number CHECK (number >= 0),
    CONSTRAINT ck_allocations_ended_at CHECK (ended_at >= started_at),
    CONSTRAINT fk_allocations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX ix_allocations_started_at ON allocations (started_at);

CREATE UNIQUE INDEX uq_allocations_open ON allocations (job_id) WHERE ended_at IS NULL;

COMMENT ON TABLE allocations IS 'Allocation intervals: times in which a job has one allocation.';
COMMENT ON COLUMN allocations.job_id IS 'The job.';
COMMENT ON COLUMN allocations.number IS 'Number of the interval within the job: 0, 1, ...';
COMMENT ON COLUMN allocations.started_at IS 'When the interval began.';
COMMENT ON COLUMN allocations.ended_at IS 'When it ended; null while it lasts.';
COMMENT ON COLUMN allocations.restart_count IS 'Slurm''s restart count of its run; null where unknown.';
COMMENT ON COLUMN allocations.estimated IS 'Is its begin or end an estimate, because Slurm does not show it?';

CREATE TABLE decisions (
    round_id BIGINT NOT NULL,
    job_id BIGINT NOT NULL,
    num_gpus INTEGER NOT NULL,
    num_nodes INTEGER NOT NULL,
    speedup DOUBLE PRECISION NOT NULL,
    goodput DOUBLE PRECISION,
    one_gpu_goodput DOUBLE PRECISION,
    penalty DOUBLE PRECISION NOT NULL,
    bound_by VARCHAR(32) NOT NULL,
    runner_up_gpus INTEGER,
    runner_up_nodes INTEGER,
    runner_up_speedup DOUBLE PRECISION,
    runner_up_gpu_type TEXT,
    runner_up_cost DOUBLE PRECISION,
    cost DOUBLE PRECISION,
    gpu_type TEXT,
    global_batch_size BIGINT,
    atomic_batch_size BIGINT,
    accumulation_steps BIGINT,
    declared_gain DOUBLE PRECISION,
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

COMMENT ON TABLE decisions IS 'The allocation that a round decided for each job, and why.';
COMMENT ON COLUMN decisions.round_id IS 'The round.';
COMMENT ON COLUMN decisions.job_id IS 'The job.';
COMMENT ON COLUMN decisions.num_gpus IS 'GPUs allocated in all.';
COMMENT ON COLUMN decisions.num_nodes IS 'Nodes of these GPUs.';
COMMENT ON COLUMN decisions.speedup IS 'Predicted goodput over that at the job''s fair share.';
COMMENT ON COLUMN decisions.goodput IS 'Predicted goodput, examples per second; null without a model.';
COMMENT ON COLUMN decisions.one_gpu_goodput IS 'Predicted best goodput on one GPU; null without a model of throughput.';
COMMENT ON COLUMN decisions.penalty IS 'Restart penalty applied, 0 to 1; 1 is none.';
COMMENT ON COLUMN decisions.bound_by IS 'The limit that kept the job from more GPUs.';
COMMENT ON COLUMN decisions.runner_up_gpus IS 'GPUs of the second-best configuration.';
COMMENT ON COLUMN decisions.runner_up_nodes IS 'Nodes of the second-best configuration.';
COMMENT ON COLUMN decisions.runner_up_speedup IS 'Speedup in that configuration.';
COMMENT ON COLUMN decisions.runner_up_gpu_type IS 'GPU type of that configuration.';
COMMENT ON COLUMN decisions.runner_up_cost IS 'What it would have cost other jobs beyond `cost`, in units of the objective.';
COMMENT ON COLUMN decisions.cost IS 'Cost of these GPUs to other jobs at the round''s prices, in units of the objective.';
COMMENT ON COLUMN decisions.gpu_type IS 'Type of these GPUs; null for none, several types or nameless ones.';
COMMENT ON COLUMN decisions.global_batch_size IS 'Predicted best M, examples per step; null without a model.';
COMMENT ON COLUMN decisions.atomic_batch_size IS 'Its m, examples of a micro-batch.';
COMMENT ON COLUMN decisions.accumulation_steps IS 'Its s, accumulation steps per step.';
COMMENT ON COLUMN decisions.declared_gain IS 'Factor by which the declared epochs changed the weight; null where they did not count.';
COMMENT ON COLUMN decisions.declaration_doubt IS 'Why the declared epochs did not count; null where they did.';
COMMENT ON COLUMN decisions.pinned_reason IS 'Why the job had to keep its allocation; null where it could change.';
COMMENT ON COLUMN decisions.excluded_reason IS 'Why the job was excluded; null when it took part.';
COMMENT ON COLUMN decisions.explanation IS 'The decision and its reasons in one line.';

CREATE TABLE declarations (
    job_id BIGINT NOT NULL,
    number INTEGER NOT NULL,
    total_epochs BIGINT NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    epoch BIGINT NOT NULL,
    progress DOUBLE PRECISION NOT NULL,
    least_total_progress DOUBLE PRECISION,
    CONSTRAINT pk_declarations PRIMARY KEY (job_id, number),
    CONSTRAINT uq_declarations_job_id_total_epochs UNIQUE (job_id, total_epochs),
    CONSTRAINT ck_declarations_number CHECK (number >= 0),
    CONSTRAINT ck_declarations_total_epochs CHECK (total_epochs BETWEEN 0 AND 1000000000),
    CONSTRAINT ck_declarations_epoch CHECK (epoch BETWEEN 0 AND 1000000000),
    CONSTRAINT ck_declarations_progress CHECK (progress BETWEEN 0.0 AND 1e+18),
    CONSTRAINT ck_declarations_least_total_progress CHECK (least_total_progress BETWEEN 0 AND 1e27),
    CONSTRAINT fk_declarations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

COMMENT ON TABLE declarations IS 'Every total number of epochs that a job has declared, in order.';
COMMENT ON COLUMN declarations.job_id IS 'The job.';
COMMENT ON COLUMN declarations.number IS 'Number of the declaration within the job: 0, 1, ...';
COMMENT ON COLUMN declarations.total_epochs IS 'Epochs declared.';
COMMENT ON COLUMN declarations.at IS 'When it was first declared.';
COMMENT ON COLUMN declarations.epoch IS 'The current epoch then.';
COMMENT ON COLUMN declarations.progress IS 'Progress until then, in units of M0.';
COMMENT ON COLUMN declarations.least_total_progress IS 'Smallest progress * total / epoch of any report since; null before the first epoch ended.';

CREATE TABLE generations (
    job_id BIGINT NOT NULL,
    number INTEGER NOT NULL,
    state VARCHAR(32) NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    restart_count INTEGER NOT NULL,
    meeting TEXT,
    standstill_s DOUBLE PRECISION,
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

COMMENT ON TABLE generations IS 'Generations: memberships of a job whose replicas join and leave while it trains.';
COMMENT ON COLUMN generations.job_id IS 'The job.';
COMMENT ON COLUMN generations.number IS 'Number within the job, over all its starts: 1, 2, ...';
COMMENT ON COLUMN generations.state IS 'Its current state.';
COMMENT ON COLUMN generations.at IS 'When it came into this state.';
COMMENT ON COLUMN generations.restart_count IS 'Slurm''s restart count of the start of the job that it was planned for.';
COMMENT ON COLUMN generations.meeting IS 'Address at which its members meet; null before it is committed.';
COMMENT ON COLUMN generations.standstill_s IS 'How long training stood still for it, seconds; null before its first step.';
COMMENT ON COLUMN generations.reason IS 'Why it was refused, withdrawn or failed, for people; null otherwise.';

CREATE TABLE job_days (
    job_id BIGINT NOT NULL,
    day DATE NOT NULL,
    num_rounds BIGINT NOT NULL,
    gpus_sum DOUBLE PRECISION NOT NULL,
    fair_share_gpus_sum DOUBLE PRECISION NOT NULL,
    speedup_sum DOUBLE PRECISION NOT NULL,
    num_compared BIGINT NOT NULL,
    fair_share_goodput_sum DOUBLE PRECISION NOT NULL,
    num_one_gpu BIGINT NOT NULL,
    one_gpu_goodput_sum DOUBLE PRECISION NOT NULL,
    CONSTRAINT pk_job_days PRIMARY KEY (job_id, day),
    CONSTRAINT ck_job_days_num_compared CHECK (num_rounds >= num_compared AND num_compared >= 0),
    CONSTRAINT ck_job_days_num_one_gpu CHECK (num_rounds >= num_one_gpu AND num_one_gpu >= 0),
    CONSTRAINT fk_job_days_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX ix_job_days_day ON job_days (day);

COMMENT ON TABLE job_days IS 'Sums over one day''s decisions about a job.';
COMMENT ON COLUMN job_days.job_id IS 'The job.';
COMMENT ON COLUMN job_days.day IS 'The day, in UTC.';
COMMENT ON COLUMN job_days.num_rounds IS 'Rounds that decided about the job.';
COMMENT ON COLUMN job_days.gpus_sum IS 'Sum of the GPUs allocated.';
COMMENT ON COLUMN job_days.fair_share_gpus_sum IS 'Sum of its fair shares, in GPUs.';
COMMENT ON COLUMN job_days.speedup_sum IS 'Sum of the speedups over its fair share.';
COMMENT ON COLUMN job_days.num_compared IS 'Rounds with a predicted goodput at the fair share.';
COMMENT ON COLUMN job_days.fair_share_goodput_sum IS 'Sum of these goodputs, examples per second.';
COMMENT ON COLUMN job_days.num_one_gpu IS 'Rounds with a predicted goodput on one GPU.';
COMMENT ON COLUMN job_days.one_gpu_goodput_sum IS 'Sum of these goodputs, examples per second.';

CREATE TABLE model_versions (
    id BIGSERIAL NOT NULL,
    job_id BIGINT NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    initial_batch_size BIGINT NOT NULL,
    max_batch_size BIGINT,
    min_atomic BIGINT NOT NULL,
    max_atomic BIGINT,
    accumulation BOOLEAN NOT NULL,
    grad_sqr DOUBLE PRECISION,
    grad_var DOUBLE PRECISION,
    alpha_g DOUBLE PRECISION,
    beta_g DOUBLE PRECISION,
    alpha_n DOUBLE PRECISION,
    beta_n DOUBLE PRECISION,
    alpha_l DOUBLE PRECISION,
    beta_l DOUBLE PRECISION,
    gamma DOUBLE PRECISION,
    max_gpus_seen INTEGER NOT NULL,
    max_nodes_seen INTEGER NOT NULL,
    noise_low DOUBLE PRECISION,
    noise_high DOUBLE PRECISION,
    run_number INTEGER,
    failed_atomic BIGINT,
    num_parameters BIGINT,
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
    CONSTRAINT fk_model_versions_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX ix_model_versions_job_id_id ON model_versions (job_id, id);

CREATE INDEX ix_model_versions_job_id_run_number_id ON model_versions (job_id, run_number, id);

COMMENT ON TABLE model_versions IS 'Goodput models of a job; a row is added only when something in it changed.';
COMMENT ON COLUMN model_versions.id IS 'Id of the version; increases.';
COMMENT ON COLUMN model_versions.job_id IS 'The job.';
COMMENT ON COLUMN model_versions.at IS 'When it was reported.';
COMMENT ON COLUMN model_versions.initial_batch_size IS 'M0, examples.';
COMMENT ON COLUMN model_versions.max_batch_size IS 'Largest global batch allowed, examples; null for always M0.';
COMMENT ON COLUMN model_versions.min_atomic IS 'Smallest micro-batch, examples.';
COMMENT ON COLUMN model_versions.max_atomic IS 'Largest micro-batch, examples; null for no bound.';
COMMENT ON COLUMN model_versions.accumulation IS 'May gradients be accumulated?';
COMMENT ON COLUMN model_versions.grad_sqr IS 'Squared norm of the true gradient; null before it is known.';
COMMENT ON COLUMN model_versions.grad_var IS 'Trace of the gradient''s covariance at batch M0; null before it is known.';
COMMENT ON COLUMN model_versions.alpha_g IS 'Fixed time of a micro-batch, seconds.';
COMMENT ON COLUMN model_versions.beta_g IS 'Time of a micro-batch per example, seconds.';
COMMENT ON COLUMN model_versions.alpha_n IS 'Synchronisation across nodes, seconds.';
COMMENT ON COLUMN model_versions.beta_n IS 'The same per replica above two, seconds.';
COMMENT ON COLUMN model_versions.alpha_l IS 'Synchronisation on one node, seconds.';
COMMENT ON COLUMN model_versions.beta_l IS 'The same per replica above two, seconds.';
COMMENT ON COLUMN model_versions.gamma IS 'Overlap of computation and synchronisation, 1 (none) to 10.';
COMMENT ON COLUMN model_versions.max_gpus_seen IS 'Most GPUs that the job reports to have run on.';
COMMENT ON COLUMN model_versions.max_nodes_seen IS 'Most nodes that the job reports to have run on.';
COMMENT ON COLUMN model_versions.noise_low IS 'Low end of the noise scale''s confidence interval, examples; null where not reported.';
COMMENT ON COLUMN model_versions.noise_high IS 'Its high end, examples; null where unbounded.';
COMMENT ON COLUMN model_versions.run_number IS 'The run that measured it; null where it came from the checkpoint of another run.';
COMMENT ON COLUMN model_versions.failed_atomic IS 'Smallest micro-batch that ran out of memory, examples; null for none.';
COMMENT ON COLUMN model_versions.num_parameters IS 'Parameters that are trained; null where not reported.';
COMMENT ON COLUMN model_versions.precision IS 'Type of numbers that it computes with, as PyTorch names it; null where not reported.';

CREATE TABLE reallocations (
    id BIGSERIAL NOT NULL,
    job_id BIGINT NOT NULL,
    round_id BIGINT,
    step VARCHAR(32) NOT NULL,
    moves_running BOOLEAN NOT NULL,
    from_restart_count INTEGER NOT NULL,
    cause VARCHAR(32) NOT NULL,
    checkpoint_waived BOOLEAN DEFAULT false NOT NULL,
    retargeted BOOLEAN DEFAULT false NOT NULL,
    continued_training BOOLEAN DEFAULT false NOT NULL,
    job_failed BOOLEAN DEFAULT false NOT NULL,
    taken_over BOOLEAN DEFAULT false NOT NULL,
    reason TEXT,
    time_left_s DOUBLE PRECISION,
    way VARCHAR(32) DEFAULT 'requeue' NOT NULL,
    generation INTEGER,
    refused VARCHAR(32),
    refused_at TIMESTAMP WITH TIME ZONE,
    refused_reason TEXT,
    refused_request TEXT,
    priority BIGINT,
    priority_ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_reallocations PRIMARY KEY (id),
    CONSTRAINT ck_reallocations_from_restart_count CHECK (from_restart_count >= 0),
    CONSTRAINT ck_reallocations_generation CHECK (generation BETWEEN 1 AND 1000000),
    CONSTRAINT fk_reallocations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    CONSTRAINT fk_reallocations_round_id_rounds FOREIGN KEY(round_id) REFERENCES rounds (id) ON DELETE SET NULL,
    CONSTRAINT ck_reallocations_step CHECK (step IN ('planned', 'checkpoint_requested', 'checkpointed', 'requeued', 'reshaped', 'released', 'running', 'regroup_requested', 'regrouped', 'confirmed', 'rolled_back', 'failed')),
    CONSTRAINT ck_reallocations_cause CHECK (cause IN ('decision', 'pause', 'drain', 'resume', 'time_limit', 'after_failure', 'failed_start', 'held_by_slurm', 'stray_wings', 'late_command')),
    CONSTRAINT ck_reallocations_way CHECK (way IN ('requeue', 'in_place')),
    CONSTRAINT ck_reallocations_refused CHECK (refused IN ('never', 'not_now'))
);

CREATE INDEX ix_reallocations_job_id_id ON reallocations (job_id, id);

CREATE INDEX ix_reallocations_round_id ON reallocations (round_id);

CREATE UNIQUE INDEX uq_reallocations_open ON reallocations (job_id) WHERE step NOT IN ('confirmed', 'rolled_back', 'failed');

COMMENT ON TABLE reallocations IS 'Reallocations: the daemon''s journal.';
COMMENT ON COLUMN reallocations.id IS 'The reallocation''s id; increases.';
COMMENT ON COLUMN reallocations.job_id IS 'The job.';
COMMENT ON COLUMN reallocations.round_id IS 'The round that decided it.';
COMMENT ON COLUMN reallocations.step IS 'Its current step.';
COMMENT ON COLUMN reallocations.moves_running IS 'Is a running job moved, rather than a waiting one reshaped?';
COMMENT ON COLUMN reallocations.from_restart_count IS 'Slurm''s restart count of the job when it was planned.';
COMMENT ON COLUMN reallocations.cause IS 'Why it was planned.';
COMMENT ON COLUMN reallocations.checkpoint_waived IS 'Did it proceed without a confirmed checkpoint?';
COMMENT ON COLUMN reallocations.retargeted IS 'Did it get another target, because other jobs took the first?';
COMMENT ON COLUMN reallocations.continued_training IS 'Did the job go on training after the checkpoint it confirmed, so that it was not moved?';
COMMENT ON COLUMN reallocations.job_failed IS 'Did the job fail in the target, before its first step?';
COMMENT ON COLUMN reallocations.taken_over IS 'Did a daemon repeat a command of it that the previous daemon may still give?';
COMMENT ON COLUMN reallocations.reason IS 'Why it was planned and how it ended, for people; null where a round decided.';
COMMENT ON COLUMN reallocations.time_left_s IS 'What was left of the time limit at the requeue, seconds; null for no limit.';
COMMENT ON COLUMN reallocations.way IS 'How it moves the job: by requeue or in_place.';
COMMENT ON COLUMN reallocations.generation IS 'Number of the generation that it last asked for; null before the first.';
COMMENT ON COLUMN reallocations.refused IS 'What Slurm answered to its target, where it refused it: never or not_now.';
COMMENT ON COLUMN reallocations.refused_at IS 'When Slurm refused it; null where it did not.';
COMMENT ON COLUMN reallocations.refused_reason IS 'Slurm''s own words for that.';
COMMENT ON COLUMN reallocations.refused_request IS 'The job''s request then, without its size: the refusal ends when it changes.';
COMMENT ON COLUMN reallocations.priority IS 'The priority that it gave the job to keep its place; null for none.';
COMMENT ON COLUMN reallocations.priority_ended_at IS 'When that priority was taken off; null while it may last.';

CREATE TABLE runs (
    id BIGSERIAL NOT NULL,
    job_id BIGINT NOT NULL,
    run_number INTEGER NOT NULL,
    restart_count INTEGER NOT NULL,
    phase VARCHAR(32) NOT NULL,
    first_report_at TIMESTAMP WITH TIME ZONE NOT NULL,
    last_report_at TIMESTAMP WITH TIME ZONE NOT NULL,
    last_sequence BIGINT NOT NULL,
    num_steps BIGINT NOT NULL,
    first_step_s DOUBLE PRECISION,
    first_step_at TIMESTAMP WITH TIME ZONE,
    restore_s DOUBLE PRECISION,
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

COMMENT ON TABLE runs IS 'Runs: one row per start of a job that reported.';
COMMENT ON COLUMN runs.id IS 'This database''s id of the run.';
COMMENT ON COLUMN runs.job_id IS 'The job.';
COMMENT ON COLUMN runs.run_number IS 'The run''s number in its checkpoint directory: 0, 1, ...';
COMMENT ON COLUMN runs.restart_count IS 'Slurm''s restart count during the run.';
COMMENT ON COLUMN runs.phase IS 'Phase of the run at its last report.';
COMMENT ON COLUMN runs.first_report_at IS 'When its first report came.';
COMMENT ON COLUMN runs.last_report_at IS 'When its last report came.';
COMMENT ON COLUMN runs.last_sequence IS 'Sequence number of its last report.';
COMMENT ON COLUMN runs.num_steps IS 'Optimizer steps as last reported.';
COMMENT ON COLUMN runs.first_step_s IS 'Process start to the end of the first optimizer step, seconds; null before.';
COMMENT ON COLUMN runs.first_step_at IS 'When that step was first reported.';
COMMENT ON COLUMN runs.restore_s IS 'Part of it spent reading the checkpoint, seconds.';
COMMENT ON COLUMN runs.gpu_type IS 'Slurm''s type of the GPUs it ran on; null if unknown, nameless or of several types.';

CREATE TABLE allocation_days (
    job_id BIGINT NOT NULL,
    number INTEGER NOT NULL,
    day DATE NOT NULL,
    allocated_s DOUBLE PRECISION NOT NULL,
    CONSTRAINT pk_allocation_days PRIMARY KEY (job_id, number, day),
    CONSTRAINT fk_allocation_days_job_id_number_allocations FOREIGN KEY(job_id, number) REFERENCES allocations (job_id, number) ON DELETE CASCADE,
    CONSTRAINT ck_allocation_days_allocated_s CHECK (allocated_s >= 0)
);

CREATE INDEX ix_allocation_days_day ON allocation_days (day);

COMMENT ON TABLE allocation_days IS 'Duration of an ended allocation interval on each day.';
COMMENT ON COLUMN allocation_days.job_id IS 'The job.';
COMMENT ON COLUMN allocation_days.number IS 'Number of the interval within the job.';
COMMENT ON COLUMN allocation_days.day IS 'The day, in UTC.';
COMMENT ON COLUMN allocation_days.allocated_s IS 'Seconds of the interval on this day.';

CREATE TABLE allocation_nodes (
    job_id BIGINT NOT NULL,
    number INTEGER NOT NULL,
    node_name TEXT NOT NULL,
    num_gpus INTEGER NOT NULL,
    CONSTRAINT pk_allocation_nodes PRIMARY KEY (job_id, number, node_name),
    CONSTRAINT fk_allocation_nodes_job_id_number_allocations FOREIGN KEY(job_id, number) REFERENCES allocations (job_id, number) ON DELETE CASCADE,
    CONSTRAINT ck_allocation_nodes_num_gpus CHECK (num_gpus >= 1)
);

CREATE INDEX ix_allocation_nodes_node_name ON allocation_nodes (node_name);

COMMENT ON TABLE allocation_nodes IS 'GPUs on each node in an allocation interval.';
COMMENT ON COLUMN allocation_nodes.job_id IS 'The job.';
COMMENT ON COLUMN allocation_nodes.number IS 'Number of the interval within the job.';
COMMENT ON COLUMN allocation_nodes.node_name IS 'The node.';
COMMENT ON COLUMN allocation_nodes.num_gpus IS 'GPUs there.';

CREATE TABLE checkpoints (
    run_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    reallocation_id BIGINT,
    blocked_s DOUBLE PRECISION NOT NULL,
    size_bytes BIGINT NOT NULL,
    CONSTRAINT pk_checkpoints PRIMARY KEY (run_id, sequence),
    CONSTRAINT fk_checkpoints_reallocation_id_reallocations FOREIGN KEY(reallocation_id) REFERENCES reallocations (id) ON DELETE SET NULL,
    CONSTRAINT ck_checkpoints_sequence CHECK (sequence BETWEEN 0 AND 1000000000000),
    CONSTRAINT ck_checkpoints_blocked_s CHECK (blocked_s BETWEEN 0.0 AND 10000000.0),
    CONSTRAINT ck_checkpoints_size_bytes CHECK (size_bytes BETWEEN 0 AND 1152921504606846976),
    CONSTRAINT fk_checkpoints_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

CREATE INDEX ix_checkpoints_at ON checkpoints (at);

CREATE UNIQUE INDEX uq_checkpoints_reallocation_id ON checkpoints (reallocation_id);

COMMENT ON TABLE checkpoints IS 'Checkpoints that runs confirmed.';
COMMENT ON COLUMN checkpoints.run_id IS 'The run.';
COMMENT ON COLUMN checkpoints.sequence IS 'Sequence number of the report that confirmed it.';
COMMENT ON COLUMN checkpoints.at IS 'When it was confirmed.';
COMMENT ON COLUMN checkpoints.reallocation_id IS 'The reallocation whose request it answered; null for none.';
COMMENT ON COLUMN checkpoints.blocked_s IS 'How long it blocked training, seconds.';
COMMENT ON COLUMN checkpoints.size_bytes IS 'Size on disk, bytes.';

CREATE TABLE decision_nodes (
    round_id BIGINT NOT NULL,
    job_id BIGINT NOT NULL,
    node_name TEXT NOT NULL,
    num_gpus INTEGER NOT NULL,
    CONSTRAINT pk_decision_nodes PRIMARY KEY (round_id, job_id, node_name),
    CONSTRAINT fk_decision_nodes_round_id_job_id_decisions FOREIGN KEY(round_id, job_id) REFERENCES decisions (round_id, job_id) ON DELETE CASCADE,
    CONSTRAINT ck_decision_nodes_num_gpus CHECK (num_gpus >= 1)
);

COMMENT ON TABLE decision_nodes IS 'GPUs of a decision on each node.';
COMMENT ON COLUMN decision_nodes.round_id IS 'The round.';
COMMENT ON COLUMN decision_nodes.job_id IS 'The job.';
COMMENT ON COLUMN decision_nodes.node_name IS 'The node.';
COMMENT ON COLUMN decision_nodes.num_gpus IS 'GPUs there.';

CREATE TABLE generation_members (
    job_id BIGINT NOT NULL,
    number INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    member_id TEXT NOT NULL,
    node_name TEXT NOT NULL,
    ready BOOLEAN NOT NULL,
    CONSTRAINT pk_generation_members PRIMARY KEY (job_id, number, rank),
    CONSTRAINT fk_generation_members_job_id_number_generations FOREIGN KEY(job_id, number) REFERENCES generations (job_id, number) ON DELETE CASCADE,
    CONSTRAINT uq_generation_members_job_id_number_member_id UNIQUE (job_id, number, member_id),
    CONSTRAINT ck_generation_members_rank CHECK (rank BETWEEN 0 AND 9999),
    CONSTRAINT ck_generation_members_member_id CHECK (length(member_id) BETWEEN 1 AND 64)
);

COMMENT ON TABLE generation_members IS 'The processes of a generation, by rank.';
COMMENT ON COLUMN generation_members.job_id IS 'The job.';
COMMENT ON COLUMN generation_members.number IS 'Number of the generation within the job.';
COMMENT ON COLUMN generation_members.rank IS 'Rank of the process in it: 0, 1, ...';
COMMENT ON COLUMN generation_members.member_id IS 'Id of the process, the same in all generations that it belongs to.';
COMMENT ON COLUMN generation_members.node_name IS 'The node that it runs on.';
COMMENT ON COLUMN generation_members.ready IS 'Does it train already, or wait to join?';

CREATE TABLE goodput_samples (
    run_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    global_batch_size BIGINT,
    atomic_batch_size BIGINT,
    accumulation_steps BIGINT,
    throughput DOUBLE PRECISION,
    predicted_throughput DOUBLE PRECISION,
    step_time_s DOUBLE PRECISION,
    efficiency DOUBLE PRECISION,
    progress DOUBLE PRECISION NOT NULL,
    epoch BIGINT NOT NULL,
    total_epochs BIGINT,
    num_examples BIGINT,
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

COMMENT ON TABLE goodput_samples IS 'Measurements of runs: one row per report after the first step.';
COMMENT ON COLUMN goodput_samples.run_id IS 'The run.';
COMMENT ON COLUMN goodput_samples.sequence IS 'Sequence number of the report within the run.';
COMMENT ON COLUMN goodput_samples.at IS 'When it was reported.';
COMMENT ON COLUMN goodput_samples.global_batch_size IS 'M, examples per step.';
COMMENT ON COLUMN goodput_samples.atomic_batch_size IS 'm, examples of a micro-batch.';
COMMENT ON COLUMN goodput_samples.accumulation_steps IS 's, accumulation steps per step.';
COMMENT ON COLUMN goodput_samples.throughput IS 'Measured, examples per second.';
COMMENT ON COLUMN goodput_samples.predicted_throughput IS 'Predicted by the current model, examples per second.';
COMMENT ON COLUMN goodput_samples.step_time_s IS 'Mean time of a step, seconds.';
COMMENT ON COLUMN goodput_samples.efficiency IS 'Statistical efficiency, 0 to 1; goodput is throughput times efficiency.';
COMMENT ON COLUMN goodput_samples.progress IS 'Progress, in units of M0.';
COMMENT ON COLUMN goodput_samples.epoch IS 'The current epoch, from 0.';
COMMENT ON COLUMN goodput_samples.total_epochs IS 'Declared number of epochs; null if none.';
COMMENT ON COLUMN goodput_samples.num_examples IS 'Examples that the run has processed so far, by its own count; null where it reports none.';

CREATE TABLE reallocation_nodes (
    reallocation_id BIGINT NOT NULL,
    side VARCHAR(32) NOT NULL,
    node_name TEXT NOT NULL,
    num_gpus INTEGER NOT NULL,
    CONSTRAINT pk_reallocation_nodes PRIMARY KEY (reallocation_id, side, node_name),
    CONSTRAINT ck_reallocation_nodes_num_gpus CHECK (num_gpus >= 1),
    CONSTRAINT fk_reallocation_nodes_reallocation_id_reallocations FOREIGN KEY(reallocation_id) REFERENCES reallocations (id) ON DELETE CASCADE,
    CONSTRAINT ck_reallocation_nodes_side CHECK (side IN ('source', 'target', 'refused'))
);

COMMENT ON TABLE reallocation_nodes IS 'GPUs per node before (source) and after (target) a move, and what Slurm refused.';
COMMENT ON COLUMN reallocation_nodes.reallocation_id IS 'The reallocation.';
COMMENT ON COLUMN reallocation_nodes.side IS 'source, target or refused.';
COMMENT ON COLUMN reallocation_nodes.node_name IS 'The node.';
COMMENT ON COLUMN reallocation_nodes.num_gpus IS 'GPUs there.';

CREATE TABLE reallocation_steps (
    reallocation_id BIGINT NOT NULL,
    step VARCHAR(32) NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_reallocation_steps PRIMARY KEY (reallocation_id, step),
    CONSTRAINT fk_reallocation_steps_reallocation_id_reallocations FOREIGN KEY(reallocation_id) REFERENCES reallocations (id) ON DELETE CASCADE,
    CONSTRAINT ck_reallocation_steps_step CHECK (step IN ('planned', 'checkpoint_requested', 'checkpointed', 'requeued', 'reshaped', 'released', 'running', 'regroup_requested', 'regrouped', 'confirmed', 'rolled_back', 'failed'))
);

CREATE INDEX ix_reallocation_steps_at ON reallocation_steps (at);

CREATE INDEX ix_reallocation_steps_step_at ON reallocation_steps (step, at);

COMMENT ON TABLE reallocation_steps IS 'When a reallocation entered each of its steps.';
COMMENT ON COLUMN reallocation_steps.reallocation_id IS 'The reallocation.';
COMMENT ON COLUMN reallocation_steps.step IS 'The step.';
COMMENT ON COLUMN reallocation_steps.at IS 'When it was journaled.';

CREATE TABLE run_days (
    run_id BIGINT NOT NULL,
    day DATE NOT NULL,
    num_samples BIGINT NOT NULL,
    progress DOUBLE PRECISION NOT NULL,
    trained_s DOUBLE PRECISION NOT NULL,
    trained_gpu_s DOUBLE PRECISION NOT NULL,
    examples DOUBLE PRECISION NOT NULL,
    measured_s DOUBLE PRECISION NOT NULL,
    useful_examples DOUBLE PRECISION NOT NULL,
    efficiency_s DOUBLE PRECISION NOT NULL,
    useful_gpu_s DOUBLE PRECISION NOT NULL,
    num_compared BIGINT NOT NULL,
    compared_s DOUBLE PRECISION NOT NULL,
    compared_examples DOUBLE PRECISION NOT NULL,
    predicted_examples DOUBLE PRECISION NOT NULL,
    error_sum DOUBLE PRECISION NOT NULL,
    abs_error_sum DOUBLE PRECISION NOT NULL,
    counted_examples DOUBLE PRECISION DEFAULT 0 NOT NULL,
    CONSTRAINT pk_run_days PRIMARY KEY (run_id, day),
    CONSTRAINT ck_run_days_counts CHECK (num_samples >= 0 AND num_compared >= 0),
    CONSTRAINT ck_run_days_times CHECK (trained_s >= 0 AND measured_s >= 0 AND compared_s >= 0),
    CONSTRAINT fk_run_days_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

CREATE INDEX ix_run_days_day ON run_days (day);

COMMENT ON TABLE run_days IS 'Sums over the goodput samples of a run on a day, by the time they cover.';
COMMENT ON COLUMN run_days.run_id IS 'The run.';
COMMENT ON COLUMN run_days.day IS 'The day, in UTC.';
COMMENT ON COLUMN run_days.num_samples IS 'Samples reported on this day.';
COMMENT ON COLUMN run_days.progress IS 'Largest progress reported, in units of M0.';
COMMENT ON COLUMN run_days.trained_s IS 'Time covered by samples with a throughput, seconds.';
COMMENT ON COLUMN run_days.trained_gpu_s IS 'The same times the run''s GPUs.';
COMMENT ON COLUMN run_days.examples IS 'Throughput times time: examples processed.';
COMMENT ON COLUMN run_days.measured_s IS 'Time covered by samples with throughput and efficiency, seconds.';
COMMENT ON COLUMN run_days.useful_examples IS 'Goodput times time: useful examples.';
COMMENT ON COLUMN run_days.efficiency_s IS 'Efficiency times time, over measured_s.';
COMMENT ON COLUMN run_days.useful_gpu_s IS 'Efficiency times time times GPUs, over measured_s.';
COMMENT ON COLUMN run_days.num_compared IS 'Samples with a measured and a predicted throughput.';
COMMENT ON COLUMN run_days.compared_s IS 'Time that they cover, seconds.';
COMMENT ON COLUMN run_days.compared_examples IS 'Their measured throughput times time.';
COMMENT ON COLUMN run_days.predicted_examples IS 'Their predicted throughput times time.';
COMMENT ON COLUMN run_days.error_sum IS 'Sum over them of predicted/measured - 1, each at most a million.';
COMMENT ON COLUMN run_days.abs_error_sum IS 'The same without signs.';
COMMENT ON COLUMN run_days.counted_examples IS 'Examples that the run counted; throughput times time where it reports no count.';

CREATE TABLE run_nodes (
    run_id BIGINT NOT NULL,
    node_rank INTEGER NOT NULL,
    num_gpus INTEGER NOT NULL,
    CONSTRAINT pk_run_nodes PRIMARY KEY (run_id, node_rank),
    CONSTRAINT ck_run_nodes_node_rank CHECK (node_rank BETWEEN 0 AND 9999),
    CONSTRAINT ck_run_nodes_num_gpus CHECK (num_gpus BETWEEN 1 AND 1024),
    CONSTRAINT fk_run_nodes_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

COMMENT ON TABLE run_nodes IS 'GPUs that a run uses on each of its nodes, by node rank.';
COMMENT ON COLUMN run_nodes.run_id IS 'The run.';
COMMENT ON COLUMN run_nodes.node_rank IS 'Rank of the node: 0, 1, ...';
COMMENT ON COLUMN run_nodes.num_gpus IS 'GPUs used there.';

CREATE TABLE run_warnings (
    run_id BIGINT NOT NULL,
    warning TEXT NOT NULL,
    first_seen_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_run_warnings PRIMARY KEY (run_id, warning),
    CONSTRAINT ck_run_warnings_warning CHECK (length(warning) BETWEEN 1 AND 64),
    CONSTRAINT fk_run_warnings_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

COMMENT ON TABLE run_warnings IS 'Warnings of runs, by name; `pollux explain` explains each.';
COMMENT ON COLUMN run_warnings.run_id IS 'The run.';
COMMENT ON COLUMN run_warnings.warning IS 'Name of the warning.';
COMMENT ON COLUMN run_warnings.first_seen_at IS 'When a report of the run first had it.';

CREATE FUNCTION pollux_goodput_samples_sum() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN INSERT INTO run_days (run_id, day, num_samples, progress, trained_s, trained_gpu_s, examples, measured_s, useful_examples, efficiency_s, useful_gpu_s, num_compared, compared_s, compared_examples, predicted_examples, error_sum, abs_error_sum, counted_examples) SELECT p.run_id, p.day, SUM(p.n), MAX(p.progress), SUM(CASE WHEN p.throughput IS NULL THEN 0.0 ELSE p.s END), SUM(CASE WHEN p.throughput IS NULL THEN 0.0 ELSE p.s * p.gpus END), SUM(COALESCE(p.throughput * p.s, 0.0)), SUM(CASE WHEN p.goodput IS NULL THEN 0.0 ELSE p.s END), SUM(COALESCE(p.goodput * p.s, 0.0)), SUM(CASE WHEN p.goodput IS NULL THEN 0.0 ELSE p.efficiency * p.s END), SUM(CASE WHEN p.goodput IS NULL THEN 0.0 ELSE p.efficiency * p.s * p.gpus END), SUM(CASE WHEN p.error IS NULL THEN 0 ELSE p.n END), SUM(CASE WHEN p.error IS NULL THEN 0.0 ELSE p.s END), SUM(CASE WHEN p.error IS NULL THEN 0.0 ELSE p.throughput * p.s END), SUM(CASE WHEN p.error IS NULL THEN 0.0 ELSE p.predicted * p.s END), SUM(COALESCE(p.error, 0.0) * p.n), SUM(ABS(COALESCE(p.error, 0.0)) * p.n), SUM(COALESCE(p.counted * p.s / p.covered_s, p.throughput * p.s, 0.0)) FROM ( WITH bounded AS ( SELECT s.run_id, s.at, CASE WHEN s.num_examples < s.previous_examples THEN 0 ELSE s.num_examples - COALESCE(s.previous_examples, 0) END AS counted, s.progress, CASE WHEN s.throughput < 1e-9 THEN 1e-9 ELSE s.throughput END AS throughput, CASE WHEN s.efficiency < 1e-9 THEN 1e-9 ELSE s.efficiency END AS efficiency, CASE WHEN s.predicted_throughput < 1e-9 THEN 1e-9 ELSE s.predicted_throughput END AS predicted, COALESCE((round((extract(epoch FROM (s.at) - (s.previous_at)))::numeric, 3)::double precision), (round((extract(epoch FROM (s.at) - (r.first_report_at)))::numeric, 3)::double precision) - COALESCE(r.first_step_s, 0.0)) AS elapsed_s, CASE WHEN s.step_time_s >= 0.001 THEN s.step_time_s ELSE 0.001 END AS step_s, (round((extract(epoch FROM (s.at) - (((((s.at) AT TIME ZONE 'UTC')::date)::timestamp AT TIME ZONE 'UTC'))))::numeric, 3)::double precision) AS today_s, (SELECT SUM(n.num_gpus) FROM run_nodes AS n WHERE n.run_id = s.run_id) AS reported_gpus, (SELECT SUM(n.num_gpus) FROM allocations AS a JOIN allocation_nodes AS n ON n.job_id = a.job_id AND n.number = a.number WHERE a.job_id = r.job_id AND a.started_at <= s.at AND (a.ended_at IS NULL OR a.ended_at > s.at)) AS allocated_gpus FROM (SELECT NEW.run_id AS run_id, NEW.at AS at, NEW.progress AS progress, NEW.throughput AS throughput, NEW.efficiency AS efficiency, NEW.predicted_throughput AS predicted_throughput, NEW.step_time_s AS step_time_s, NEW.num_examples AS num_examples, (SELECT b.num_examples FROM goodput_samples AS b WHERE b.run_id = NEW.run_id AND b.sequence < NEW.sequence ORDER BY b.sequence DESC LIMIT 1) AS previous_examples, (SELECT b.at FROM goodput_samples AS b WHERE b.run_id = NEW.run_id AND b.sequence < NEW.sequence ORDER BY b.sequence DESC LIMIT 1) AS previous_at) AS s JOIN runs AS r ON r.id = s.run_id ), covered AS ( SELECT c.*, c.throughput * c.efficiency AS goodput, COALESCE(LEAST(c.reported_gpus, c.allocated_gpus), c.reported_gpus, 0) AS gpus, CASE WHEN c.predicted > c.throughput * 1e6 THEN 1e6 ELSE c.predicted / c.throughput - 1.0 END AS error, LEAST(3600.0, GREATEST(c.elapsed_s, c.step_s)) AS covered_s FROM bounded AS c ) SELECT c.run_id, ((c.at) AT TIME ZONE 'UTC')::date AS day, 1 AS n, LEAST(c.covered_s, c.today_s) AS s, c.progress, c.throughput, c.efficiency, c.predicted, c.goodput, c.error, c.gpus, c.counted, c.covered_s FROM covered AS c UNION ALL SELECT c.run_id, (((c.at) AT TIME ZONE 'UTC')::date - 1), 0, c.covered_s - c.today_s, c.progress, c.throughput, c.efficiency, c.predicted, c.goodput, c.error, c.gpus, c.counted, c.covered_s FROM covered AS c WHERE c.covered_s > c.today_s ) AS p WHERE true GROUP BY p.run_id, p.day ON CONFLICT (run_id, day) DO UPDATE SET num_samples = run_days.num_samples + excluded.num_samples, progress = GREATEST(run_days.progress, excluded.progress), trained_s = run_days.trained_s + excluded.trained_s, trained_gpu_s = run_days.trained_gpu_s + excluded.trained_gpu_s, examples = run_days.examples + excluded.examples, measured_s = run_days.measured_s + excluded.measured_s, useful_examples = run_days.useful_examples + excluded.useful_examples, efficiency_s = run_days.efficiency_s + excluded.efficiency_s, useful_gpu_s = run_days.useful_gpu_s + excluded.useful_gpu_s, num_compared = run_days.num_compared + excluded.num_compared, compared_s = run_days.compared_s + excluded.compared_s, compared_examples = run_days.compared_examples + excluded.compared_examples, predicted_examples = run_days.predicted_examples + excluded.predicted_examples, error_sum = run_days.error_sum + excluded.error_sum, abs_error_sum = run_days.abs_error_sum + excluded.abs_error_sum, counted_examples = run_days.counted_examples + excluded.counted_examples; RETURN NULL; END $body$;

CREATE TRIGGER goodput_samples_sum AFTER INSERT ON goodput_samples FOR EACH ROW EXECUTE FUNCTION pollux_goodput_samples_sum();

CREATE FUNCTION pollux_allocations_begun() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN INSERT INTO allocation_days (job_id, number, day, allocated_s) SELECT d.job_id, d.number, d.day, (round((extract(epoch FROM (LEAST(d.ended_at, ((((d.day) + 1))::timestamp AT TIME ZONE 'UTC'))) - (GREATEST(d.started_at, ((d.day)::timestamp AT TIME ZONE 'UTC')))))::numeric, 3)::double precision) FROM ( WITH RECURSIVE days AS ( SELECT a.job_id, a.number, a.started_at, a.ended_at, ((a.started_at) AT TIME ZONE 'UTC')::date AS day FROM (SELECT NEW.job_id AS job_id, NEW.number AS number, NEW.started_at AS started_at, NEW.ended_at AS ended_at) AS a WHERE a.ended_at IS NOT NULL UNION ALL SELECT a.job_id, a.number, a.started_at, a.ended_at, ((a.day) + 1) FROM days AS a WHERE ((((a.day) + 1))::timestamp AT TIME ZONE 'UTC') < a.ended_at ) SELECT * FROM days ) AS d WHERE true ON CONFLICT (job_id, number, day) DO UPDATE SET allocated_s = excluded.allocated_s; RETURN NULL; END $body$;

CREATE TRIGGER allocations_begun AFTER INSERT ON allocations FOR EACH ROW EXECUTE FUNCTION pollux_allocations_begun();

CREATE FUNCTION pollux_allocations_ended() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN INSERT INTO allocation_days (job_id, number, day, allocated_s) SELECT d.job_id, d.number, d.day, (round((extract(epoch FROM (LEAST(d.ended_at, ((((d.day) + 1))::timestamp AT TIME ZONE 'UTC'))) - (GREATEST(d.started_at, ((d.day)::timestamp AT TIME ZONE 'UTC')))))::numeric, 3)::double precision) FROM ( WITH RECURSIVE days AS ( SELECT a.job_id, a.number, a.started_at, a.ended_at, ((a.started_at) AT TIME ZONE 'UTC')::date AS day FROM (SELECT NEW.job_id AS job_id, NEW.number AS number, NEW.started_at AS started_at, NEW.ended_at AS ended_at) AS a WHERE a.ended_at IS NOT NULL UNION ALL SELECT a.job_id, a.number, a.started_at, a.ended_at, ((a.day) + 1) FROM days AS a WHERE ((((a.day) + 1))::timestamp AT TIME ZONE 'UTC') < a.ended_at ) SELECT * FROM days ) AS d WHERE true ON CONFLICT (job_id, number, day) DO UPDATE SET allocated_s = excluded.allocated_s; RETURN NULL; END $body$;

CREATE TRIGGER allocations_ended AFTER UPDATE OF ended_at ON allocations FOR EACH ROW EXECUTE FUNCTION pollux_allocations_ended();

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
       steps.c0 AS last_step_at,
       ends.c0 AS source_gpus,
       ends.c1 AS source_nodes,
       ends.c2 AS target_gpus,
       ends.c3 AS target_nodes,
       x.checkpoint_s,
       CASE WHEN (round((extract(epoch FROM (x.released_at) - (x.checkpointed_at)))::numeric, 3)::double precision) < 0.0 THEN 0.0 ELSE (round((extract(epoch FROM (x.released_at) - (x.checkpointed_at)))::numeric, 3)::double precision) END AS hold_s,
       CASE WHEN (round((extract(epoch FROM (x.running_at) - (x.requeued_at)))::numeric, 3)::double precision) < 0.0 THEN 0.0 ELSE (round((extract(epoch FROM (x.running_at) - (x.requeued_at)))::numeric, 3)::double precision) END AS slurm_s,
       CASE WHEN (round((extract(epoch FROM (COALESCE(LEAST(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at)) - (x.running_at)))::numeric, 3)::double precision) < 0.0 THEN 0.0 ELSE (round((extract(epoch FROM (COALESCE(LEAST(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at)) - (x.running_at)))::numeric, 3)::double precision) END AS launch_s,
       CASE WHEN x.requeued_at IS NULL THEN NULL
            WHEN x.checkpoint_s IS NULL THEN CASE WHEN (round((extract(epoch FROM (COALESCE(LEAST(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at)) - (x.requeued_at)))::numeric, 3)::double precision) < 0.0 THEN 0.0 ELSE (round((extract(epoch FROM (COALESCE(LEAST(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at)) - (x.requeued_at)))::numeric, 3)::double precision) END
            ELSE CASE WHEN (round((extract(epoch FROM (COALESCE(LEAST(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at)) - (x.checkpointed_at)))::numeric, 3)::double precision) + x.checkpoint_s < 0.0 THEN 0.0 ELSE (round((extract(epoch FROM (COALESCE(LEAST(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at)) - (x.checkpointed_at)))::numeric, 3)::double precision) + x.checkpoint_s END
       END AS total_s,
       x.standstill_s,
       CASE WHEN EXISTS (
                SELECT 1
                FROM reallocation_nodes AS n
                LEFT JOIN reallocation_nodes AS o
                       ON o.reallocation_id = n.reallocation_id AND o.side = 'source' AND o.node_name = n.node_name
                WHERE n.reallocation_id = x.reallocation_id AND n.side = 'target' AND n.num_gpus > COALESCE(o.num_gpus, 0)
            ) THEN CASE WHEN (round((extract(epoch FROM (x.regrouped_at) - (x.regroup_requested_at)))::numeric, 3)::double precision) - x.standstill_s < 0.0 THEN 0.0 ELSE (round((extract(epoch FROM (x.regrouped_at) - (x.regroup_requested_at)))::numeric, 3)::double precision) - x.standstill_s END
       END AS warm_up_s,
       goodput_old.c0 AS goodput_before,
       goodput_new.c0 AS goodput_after
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
           stepped.c0 AS first_step_at,
           earlier.c0 AS run_before,
           later.c0 AS run_after
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
    LEFT JOIN LATERAL (SELECT n.first_step_at AS c0
        FROM runs AS n WHERE n.job_id = r.job_id AND n.restart_count > r.from_restart_count AND r.way = 'requeue' AND n.first_step_at IS NOT NULL ORDER BY n.run_number LIMIT 1) AS stepped ON true
 LEFT JOIN LATERAL (SELECT n.id AS c0
        FROM runs AS n WHERE n.job_id = r.job_id AND n.restart_count <= r.from_restart_count AND r.moves_running AND (r.way = 'requeue' OR n.first_report_at <= regroup_requested.at) ORDER BY n.run_number DESC LIMIT 1) AS earlier ON true
 LEFT JOIN LATERAL (SELECT n.id AS c0
        FROM runs AS n WHERE n.job_id = r.job_id AND n.restart_count >= r.from_restart_count AND r.step = 'confirmed' AND CASE WHEN r.way = 'requeue' THEN n.restart_count > r.from_restart_count ELSE n.first_report_at > regroup_requested.at END ORDER BY n.run_number LIMIT 1) AS later ON true

) AS x
LEFT JOIN LATERAL (SELECT COALESCE(SUM(CASE WHEN n.side = 'source' THEN n.num_gpus END), 0) AS c0, COUNT(CASE WHEN n.side = 'source' THEN 1 END) AS c1, COALESCE(SUM(CASE WHEN n.side = 'target' THEN n.num_gpus END), 0) AS c2, COUNT(CASE WHEN n.side = 'target' THEN 1 END) AS c3
        FROM reallocation_nodes AS n WHERE n.reallocation_id = x.reallocation_id) AS ends ON true
 LEFT JOIN LATERAL (SELECT MAX(s.at) AS c0
        FROM reallocation_steps AS s WHERE s.reallocation_id = x.reallocation_id) AS steps ON true
 LEFT JOIN LATERAL (SELECT SUM(d.useful_examples) / SUM(d.measured_s) AS c0
        FROM (SELECT t.run_id, t.day, LEAST(t.num_samples, 1000000000000) AS num_samples, CASE WHEN abs(t.progress) < 1e-30 THEN 0.0 WHEN t.progress > 1e30 THEN 1e30 WHEN t.progress < -1e30 THEN -1e30 ELSE t.progress END AS progress, CASE WHEN abs(t.trained_s) < 1e-30 THEN 0.0 WHEN t.trained_s > 1e30 THEN 1e30 WHEN t.trained_s < -1e30 THEN -1e30 ELSE t.trained_s END AS trained_s, CASE WHEN abs(t.trained_gpu_s) < 1e-30 THEN 0.0 WHEN t.trained_gpu_s > 1e30 THEN 1e30 WHEN t.trained_gpu_s < -1e30 THEN -1e30 ELSE t.trained_gpu_s END AS trained_gpu_s, CASE WHEN abs(t.examples) < 1e-30 THEN 0.0 WHEN t.examples > 1e30 THEN 1e30 WHEN t.examples < -1e30 THEN -1e30 ELSE t.examples END AS examples, CASE WHEN abs(t.measured_s) < 1e-30 THEN 0.0 WHEN t.measured_s > 1e30 THEN 1e30 WHEN t.measured_s < -1e30 THEN -1e30 ELSE t.measured_s END AS measured_s, CASE WHEN abs(t.useful_examples) < 1e-30 THEN 0.0 WHEN t.useful_examples > 1e30 THEN 1e30 WHEN t.useful_examples < -1e30 THEN -1e30 ELSE t.useful_examples END AS useful_examples, CASE WHEN abs(t.efficiency_s) < 1e-30 THEN 0.0 WHEN t.efficiency_s > 1e30 THEN 1e30 WHEN t.efficiency_s < -1e30 THEN -1e30 ELSE t.efficiency_s END AS efficiency_s, CASE WHEN abs(t.useful_gpu_s) < 1e-30 THEN 0.0 WHEN t.useful_gpu_s > 1e30 THEN 1e30 WHEN t.useful_gpu_s < -1e30 THEN -1e30 ELSE t.useful_gpu_s END AS useful_gpu_s, LEAST(t.num_compared, 1000000000000) AS num_compared, CASE WHEN abs(t.compared_s) < 1e-30 THEN 0.0 WHEN t.compared_s > 1e30 THEN 1e30 WHEN t.compared_s < -1e30 THEN -1e30 ELSE t.compared_s END AS compared_s, CASE WHEN abs(t.compared_examples) < 1e-30 THEN 0.0 WHEN t.compared_examples > 1e30 THEN 1e30 WHEN t.compared_examples < -1e30 THEN -1e30 ELSE t.compared_examples END AS compared_examples, CASE WHEN abs(t.predicted_examples) < 1e-30 THEN 0.0 WHEN t.predicted_examples > 1e30 THEN 1e30 WHEN t.predicted_examples < -1e30 THEN -1e30 ELSE t.predicted_examples END AS predicted_examples, CASE WHEN abs(t.error_sum) < 1e-30 THEN 0.0 WHEN t.error_sum > 1e30 THEN 1e30 WHEN t.error_sum < -1e30 THEN -1e30 ELSE t.error_sum END AS error_sum, CASE WHEN abs(t.abs_error_sum) < 1e-30 THEN 0.0 WHEN t.abs_error_sum > 1e30 THEN 1e30 WHEN t.abs_error_sum < -1e30 THEN -1e30 ELSE t.abs_error_sum END AS abs_error_sum, CASE WHEN abs(t.counted_examples) < 1e-30 THEN 0.0 WHEN t.counted_examples > 1e30 THEN 1e30 WHEN t.counted_examples < -1e30 THEN -1e30 ELSE t.counted_examples END AS counted_examples FROM run_days AS t) AS d WHERE d.run_id = x.run_before AND d.measured_s > 0.0) AS goodput_old ON true
 LEFT JOIN LATERAL (SELECT SUM(d.useful_examples) / SUM(d.measured_s) AS c0
        FROM (SELECT t.run_id, t.day, LEAST(t.num_samples, 1000000000000) AS num_samples, CASE WHEN abs(t.progress) < 1e-30 THEN 0.0 WHEN t.progress > 1e30 THEN 1e30 WHEN t.progress < -1e30 THEN -1e30 ELSE t.progress END AS progress, CASE WHEN abs(t.trained_s) < 1e-30 THEN 0.0 WHEN t.trained_s > 1e30 THEN 1e30 WHEN t.trained_s < -1e30 THEN -1e30 ELSE t.trained_s END AS trained_s, CASE WHEN abs(t.trained_gpu_s) < 1e-30 THEN 0.0 WHEN t.trained_gpu_s > 1e30 THEN 1e30 WHEN t.trained_gpu_s < -1e30 THEN -1e30 ELSE t.trained_gpu_s END AS trained_gpu_s, CASE WHEN abs(t.examples) < 1e-30 THEN 0.0 WHEN t.examples > 1e30 THEN 1e30 WHEN t.examples < -1e30 THEN -1e30 ELSE t.examples END AS examples, CASE WHEN abs(t.measured_s) < 1e-30 THEN 0.0 WHEN t.measured_s > 1e30 THEN 1e30 WHEN t.measured_s < -1e30 THEN -1e30 ELSE t.measured_s END AS measured_s, CASE WHEN abs(t.useful_examples) < 1e-30 THEN 0.0 WHEN t.useful_examples > 1e30 THEN 1e30 WHEN t.useful_examples < -1e30 THEN -1e30 ELSE t.useful_examples END AS useful_examples, CASE WHEN abs(t.efficiency_s) < 1e-30 THEN 0.0 WHEN t.efficiency_s > 1e30 THEN 1e30 WHEN t.efficiency_s < -1e30 THEN -1e30 ELSE t.efficiency_s END AS efficiency_s, CASE WHEN abs(t.useful_gpu_s) < 1e-30 THEN 0.0 WHEN t.useful_gpu_s > 1e30 THEN 1e30 WHEN t.useful_gpu_s < -1e30 THEN -1e30 ELSE t.useful_gpu_s END AS useful_gpu_s, LEAST(t.num_compared, 1000000000000) AS num_compared, CASE WHEN abs(t.compared_s) < 1e-30 THEN 0.0 WHEN t.compared_s > 1e30 THEN 1e30 WHEN t.compared_s < -1e30 THEN -1e30 ELSE t.compared_s END AS compared_s, CASE WHEN abs(t.compared_examples) < 1e-30 THEN 0.0 WHEN t.compared_examples > 1e30 THEN 1e30 WHEN t.compared_examples < -1e30 THEN -1e30 ELSE t.compared_examples END AS compared_examples, CASE WHEN abs(t.predicted_examples) < 1e-30 THEN 0.0 WHEN t.predicted_examples > 1e30 THEN 1e30 WHEN t.predicted_examples < -1e30 THEN -1e30 ELSE t.predicted_examples END AS predicted_examples, CASE WHEN abs(t.error_sum) < 1e-30 THEN 0.0 WHEN t.error_sum > 1e30 THEN 1e30 WHEN t.error_sum < -1e30 THEN -1e30 ELSE t.error_sum END AS error_sum, CASE WHEN abs(t.abs_error_sum) < 1e-30 THEN 0.0 WHEN t.abs_error_sum > 1e30 THEN 1e30 WHEN t.abs_error_sum < -1e30 THEN -1e30 ELSE t.abs_error_sum END AS abs_error_sum, CASE WHEN abs(t.counted_examples) < 1e-30 THEN 0.0 WHEN t.counted_examples > 1e30 THEN 1e30 WHEN t.counted_examples < -1e30 THEN -1e30 ELSE t.counted_examples END AS counted_examples FROM run_days AS t) AS d WHERE d.run_id = x.run_after AND d.measured_s > 0.0) AS goodput_new ON true;

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
       LEAST(1.0, COALESCE((CASE WHEN x.gpu_hours > 0.0 THEN x.trained_gpu_hours / x.gpu_hours END), 0.0)) AS progress_share,
       x.num_samples,
       x.throughput,
       x.efficiency,
       x.goodput,
       x.examples,
       x.useful_examples,
       x.progress,
       (CASE WHEN x.one_gpu_goodput > 0.0 THEN x.goodput / x.one_gpu_goodput END) AS speedup_one_gpu,
       (CASE WHEN x.fair_share_goodput > 0.0 THEN x.goodput / x.fair_share_goodput END) AS speedup_fair_share,
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
           GREATEST(0.0, (round((extract(epoch FROM (COALESCE(j.started_at, j.finished_at, CURRENT_TIMESTAMP)) - (j.submitted_at)))::numeric, 3)::double precision)) AS waited_s,
           (round((extract(epoch FROM (j.finished_at) - (j.submitted_at)))::numeric, 3)::double precision) AS submit_to_finish_s,
           COALESCE(held.c0, 0.0) AS gpu_hours,
           COALESCE(measured.c0, 0.0) AS trained_gpu_hours,
           COALESCE(measured.c1, 0) AS num_samples,
           measured.c2 AS throughput,
           measured.c3 AS efficiency,
           measured.c4 AS goodput,
           COALESCE(measured.c5, 0.0) AS examples,
           COALESCE(measured.c6, 0.0) AS useful_examples,
           COALESCE(measured.c7, 0.0) AS progress,
           decided.c0 AS one_gpu_goodput,
           decided.c1 AS fair_share_goodput,
           begun.c0 AS runs,
           moved.c0 AS restarts,
           COALESCE(moved.c1, 0.0) AS lost_s,
           regrouped.c0 AS regroups,
           COALESCE(regrouped.c1, 0.0) AS standstill_s,
           COALESCE(ran.c0, 0) AS requeues,
           j.estimated
    FROM jobs AS j
    JOIN users AS u ON u.user_id = j.user_id
    LEFT JOIN LATERAL (SELECT SUM(GREATEST(0.0, (round((extract(epoch FROM (COALESCE(a.ended_at, CURRENT_TIMESTAMP)) - (a.started_at)))::numeric, 3)::double precision)) * n.num_gpus) / 3600.0 AS c0
        FROM allocations AS a JOIN allocation_nodes AS n ON n.job_id = a.job_id AND n.number = a.number WHERE a.job_id = j.id) AS held ON true
 LEFT JOIN LATERAL (SELECT MAX(a.restart_count) AS c0
        FROM allocations AS a WHERE a.job_id = j.id) AS ran ON true
 LEFT JOIN LATERAL (SELECT SUM(d.trained_gpu_s) / 3600.0 AS c0, CAST(SUM(d.num_samples) AS BIGINT) AS c1, (CASE WHEN SUM(d.trained_s) > 0.0 THEN SUM(d.examples) / SUM(d.trained_s) END) AS c2, (CASE WHEN SUM(d.measured_s) > 0.0 THEN SUM(d.efficiency_s) / SUM(d.measured_s) END) AS c3, (CASE WHEN SUM(d.measured_s) > 0.0 THEN SUM(d.useful_examples) / SUM(d.measured_s) END) AS c4, SUM(d.counted_examples) AS c5, SUM(d.useful_examples) AS c6, MAX(d.progress) AS c7
        FROM runs AS r JOIN (SELECT t.run_id, t.day, LEAST(t.num_samples, 1000000000000) AS num_samples, CASE WHEN abs(t.progress) < 1e-30 THEN 0.0 WHEN t.progress > 1e30 THEN 1e30 WHEN t.progress < -1e30 THEN -1e30 ELSE t.progress END AS progress, CASE WHEN abs(t.trained_s) < 1e-30 THEN 0.0 WHEN t.trained_s > 1e30 THEN 1e30 WHEN t.trained_s < -1e30 THEN -1e30 ELSE t.trained_s END AS trained_s, CASE WHEN abs(t.trained_gpu_s) < 1e-30 THEN 0.0 WHEN t.trained_gpu_s > 1e30 THEN 1e30 WHEN t.trained_gpu_s < -1e30 THEN -1e30 ELSE t.trained_gpu_s END AS trained_gpu_s, CASE WHEN abs(t.examples) < 1e-30 THEN 0.0 WHEN t.examples > 1e30 THEN 1e30 WHEN t.examples < -1e30 THEN -1e30 ELSE t.examples END AS examples, CASE WHEN abs(t.measured_s) < 1e-30 THEN 0.0 WHEN t.measured_s > 1e30 THEN 1e30 WHEN t.measured_s < -1e30 THEN -1e30 ELSE t.measured_s END AS measured_s, CASE WHEN abs(t.useful_examples) < 1e-30 THEN 0.0 WHEN t.useful_examples > 1e30 THEN 1e30 WHEN t.useful_examples < -1e30 THEN -1e30 ELSE t.useful_examples END AS useful_examples, CASE WHEN abs(t.efficiency_s) < 1e-30 THEN 0.0 WHEN t.efficiency_s > 1e30 THEN 1e30 WHEN t.efficiency_s < -1e30 THEN -1e30 ELSE t.efficiency_s END AS efficiency_s, CASE WHEN abs(t.useful_gpu_s) < 1e-30 THEN 0.0 WHEN t.useful_gpu_s > 1e30 THEN 1e30 WHEN t.useful_gpu_s < -1e30 THEN -1e30 ELSE t.useful_gpu_s END AS useful_gpu_s, LEAST(t.num_compared, 1000000000000) AS num_compared, CASE WHEN abs(t.compared_s) < 1e-30 THEN 0.0 WHEN t.compared_s > 1e30 THEN 1e30 WHEN t.compared_s < -1e30 THEN -1e30 ELSE t.compared_s END AS compared_s, CASE WHEN abs(t.compared_examples) < 1e-30 THEN 0.0 WHEN t.compared_examples > 1e30 THEN 1e30 WHEN t.compared_examples < -1e30 THEN -1e30 ELSE t.compared_examples END AS compared_examples, CASE WHEN abs(t.predicted_examples) < 1e-30 THEN 0.0 WHEN t.predicted_examples > 1e30 THEN 1e30 WHEN t.predicted_examples < -1e30 THEN -1e30 ELSE t.predicted_examples END AS predicted_examples, CASE WHEN abs(t.error_sum) < 1e-30 THEN 0.0 WHEN t.error_sum > 1e30 THEN 1e30 WHEN t.error_sum < -1e30 THEN -1e30 ELSE t.error_sum END AS error_sum, CASE WHEN abs(t.abs_error_sum) < 1e-30 THEN 0.0 WHEN t.abs_error_sum > 1e30 THEN 1e30 WHEN t.abs_error_sum < -1e30 THEN -1e30 ELSE t.abs_error_sum END AS abs_error_sum, CASE WHEN abs(t.counted_examples) < 1e-30 THEN 0.0 WHEN t.counted_examples > 1e30 THEN 1e30 WHEN t.counted_examples < -1e30 THEN -1e30 ELSE t.counted_examples END AS counted_examples FROM run_days AS t) AS d ON d.run_id = r.id WHERE r.job_id = j.id) AS measured ON true
 LEFT JOIN LATERAL (SELECT (CASE WHEN SUM(d.num_one_gpu) > 0.0 THEN SUM(d.one_gpu_goodput_sum) / SUM(d.num_one_gpu) END) AS c0, (CASE WHEN SUM(d.num_compared) > 0.0 THEN SUM(d.fair_share_goodput_sum) / SUM(d.num_compared) END) AS c1
        FROM (SELECT t.job_id, t.day, LEAST(t.num_rounds, 1000000000000) AS num_rounds, CASE WHEN abs(t.gpus_sum) < 1e-30 THEN 0.0 WHEN t.gpus_sum > 1e30 THEN 1e30 WHEN t.gpus_sum < -1e30 THEN -1e30 ELSE t.gpus_sum END AS gpus_sum, CASE WHEN abs(t.fair_share_gpus_sum) < 1e-30 THEN 0.0 WHEN t.fair_share_gpus_sum > 1e30 THEN 1e30 WHEN t.fair_share_gpus_sum < -1e30 THEN -1e30 ELSE t.fair_share_gpus_sum END AS fair_share_gpus_sum, CASE WHEN abs(t.speedup_sum) < 1e-30 THEN 0.0 WHEN t.speedup_sum > 1e30 THEN 1e30 WHEN t.speedup_sum < -1e30 THEN -1e30 ELSE t.speedup_sum END AS speedup_sum, LEAST(t.num_compared, 1000000000000) AS num_compared, CASE WHEN abs(t.fair_share_goodput_sum) < 1e-30 THEN 0.0 WHEN t.fair_share_goodput_sum > 1e30 THEN 1e30 WHEN t.fair_share_goodput_sum < -1e30 THEN -1e30 ELSE t.fair_share_goodput_sum END AS fair_share_goodput_sum, LEAST(t.num_one_gpu, 1000000000000) AS num_one_gpu, CASE WHEN abs(t.one_gpu_goodput_sum) < 1e-30 THEN 0.0 WHEN t.one_gpu_goodput_sum > 1e30 THEN 1e30 WHEN t.one_gpu_goodput_sum < -1e30 THEN -1e30 ELSE t.one_gpu_goodput_sum END AS one_gpu_goodput_sum FROM job_days AS t) AS d WHERE d.job_id = j.id) AS decided ON true
 LEFT JOIN LATERAL (SELECT COUNT(*) AS c0
        FROM runs AS r WHERE r.job_id = j.id) AS begun ON true
 LEFT JOIN LATERAL (SELECT COUNT(*) AS c0, SUM(CASE WHEN x.requeued_at IS NULL THEN NULL
            WHEN x.checkpoint_s IS NULL THEN CASE WHEN (round((extract(epoch FROM (COALESCE(LEAST(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at)) - (x.requeued_at)))::numeric, 3)::double precision) < 0.0 THEN 0.0 ELSE (round((extract(epoch FROM (COALESCE(LEAST(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at)) - (x.requeued_at)))::numeric, 3)::double precision) END
            ELSE CASE WHEN (round((extract(epoch FROM (COALESCE(LEAST(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at)) - (x.checkpointed_at)))::numeric, 3)::double precision) + x.checkpoint_s < 0.0 THEN 0.0 ELSE (round((extract(epoch FROM (COALESCE(LEAST(x.first_step_at, x.confirmed_at), x.confirmed_at, x.first_step_at)) - (x.checkpointed_at)))::numeric, 3)::double precision) + x.checkpoint_s END
       END) AS c1
        FROM (
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
) AS x) AS moved ON true
 LEFT JOIN LATERAL (SELECT COUNT(*) AS c0, SUM(g.standstill_s) AS c1
        FROM reallocations AS r LEFT JOIN generations AS g ON g.job_id = r.job_id AND g.number = r.generation WHERE r.job_id = j.id AND r.step = 'confirmed' AND r.way = 'in_place') AS regrouped ON true

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
       (round((extract(epoch FROM (e.until) - (e.at)))::numeric, 3)::double precision) AS span_s,
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
           held.c0 AS num_gpus,
           held.c1 AS num_nodes,
           CAST(NULL AS DOUBLE PRECISION) AS duration_s,
           CAST(NULL AS INTEGER) AS run_number,
           CAST(NULL AS BIGINT) AS reallocation_id,
           CAST(NULL AS BIGINT) AS round_id,
           held.c2 AS detail
    FROM allocations AS a
    LEFT JOIN LATERAL (SELECT COALESCE(SUM(n.num_gpus), 0) AS c0, COUNT(*) AS c1, string_agg(n.place, '+') AS c2
        FROM (SELECT n.num_gpus, n.node_name || ':' || CAST(n.num_gpus AS TEXT) AS place FROM allocation_nodes AS n WHERE n.job_id = a.job_id AND n.number = a.number ORDER BY n.node_name) AS n) AS held ON true

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
           ran.c0, ran.c1,
           NULL, r.run_number, NULL, NULL, r.phase
    FROM runs AS r
    LEFT JOIN LATERAL (SELECT COALESCE(SUM(n.num_gpus), 0) AS c0, COUNT(*) AS c1
        FROM run_nodes AS n WHERE n.run_id = r.id) AS ran ON true

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
           gained.c0, CASE WHEN s.step = 'planned' THEN gained.c1 END,
           NULL, NULL, m.id, m.round_id,
           CASE WHEN s.step IN ('rolled_back', 'failed') AND m.reason IS NOT NULL THEN s.step || ': ' || m.reason
                ELSE s.step
           END
    FROM reallocation_steps AS s
    JOIN reallocations AS m ON m.id = s.reallocation_id
    LEFT JOIN LATERAL (SELECT SUM(n.num_gpus) AS c0, COUNT(*) AS c1
        FROM reallocation_nodes AS n WHERE n.reallocation_id = m.id AND n.side = 'target' AND s.step = 'planned') AS gained ON true

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
       COALESCE(r.timed_out, false) AS timed_out,
       r.solve_s,
       moved.c0 AS num_moves,
       moved.c1 AS num_confirmed,
       moved.c2 AS num_failed
FROM rounds AS r
LEFT JOIN LATERAL (SELECT COUNT(*) AS c0, COUNT(CASE WHEN m.step = 'confirmed' THEN 1 END) AS c1, COUNT(CASE WHEN m.step IN ('rolled_back', 'failed') THEN 1 END) AS c2
        FROM reallocations AS m WHERE m.round_id = r.id) AS moved ON true;

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
       LEAST(1.0, COALESCE((CASE WHEN SUM(x.gpu_s) > 0.0 THEN SUM(x.trained_gpu_s) / SUM(x.gpu_s) END), 0.0)) AS progress_share,
       SUM(x.counted_examples) AS examples,
       SUM(x.useful_examples) AS useful_examples,
       (CASE WHEN SUM(x.trained_s) > 0.0 THEN SUM(x.examples) / SUM(x.trained_s) END) AS throughput,
       (CASE WHEN SUM(x.measured_s) > 0.0 THEN SUM(x.efficiency_s) / SUM(x.measured_s) END) AS efficiency,
       (CASE WHEN SUM(x.measured_s) > 0.0 THEN SUM(x.useful_examples) / SUM(x.measured_s) END) AS goodput
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
FROM (SELECT t.job_id, t.number, t.day, CASE WHEN abs(t.allocated_s) < 1e-30 THEN 0.0 WHEN t.allocated_s > 1e30 THEN 1e30 WHEN t.allocated_s < -1e30 THEN -1e30 ELSE t.allocated_s END AS allocated_s FROM allocation_days AS t) AS d
UNION ALL
SELECT o.job_id,
       o.number,
       o.day,
       (round((extract(epoch FROM (LEAST(o.ended_at, ((((o.day) + 1))::timestamp AT TIME ZONE 'UTC'))) - (GREATEST(o.started_at, ((o.day)::timestamp AT TIME ZONE 'UTC')))))::numeric, 3)::double precision)
FROM (
    WITH RECURSIVE days AS (
        SELECT a.job_id, a.number, a.started_at, CURRENT_TIMESTAMP AS ended_at, ((a.started_at) AT TIME ZONE 'UTC')::date AS day
        FROM allocations AS a
        WHERE a.ended_at IS NULL AND a.started_at <= CURRENT_TIMESTAMP
        UNION ALL
        SELECT a.job_id, a.number, a.started_at, a.ended_at, ((a.day) + 1)
        FROM days AS a
        WHERE ((((a.day) + 1))::timestamp AT TIME ZONE 'UTC') < a.ended_at
    )
    SELECT * FROM days
) AS o) AS h
JOIN allocation_nodes AS n ON n.job_id = h.job_id AND n.number = h.number
UNION ALL
SELECT d.day, r.job_id, NULL, 0.0, d.trained_gpu_s, d.useful_gpu_s, d.trained_s, d.measured_s, d.examples,
       d.counted_examples, d.useful_examples, d.efficiency_s
FROM (SELECT t.run_id, t.day, LEAST(t.num_samples, 1000000000000) AS num_samples, CASE WHEN abs(t.progress) < 1e-30 THEN 0.0 WHEN t.progress > 1e30 THEN 1e30 WHEN t.progress < -1e30 THEN -1e30 ELSE t.progress END AS progress, CASE WHEN abs(t.trained_s) < 1e-30 THEN 0.0 WHEN t.trained_s > 1e30 THEN 1e30 WHEN t.trained_s < -1e30 THEN -1e30 ELSE t.trained_s END AS trained_s, CASE WHEN abs(t.trained_gpu_s) < 1e-30 THEN 0.0 WHEN t.trained_gpu_s > 1e30 THEN 1e30 WHEN t.trained_gpu_s < -1e30 THEN -1e30 ELSE t.trained_gpu_s END AS trained_gpu_s, CASE WHEN abs(t.examples) < 1e-30 THEN 0.0 WHEN t.examples > 1e30 THEN 1e30 WHEN t.examples < -1e30 THEN -1e30 ELSE t.examples END AS examples, CASE WHEN abs(t.measured_s) < 1e-30 THEN 0.0 WHEN t.measured_s > 1e30 THEN 1e30 WHEN t.measured_s < -1e30 THEN -1e30 ELSE t.measured_s END AS measured_s, CASE WHEN abs(t.useful_examples) < 1e-30 THEN 0.0 WHEN t.useful_examples > 1e30 THEN 1e30 WHEN t.useful_examples < -1e30 THEN -1e30 ELSE t.useful_examples END AS useful_examples, CASE WHEN abs(t.efficiency_s) < 1e-30 THEN 0.0 WHEN t.efficiency_s > 1e30 THEN 1e30 WHEN t.efficiency_s < -1e30 THEN -1e30 ELSE t.efficiency_s END AS efficiency_s, CASE WHEN abs(t.useful_gpu_s) < 1e-30 THEN 0.0 WHEN t.useful_gpu_s > 1e30 THEN 1e30 WHEN t.useful_gpu_s < -1e30 THEN -1e30 ELSE t.useful_gpu_s END AS useful_gpu_s, LEAST(t.num_compared, 1000000000000) AS num_compared, CASE WHEN abs(t.compared_s) < 1e-30 THEN 0.0 WHEN t.compared_s > 1e30 THEN 1e30 WHEN t.compared_s < -1e30 THEN -1e30 ELSE t.compared_s END AS compared_s, CASE WHEN abs(t.compared_examples) < 1e-30 THEN 0.0 WHEN t.compared_examples > 1e30 THEN 1e30 WHEN t.compared_examples < -1e30 THEN -1e30 ELSE t.compared_examples END AS compared_examples, CASE WHEN abs(t.predicted_examples) < 1e-30 THEN 0.0 WHEN t.predicted_examples > 1e30 THEN 1e30 WHEN t.predicted_examples < -1e30 THEN -1e30 ELSE t.predicted_examples END AS predicted_examples, CASE WHEN abs(t.error_sum) < 1e-30 THEN 0.0 WHEN t.error_sum > 1e30 THEN 1e30 WHEN t.error_sum < -1e30 THEN -1e30 ELSE t.error_sum END AS error_sum, CASE WHEN abs(t.abs_error_sum) < 1e-30 THEN 0.0 WHEN t.abs_error_sum > 1e30 THEN 1e30 WHEN t.abs_error_sum < -1e30 THEN -1e30 ELSE t.abs_error_sum END AS abs_error_sum, CASE WHEN abs(t.counted_examples) < 1e-30 THEN 0.0 WHEN t.counted_examples > 1e30 THEN 1e30 WHEN t.counted_examples < -1e30 THEN -1e30 ELSE t.counted_examples END AS counted_examples FROM run_days AS t) AS d
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
       LEAST(1.0, COALESCE((CASE WHEN SUM(x.gpu_s) > 0.0 THEN SUM(x.trained_gpu_s) / SUM(x.gpu_s) END), 0.0)) AS progress_share,
       SUM(x.counted_examples) AS examples,
       SUM(x.useful_examples) AS useful_examples,
       (CASE WHEN SUM(x.trained_s) > 0.0 THEN SUM(x.examples) / SUM(x.trained_s) END) AS throughput,
       (CASE WHEN SUM(x.measured_s) > 0.0 THEN SUM(x.efficiency_s) / SUM(x.measured_s) END) AS efficiency,
       (CASE WHEN SUM(x.measured_s) > 0.0 THEN SUM(x.useful_examples) / SUM(x.measured_s) END) AS goodput
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
FROM (SELECT t.job_id, t.number, t.day, CASE WHEN abs(t.allocated_s) < 1e-30 THEN 0.0 WHEN t.allocated_s > 1e30 THEN 1e30 WHEN t.allocated_s < -1e30 THEN -1e30 ELSE t.allocated_s END AS allocated_s FROM allocation_days AS t) AS d
UNION ALL
SELECT o.job_id,
       o.number,
       o.day,
       (round((extract(epoch FROM (LEAST(o.ended_at, ((((o.day) + 1))::timestamp AT TIME ZONE 'UTC'))) - (GREATEST(o.started_at, ((o.day)::timestamp AT TIME ZONE 'UTC')))))::numeric, 3)::double precision)
FROM (
    WITH RECURSIVE days AS (
        SELECT a.job_id, a.number, a.started_at, CURRENT_TIMESTAMP AS ended_at, ((a.started_at) AT TIME ZONE 'UTC')::date AS day
        FROM allocations AS a
        WHERE a.ended_at IS NULL AND a.started_at <= CURRENT_TIMESTAMP
        UNION ALL
        SELECT a.job_id, a.number, a.started_at, a.ended_at, ((a.day) + 1)
        FROM days AS a
        WHERE ((((a.day) + 1))::timestamp AT TIME ZONE 'UTC') < a.ended_at
    )
    SELECT * FROM days
) AS o) AS h
JOIN allocation_nodes AS n ON n.job_id = h.job_id AND n.number = h.number
UNION ALL
SELECT d.day, r.job_id, NULL, 0.0, d.trained_gpu_s, d.useful_gpu_s, d.trained_s, d.measured_s, d.examples,
       d.counted_examples, d.useful_examples, d.efficiency_s
FROM (SELECT t.run_id, t.day, LEAST(t.num_samples, 1000000000000) AS num_samples, CASE WHEN abs(t.progress) < 1e-30 THEN 0.0 WHEN t.progress > 1e30 THEN 1e30 WHEN t.progress < -1e30 THEN -1e30 ELSE t.progress END AS progress, CASE WHEN abs(t.trained_s) < 1e-30 THEN 0.0 WHEN t.trained_s > 1e30 THEN 1e30 WHEN t.trained_s < -1e30 THEN -1e30 ELSE t.trained_s END AS trained_s, CASE WHEN abs(t.trained_gpu_s) < 1e-30 THEN 0.0 WHEN t.trained_gpu_s > 1e30 THEN 1e30 WHEN t.trained_gpu_s < -1e30 THEN -1e30 ELSE t.trained_gpu_s END AS trained_gpu_s, CASE WHEN abs(t.examples) < 1e-30 THEN 0.0 WHEN t.examples > 1e30 THEN 1e30 WHEN t.examples < -1e30 THEN -1e30 ELSE t.examples END AS examples, CASE WHEN abs(t.measured_s) < 1e-30 THEN 0.0 WHEN t.measured_s > 1e30 THEN 1e30 WHEN t.measured_s < -1e30 THEN -1e30 ELSE t.measured_s END AS measured_s, CASE WHEN abs(t.useful_examples) < 1e-30 THEN 0.0 WHEN t.useful_examples > 1e30 THEN 1e30 WHEN t.useful_examples < -1e30 THEN -1e30 ELSE t.useful_examples END AS useful_examples, CASE WHEN abs(t.efficiency_s) < 1e-30 THEN 0.0 WHEN t.efficiency_s > 1e30 THEN 1e30 WHEN t.efficiency_s < -1e30 THEN -1e30 ELSE t.efficiency_s END AS efficiency_s, CASE WHEN abs(t.useful_gpu_s) < 1e-30 THEN 0.0 WHEN t.useful_gpu_s > 1e30 THEN 1e30 WHEN t.useful_gpu_s < -1e30 THEN -1e30 ELSE t.useful_gpu_s END AS useful_gpu_s, LEAST(t.num_compared, 1000000000000) AS num_compared, CASE WHEN abs(t.compared_s) < 1e-30 THEN 0.0 WHEN t.compared_s > 1e30 THEN 1e30 WHEN t.compared_s < -1e30 THEN -1e30 ELSE t.compared_s END AS compared_s, CASE WHEN abs(t.compared_examples) < 1e-30 THEN 0.0 WHEN t.compared_examples > 1e30 THEN 1e30 WHEN t.compared_examples < -1e30 THEN -1e30 ELSE t.compared_examples END AS compared_examples, CASE WHEN abs(t.predicted_examples) < 1e-30 THEN 0.0 WHEN t.predicted_examples > 1e30 THEN 1e30 WHEN t.predicted_examples < -1e30 THEN -1e30 ELSE t.predicted_examples END AS predicted_examples, CASE WHEN abs(t.error_sum) < 1e-30 THEN 0.0 WHEN t.error_sum > 1e30 THEN 1e30 WHEN t.error_sum < -1e30 THEN -1e30 ELSE t.error_sum END AS error_sum, CASE WHEN abs(t.abs_error_sum) < 1e-30 THEN 0.0 WHEN t.abs_error_sum > 1e30 THEN 1e30 WHEN t.abs_error_sum < -1e30 THEN -1e30 ELSE t.abs_error_sum END AS abs_error_sum, CASE WHEN abs(t.counted_examples) < 1e-30 THEN 0.0 WHEN t.counted_examples > 1e30 THEN 1e30 WHEN t.counted_examples < -1e30 THEN -1e30 ELSE t.counted_examples END AS counted_examples FROM run_days AS t) AS d
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
       COALESCE((CASE WHEN SUM(x.num_rounds) > 0.0 THEN SUM(x.gpus_sum) / SUM(x.num_rounds) END), 0.0) AS num_gpus,
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
FROM (SELECT t.job_id, t.number, t.day, CASE WHEN abs(t.allocated_s) < 1e-30 THEN 0.0 WHEN t.allocated_s > 1e30 THEN 1e30 WHEN t.allocated_s < -1e30 THEN -1e30 ELSE t.allocated_s END AS allocated_s FROM allocation_days AS t) AS d
UNION ALL
SELECT o.job_id,
       o.number,
       o.day,
       (round((extract(epoch FROM (LEAST(o.ended_at, ((((o.day) + 1))::timestamp AT TIME ZONE 'UTC'))) - (GREATEST(o.started_at, ((o.day)::timestamp AT TIME ZONE 'UTC')))))::numeric, 3)::double precision)
FROM (
    WITH RECURSIVE days AS (
        SELECT a.job_id, a.number, a.started_at, CURRENT_TIMESTAMP AS ended_at, ((a.started_at) AT TIME ZONE 'UTC')::date AS day
        FROM allocations AS a
        WHERE a.ended_at IS NULL AND a.started_at <= CURRENT_TIMESTAMP
        UNION ALL
        SELECT a.job_id, a.number, a.started_at, a.ended_at, ((a.day) + 1)
        FROM days AS a
        WHERE ((((a.day) + 1))::timestamp AT TIME ZONE 'UTC') < a.ended_at
    )
    SELECT * FROM days
) AS o
    ) AS h
    JOIN allocation_nodes AS n ON n.job_id = h.job_id AND n.number = h.number
    UNION ALL
    SELECT d.day, d.node_name, NULL, 0.0, d.gpus_sum, d.num_rounds, d.available_gpu_s
    FROM (SELECT t.node_name, t.day, LEAST(t.num_rounds, 1000000000000) AS num_rounds, CASE WHEN abs(t.gpus_sum) < 1e-30 THEN 0.0 WHEN t.gpus_sum > 1e30 THEN 1e30 WHEN t.gpus_sum < -1e30 THEN -1e30 ELSE t.gpus_sum END AS gpus_sum, CASE WHEN abs(t.available_gpu_s) < 1e-30 THEN 0.0 WHEN t.available_gpu_s > 1e30 THEN 1e30 WHEN t.available_gpu_s < -1e30 THEN -1e30 ELSE t.available_gpu_s END AS available_gpu_s FROM node_days AS t) AS d
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
       COALESCE(r.gpu_type, place.c0, '') AS gpu_type,
       size.c0 AS num_gpus,
       size.c1 AS num_nodes,
       d.num_compared AS num_samples,
       (CASE WHEN d.compared_s > 0.0 THEN d.compared_examples / d.compared_s END) AS throughput,
       (CASE WHEN d.compared_s > 0.0 THEN d.predicted_examples / d.compared_s END) AS predicted_throughput,
       d.error_sum / d.num_compared AS mean_error,
       d.abs_error_sum / d.num_compared AS mean_abs_error
FROM (SELECT t.run_id, t.day, LEAST(t.num_samples, 1000000000000) AS num_samples, CASE WHEN abs(t.progress) < 1e-30 THEN 0.0 WHEN t.progress > 1e30 THEN 1e30 WHEN t.progress < -1e30 THEN -1e30 ELSE t.progress END AS progress, CASE WHEN abs(t.trained_s) < 1e-30 THEN 0.0 WHEN t.trained_s > 1e30 THEN 1e30 WHEN t.trained_s < -1e30 THEN -1e30 ELSE t.trained_s END AS trained_s, CASE WHEN abs(t.trained_gpu_s) < 1e-30 THEN 0.0 WHEN t.trained_gpu_s > 1e30 THEN 1e30 WHEN t.trained_gpu_s < -1e30 THEN -1e30 ELSE t.trained_gpu_s END AS trained_gpu_s, CASE WHEN abs(t.examples) < 1e-30 THEN 0.0 WHEN t.examples > 1e30 THEN 1e30 WHEN t.examples < -1e30 THEN -1e30 ELSE t.examples END AS examples, CASE WHEN abs(t.measured_s) < 1e-30 THEN 0.0 WHEN t.measured_s > 1e30 THEN 1e30 WHEN t.measured_s < -1e30 THEN -1e30 ELSE t.measured_s END AS measured_s, CASE WHEN abs(t.useful_examples) < 1e-30 THEN 0.0 WHEN t.useful_examples > 1e30 THEN 1e30 WHEN t.useful_examples < -1e30 THEN -1e30 ELSE t.useful_examples END AS useful_examples, CASE WHEN abs(t.efficiency_s) < 1e-30 THEN 0.0 WHEN t.efficiency_s > 1e30 THEN 1e30 WHEN t.efficiency_s < -1e30 THEN -1e30 ELSE t.efficiency_s END AS efficiency_s, CASE WHEN abs(t.useful_gpu_s) < 1e-30 THEN 0.0 WHEN t.useful_gpu_s > 1e30 THEN 1e30 WHEN t.useful_gpu_s < -1e30 THEN -1e30 ELSE t.useful_gpu_s END AS useful_gpu_s, LEAST(t.num_compared, 1000000000000) AS num_compared, CASE WHEN abs(t.compared_s) < 1e-30 THEN 0.0 WHEN t.compared_s > 1e30 THEN 1e30 WHEN t.compared_s < -1e30 THEN -1e30 ELSE t.compared_s END AS compared_s, CASE WHEN abs(t.compared_examples) < 1e-30 THEN 0.0 WHEN t.compared_examples > 1e30 THEN 1e30 WHEN t.compared_examples < -1e30 THEN -1e30 ELSE t.compared_examples END AS compared_examples, CASE WHEN abs(t.predicted_examples) < 1e-30 THEN 0.0 WHEN t.predicted_examples > 1e30 THEN 1e30 WHEN t.predicted_examples < -1e30 THEN -1e30 ELSE t.predicted_examples END AS predicted_examples, CASE WHEN abs(t.error_sum) < 1e-30 THEN 0.0 WHEN t.error_sum > 1e30 THEN 1e30 WHEN t.error_sum < -1e30 THEN -1e30 ELSE t.error_sum END AS error_sum, CASE WHEN abs(t.abs_error_sum) < 1e-30 THEN 0.0 WHEN t.abs_error_sum > 1e30 THEN 1e30 WHEN t.abs_error_sum < -1e30 THEN -1e30 ELSE t.abs_error_sum END AS abs_error_sum, CASE WHEN abs(t.counted_examples) < 1e-30 THEN 0.0 WHEN t.counted_examples > 1e30 THEN 1e30 WHEN t.counted_examples < -1e30 THEN -1e30 ELSE t.counted_examples END AS counted_examples FROM run_days AS t) AS d
JOIN runs AS r ON r.id = d.run_id
JOIN jobs AS j ON j.id = r.job_id
JOIN users AS u ON u.user_id = j.user_id
LEFT JOIN LATERAL (SELECT COALESCE(SUM(n.num_gpus), 0) AS c0, COUNT(*) AS c1
        FROM run_nodes AS n WHERE n.run_id = r.id) AS size ON true
 LEFT JOIN LATERAL (SELECT CASE WHEN COUNT(DISTINCT k.gpu_type) = 1 THEN MIN(k.gpu_type) END AS c0
        FROM allocations AS a JOIN allocation_nodes AS n ON n.job_id = a.job_id AND n.number = a.number JOIN nodes AS k ON k.node_name = n.node_name WHERE a.job_id = r.job_id AND a.restart_count = r.restart_count) AS place ON true

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
       (CASE WHEN x.fair_share_goodput > 0.0 THEN x.goodput * x.trained_s / x.fair_share_goodput END) AS fair_share_s,
       (CASE WHEN (CASE WHEN x.fair_share_goodput > 0.0 THEN x.goodput * x.trained_s / x.fair_share_goodput END) > 0.0 THEN x.elapsed_s / (CASE WHEN x.fair_share_goodput > 0.0 THEN x.goodput * x.trained_s / x.fair_share_goodput END) END) AS rho
FROM (
    SELECT j.id AS job_id,
           j.slurm_job_id,
           j.name,
           u.user_name,
           j.account,
           j.state,
           j.submitted_at,
           j.finished_at,
           GREATEST(0.0, (round((extract(epoch FROM (COALESCE(j.finished_at, CURRENT_TIMESTAMP)) - (j.submitted_at)))::numeric, 3)::double precision)) AS elapsed_s,
           GREATEST(0.0, (round((extract(epoch FROM (COALESCE(j.started_at, j.finished_at, CURRENT_TIMESTAMP)) - (j.submitted_at)))::numeric, 3)::double precision)) AS waited_s,
           COALESCE(decided.c0, 0) AS num_rounds,
           decided.c1 AS fair_share_gpus,
           decided.c2 AS mean_gpus,
           decided.c3 AS mean_speedup,
           decided.c4 AS fair_share_goodput,
           measured.c0 AS goodput,
           measured.c1 AS trained_s
    FROM jobs AS j
    JOIN users AS u ON u.user_id = j.user_id
    LEFT JOIN LATERAL (SELECT (CASE WHEN SUM(d.measured_s) > 0.0 THEN SUM(d.useful_examples) / SUM(d.measured_s) END) AS c0, SUM(d.trained_s) AS c1
        FROM runs AS r JOIN (SELECT t.run_id, t.day, LEAST(t.num_samples, 1000000000000) AS num_samples, CASE WHEN abs(t.progress) < 1e-30 THEN 0.0 WHEN t.progress > 1e30 THEN 1e30 WHEN t.progress < -1e30 THEN -1e30 ELSE t.progress END AS progress, CASE WHEN abs(t.trained_s) < 1e-30 THEN 0.0 WHEN t.trained_s > 1e30 THEN 1e30 WHEN t.trained_s < -1e30 THEN -1e30 ELSE t.trained_s END AS trained_s, CASE WHEN abs(t.trained_gpu_s) < 1e-30 THEN 0.0 WHEN t.trained_gpu_s > 1e30 THEN 1e30 WHEN t.trained_gpu_s < -1e30 THEN -1e30 ELSE t.trained_gpu_s END AS trained_gpu_s, CASE WHEN abs(t.examples) < 1e-30 THEN 0.0 WHEN t.examples > 1e30 THEN 1e30 WHEN t.examples < -1e30 THEN -1e30 ELSE t.examples END AS examples, CASE WHEN abs(t.measured_s) < 1e-30 THEN 0.0 WHEN t.measured_s > 1e30 THEN 1e30 WHEN t.measured_s < -1e30 THEN -1e30 ELSE t.measured_s END AS measured_s, CASE WHEN abs(t.useful_examples) < 1e-30 THEN 0.0 WHEN t.useful_examples > 1e30 THEN 1e30 WHEN t.useful_examples < -1e30 THEN -1e30 ELSE t.useful_examples END AS useful_examples, CASE WHEN abs(t.efficiency_s) < 1e-30 THEN 0.0 WHEN t.efficiency_s > 1e30 THEN 1e30 WHEN t.efficiency_s < -1e30 THEN -1e30 ELSE t.efficiency_s END AS efficiency_s, CASE WHEN abs(t.useful_gpu_s) < 1e-30 THEN 0.0 WHEN t.useful_gpu_s > 1e30 THEN 1e30 WHEN t.useful_gpu_s < -1e30 THEN -1e30 ELSE t.useful_gpu_s END AS useful_gpu_s, LEAST(t.num_compared, 1000000000000) AS num_compared, CASE WHEN abs(t.compared_s) < 1e-30 THEN 0.0 WHEN t.compared_s > 1e30 THEN 1e30 WHEN t.compared_s < -1e30 THEN -1e30 ELSE t.compared_s END AS compared_s, CASE WHEN abs(t.compared_examples) < 1e-30 THEN 0.0 WHEN t.compared_examples > 1e30 THEN 1e30 WHEN t.compared_examples < -1e30 THEN -1e30 ELSE t.compared_examples END AS compared_examples, CASE WHEN abs(t.predicted_examples) < 1e-30 THEN 0.0 WHEN t.predicted_examples > 1e30 THEN 1e30 WHEN t.predicted_examples < -1e30 THEN -1e30 ELSE t.predicted_examples END AS predicted_examples, CASE WHEN abs(t.error_sum) < 1e-30 THEN 0.0 WHEN t.error_sum > 1e30 THEN 1e30 WHEN t.error_sum < -1e30 THEN -1e30 ELSE t.error_sum END AS error_sum, CASE WHEN abs(t.abs_error_sum) < 1e-30 THEN 0.0 WHEN t.abs_error_sum > 1e30 THEN 1e30 WHEN t.abs_error_sum < -1e30 THEN -1e30 ELSE t.abs_error_sum END AS abs_error_sum, CASE WHEN abs(t.counted_examples) < 1e-30 THEN 0.0 WHEN t.counted_examples > 1e30 THEN 1e30 WHEN t.counted_examples < -1e30 THEN -1e30 ELSE t.counted_examples END AS counted_examples FROM run_days AS t) AS d ON d.run_id = r.id WHERE r.job_id = j.id) AS measured ON true
 LEFT JOIN LATERAL (SELECT CAST(SUM(d.num_rounds) AS BIGINT) AS c0, (CASE WHEN SUM(CASE WHEN d.fair_share_gpus_sum > 0.0 THEN d.num_rounds END) > 0.0 THEN SUM(d.fair_share_gpus_sum) / SUM(CASE WHEN d.fair_share_gpus_sum > 0.0 THEN d.num_rounds END) END) AS c1, (CASE WHEN SUM(d.num_rounds) > 0.0 THEN SUM(d.gpus_sum) / SUM(d.num_rounds) END) AS c2, (CASE WHEN SUM(d.num_rounds) > 0.0 THEN SUM(d.speedup_sum) / SUM(d.num_rounds) END) AS c3, (CASE WHEN SUM(d.num_compared) > 0.0 THEN SUM(d.fair_share_goodput_sum) / SUM(d.num_compared) END) AS c4
        FROM (SELECT t.job_id, t.day, LEAST(t.num_rounds, 1000000000000) AS num_rounds, CASE WHEN abs(t.gpus_sum) < 1e-30 THEN 0.0 WHEN t.gpus_sum > 1e30 THEN 1e30 WHEN t.gpus_sum < -1e30 THEN -1e30 ELSE t.gpus_sum END AS gpus_sum, CASE WHEN abs(t.fair_share_gpus_sum) < 1e-30 THEN 0.0 WHEN t.fair_share_gpus_sum > 1e30 THEN 1e30 WHEN t.fair_share_gpus_sum < -1e30 THEN -1e30 ELSE t.fair_share_gpus_sum END AS fair_share_gpus_sum, CASE WHEN abs(t.speedup_sum) < 1e-30 THEN 0.0 WHEN t.speedup_sum > 1e30 THEN 1e30 WHEN t.speedup_sum < -1e30 THEN -1e30 ELSE t.speedup_sum END AS speedup_sum, LEAST(t.num_compared, 1000000000000) AS num_compared, CASE WHEN abs(t.fair_share_goodput_sum) < 1e-30 THEN 0.0 WHEN t.fair_share_goodput_sum > 1e30 THEN 1e30 WHEN t.fair_share_goodput_sum < -1e30 THEN -1e30 ELSE t.fair_share_goodput_sum END AS fair_share_goodput_sum, LEAST(t.num_one_gpu, 1000000000000) AS num_one_gpu, CASE WHEN abs(t.one_gpu_goodput_sum) < 1e-30 THEN 0.0 WHEN t.one_gpu_goodput_sum > 1e30 THEN 1e30 WHEN t.one_gpu_goodput_sum < -1e30 THEN -1e30 ELSE t.one_gpu_goodput_sum END AS one_gpu_goodput_sum FROM job_days AS t) AS d WHERE d.job_id = j.id) AS decided ON true

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
FROM (SELECT t.run_id, t.sequence, t.at, LEAST(t.global_batch_size, 1000000000000) AS global_batch_size, LEAST(t.atomic_batch_size, 1000000000000) AS atomic_batch_size, LEAST(t.accumulation_steps, 1000000000000) AS accumulation_steps, CASE WHEN abs(t.throughput) < 1e-30 THEN 0.0 WHEN t.throughput > 1e30 THEN 1e30 WHEN t.throughput < -1e30 THEN -1e30 ELSE t.throughput END AS throughput, CASE WHEN abs(t.predicted_throughput) < 1e-30 THEN 0.0 WHEN t.predicted_throughput > 1e30 THEN 1e30 WHEN t.predicted_throughput < -1e30 THEN -1e30 ELSE t.predicted_throughput END AS predicted_throughput, CASE WHEN abs(t.step_time_s) < 1e-30 THEN 0.0 WHEN t.step_time_s > 1e30 THEN 1e30 WHEN t.step_time_s < -1e30 THEN -1e30 ELSE t.step_time_s END AS step_time_s, CASE WHEN abs(t.efficiency) < 1e-30 THEN 0.0 WHEN t.efficiency > 1e30 THEN 1e30 WHEN t.efficiency < -1e30 THEN -1e30 ELSE t.efficiency END AS efficiency, CASE WHEN abs(t.progress) < 1e-30 THEN 0.0 WHEN t.progress > 1e30 THEN 1e30 WHEN t.progress < -1e30 THEN -1e30 ELSE t.progress END AS progress, LEAST(t.epoch, 1000000000000) AS epoch, LEAST(t.total_epochs, 1000000000000) AS total_epochs, LEAST(t.num_examples, 1000000000000) AS num_examples FROM goodput_samples AS t) AS s
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
       measured.c0 AS max_gpus_seen
FROM jobs AS j
JOIN users AS u ON u.user_id = j.user_id
LEFT JOIN LATERAL (SELECT COALESCE(MAX(m.max_gpus_seen), 0) AS c0
        FROM model_versions AS m WHERE m.job_id = j.id AND m.alpha_g IS NOT NULL) AS measured ON true

WHERE j.kind IS NOT NULL;

-- One row: today (UTC), and the days 7, 30 and 365 days before it, for queries about a time up to now.
CREATE VIEW calendar AS
SELECT ((CURRENT_TIMESTAMP AT TIME ZONE 'UTC')::date - 0) AS today,
       ((CURRENT_TIMESTAMP AT TIME ZONE 'UTC')::date - 7) AS week_ago,
       ((CURRENT_TIMESTAMP AT TIME ZONE 'UTC')::date - 30) AS month_ago,
       ((CURRENT_TIMESTAMP AT TIME ZONE 'UTC')::date - 365) AS year_ago;
