-- Schema 0004 of a pollux store on postgresql. Generated: pollux db schema postgresql
-- Times are UTC. A store is made by `pollux db init`, not from this text.

CREATE TABLE accounts (
    account TEXT NOT NULL,
    first_seen_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_accounts PRIMARY KEY (account)
);

COMMENT ON TABLE accounts IS 'Slurm accounts that jobs are charged to.';
COMMENT ON COLUMN accounts.account IS 'Slurm''s name of it; may be empty.';
COMMENT ON COLUMN accounts.first_seen_at IS 'When the daemon first saw a job of it.';

CREATE TABLE leases (
    name VARCHAR(32) NOT NULL,
    owner TEXT NOT NULL,
    acquired_at TIMESTAMP WITH TIME ZONE NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_leases PRIMARY KEY (name)
);

COMMENT ON TABLE leases IS 'Who may act: one daemon at a time.';
COMMENT ON COLUMN leases.name IS 'What the lease is for.';
COMMENT ON COLUMN leases.owner IS 'Who holds it.';
COMMENT ON COLUMN leases.acquired_at IS 'When this owner took it.';
COMMENT ON COLUMN leases.expires_at IS 'When it runs out unless prolonged.';

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
    timed_out BOOLEAN,
    CONSTRAINT pk_rounds PRIMARY KEY (id)
);

CREATE INDEX ix_rounds_at ON rounds (at);

COMMENT ON TABLE rounds IS 'One row per round that decided, with all that it was made from.';
COMMENT ON COLUMN rounds.id IS 'The round''s number; grows.';
COMMENT ON COLUMN rounds.at IS 'When it was decided.';
COMMENT ON COLUMN rounds.shadow IS 'Was it only recorded, not enacted?';
COMMENT ON COLUMN rounds.objective IS 'Name of the objective.';
COMMENT ON COLUMN rounds.solver IS 'Which solver answered.';
COMMENT ON COLUMN rounds.fitness IS 'The objective''s value at the decision.';
COMMENT ON COLUMN rounds.problem IS 'The problem as versioned JSON, for replays.';
COMMENT ON COLUMN rounds.decision IS 'The decision as versioned JSON, for replays.';
COMMENT ON COLUMN rounds.upper_bound IS 'No decision that serves as many jobs has a larger value; null if none was proved.';
COMMENT ON COLUMN rounds.gap IS '(upper_bound - fitness) / upper_bound; null without a bound.';
COMMENT ON COLUMN rounds.timed_out IS 'Did the time limit cut the search short? Null before schema 0003.';

CREATE TABLE users (
    user_id BIGINT NOT NULL,
    user_name TEXT NOT NULL,
    CONSTRAINT pk_users PRIMARY KEY (user_id),
    CONSTRAINT ck_users_user_id CHECK (user_id >= 0)
);

COMMENT ON TABLE users IS 'People who own jobs, as Slurm authenticated them.';
COMMENT ON COLUMN users.user_id IS 'Unix user id.';
COMMENT ON COLUMN users.user_name IS 'Login name last seen with this id.';

CREATE TABLE gpu_prices (
    round_id BIGINT NOT NULL,
    gpu_type TEXT NOT NULL,
    price DOUBLE PRECISION NOT NULL,
    CONSTRAINT pk_gpu_prices PRIMARY KEY (round_id, gpu_type),
    CONSTRAINT fk_gpu_prices_round_id_rounds FOREIGN KEY(round_id) REFERENCES rounds (id) ON DELETE CASCADE
);

COMMENT ON TABLE gpu_prices IS 'What one more GPU of a type would have added to a round''s objective.';
COMMENT ON COLUMN gpu_prices.round_id IS 'The round.';
COMMENT ON COLUMN gpu_prices.gpu_type IS 'Slurm''s name of it; may be empty.';
COMMENT ON COLUMN gpu_prices.price IS 'Shadow price, in the objective''s sum.';

CREATE TABLE jobs (
    id BIGSERIAL NOT NULL,
    slurm_job_id VARCHAR(64) NOT NULL,
    token_sha256 VARCHAR(64) NOT NULL,
    user_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    account TEXT NOT NULL,
    partition TEXT NOT NULL,
    min_gpus INTEGER NOT NULL,
    max_gpus INTEGER,
    allow_unconfirmed BOOLEAN NOT NULL,
    cpus_per_gpu INTEGER NOT NULL,
    memory_per_gpu_mb BIGINT NOT NULL,
    state VARCHAR(32) NOT NULL,
    submitted_at TIMESTAMP WITH TIME ZONE NOT NULL,
    registered_at TIMESTAMP WITH TIME ZONE NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_jobs PRIMARY KEY (id),
    CONSTRAINT ck_jobs_token_sha256 CHECK (length(token_sha256) = 64),
    CONSTRAINT ck_jobs_min_gpus CHECK (min_gpus >= 1),
    CONSTRAINT ck_jobs_max_gpus CHECK (max_gpus IS NULL OR max_gpus >= min_gpus),
    CONSTRAINT ck_jobs_cpus_per_gpu CHECK (cpus_per_gpu >= 0),
    CONSTRAINT ck_jobs_memory_per_gpu_mb CHECK (memory_per_gpu_mb >= 0),
    CONSTRAINT ck_jobs_finished_at CHECK ((finished_at IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled', 'timeout'))),
    CONSTRAINT uq_jobs_token_sha256 UNIQUE (token_sha256),
    CONSTRAINT fk_jobs_user_id_users FOREIGN KEY(user_id) REFERENCES users (user_id),
    CONSTRAINT fk_jobs_account_accounts FOREIGN KEY(account) REFERENCES accounts (account),
    CONSTRAINT ck_jobs_state CHECK (state IN ('pending', 'running', 'completing', 'suspended', 'completed', 'failed', 'cancelled', 'timeout'))
);

CREATE INDEX ix_jobs_account_submitted_at ON jobs (account, submitted_at);

CREATE INDEX ix_jobs_slurm_job_id_id ON jobs (slurm_job_id, id);

CREATE INDEX ix_jobs_user_id_submitted_at ON jobs (user_id, submitted_at);

CREATE UNIQUE INDEX uq_jobs_unfinished_slurm_job_id ON jobs (slurm_job_id) WHERE finished_at IS NULL;

COMMENT ON TABLE jobs IS 'Adaptive jobs, one row each, with the terms from their Slurm Comment.';
COMMENT ON COLUMN jobs.id IS 'This database''s number of the job.';
COMMENT ON COLUMN jobs.slurm_job_id IS 'Slurm''s job number as text.';
COMMENT ON COLUMN jobs.token_sha256 IS 'SHA-256 (hex) of the token that the job reports with.';
COMMENT ON COLUMN jobs.user_id IS 'The owner.';
COMMENT ON COLUMN jobs.name IS 'Job name.';
COMMENT ON COLUMN jobs.account IS 'Slurm account it is charged to; may be empty.';
COMMENT ON COLUMN jobs.partition IS 'Slurm partition.';
COMMENT ON COLUMN jobs.min_gpus IS 'Fewest GPUs it may be given.';
COMMENT ON COLUMN jobs.max_gpus IS 'Most GPUs; null for no bound.';
COMMENT ON COLUMN jobs.allow_unconfirmed IS 'May it be requeued when its checkpoint was not confirmed in time?';
COMMENT ON COLUMN jobs.cpus_per_gpu IS 'CPUs that come with each GPU.';
COMMENT ON COLUMN jobs.memory_per_gpu_mb IS 'Memory that comes with each GPU, in MiB.';
COMMENT ON COLUMN jobs.state IS 'State at the last look at Slurm.';
COMMENT ON COLUMN jobs.submitted_at IS 'When it was first submitted.';
COMMENT ON COLUMN jobs.registered_at IS 'When the daemon first saw it.';
COMMENT ON COLUMN jobs.started_at IS 'When it first started; null before.';
COMMENT ON COLUMN jobs.finished_at IS 'When it ended for good; null while it lives.';

CREATE TABLE allocations (
    job_id BIGINT NOT NULL,
    number INTEGER NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_allocations PRIMARY KEY (job_id, number),
    CONSTRAINT ck_allocations_number CHECK (number >= 0),
    CONSTRAINT ck_allocations_ended_at CHECK (ended_at >= started_at),
    CONSTRAINT fk_allocations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX ix_allocations_started_at ON allocations (started_at);

CREATE UNIQUE INDEX uq_allocations_open ON allocations (job_id) WHERE ended_at IS NULL;

COMMENT ON TABLE allocations IS 'Stretches of time during which a job held the same GPUs.';
COMMENT ON COLUMN allocations.job_id IS 'The job.';
COMMENT ON COLUMN allocations.number IS 'Which stretch of the job: 0, 1, ...';
COMMENT ON COLUMN allocations.started_at IS 'When the stretch began.';
COMMENT ON COLUMN allocations.ended_at IS 'When it ended; null while it lasts.';

CREATE TABLE decisions (
    round_id BIGINT NOT NULL,
    job_id BIGINT NOT NULL,
    num_gpus INTEGER NOT NULL,
    num_nodes INTEGER NOT NULL,
    speedup DOUBLE PRECISION NOT NULL,
    goodput DOUBLE PRECISION,
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
    pinned_because TEXT,
    excluded TEXT,
    explanation TEXT,
    CONSTRAINT pk_decisions PRIMARY KEY (round_id, job_id),
    CONSTRAINT ck_decisions_num_gpus CHECK (num_gpus >= 0),
    CONSTRAINT ck_decisions_num_nodes CHECK (num_nodes >= 0 AND num_nodes <= num_gpus),
    CONSTRAINT ck_decisions_runner_up CHECK ((runner_up_gpus IS NULL) = (runner_up_nodes IS NULL)),
    CONSTRAINT fk_decisions_round_id_rounds FOREIGN KEY(round_id) REFERENCES rounds (id) ON DELETE CASCADE,
    CONSTRAINT fk_decisions_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX ix_decisions_job_id_round_id ON decisions (job_id, round_id);

COMMENT ON TABLE decisions IS 'What a round gave to each job, and why.';
COMMENT ON COLUMN decisions.round_id IS 'The round.';
COMMENT ON COLUMN decisions.job_id IS 'The job.';
COMMENT ON COLUMN decisions.num_gpus IS 'GPUs given in all.';
COMMENT ON COLUMN decisions.num_nodes IS 'Nodes they lie on.';
COMMENT ON COLUMN decisions.speedup IS 'Predicted goodput over that at the job''s fair share.';
COMMENT ON COLUMN decisions.goodput IS 'Predicted goodput, examples per second; null without a model.';
COMMENT ON COLUMN decisions.penalty IS 'Restart penalty applied, 0 to 1; 1 is none.';
COMMENT ON COLUMN decisions.bound_by IS 'What kept the job from more.';
COMMENT ON COLUMN decisions.runner_up_gpus IS 'GPUs of the next best size.';
COMMENT ON COLUMN decisions.runner_up_nodes IS 'Nodes of the next best size.';
COMMENT ON COLUMN decisions.runner_up_speedup IS 'Speedup at that size.';
COMMENT ON COLUMN decisions.runner_up_gpu_type IS 'Type of the GPUs of that size.';
COMMENT ON COLUMN decisions.runner_up_cost IS 'What others would have paid for it beyond cost, in the objective''s sum.';
COMMENT ON COLUMN decisions.cost IS 'What others pay for these GPUs at the round''s prices.';
COMMENT ON COLUMN decisions.gpu_type IS 'Type of the GPUs given; null for none, several or a nameless one.';
COMMENT ON COLUMN decisions.global_batch_size IS 'Predicted best M, examples per step; null without a model.';
COMMENT ON COLUMN decisions.atomic_batch_size IS 'Its m, per GPU and pass.';
COMMENT ON COLUMN decisions.accumulation_steps IS 'Its s, extra passes per step.';
COMMENT ON COLUMN decisions.declared_gain IS 'Factor by which what the job declares changed its weight; null where it counts not.';
COMMENT ON COLUMN decisions.declaration_doubt IS 'Why what the job declares did not count; null where it did.';
COMMENT ON COLUMN decisions.pinned_because IS 'Why the job had to stay as it was; null where it had not, or nobody said.';
COMMENT ON COLUMN decisions.excluded IS 'Why the job was left as it is; null when it took part.';
COMMENT ON COLUMN decisions.explanation IS 'All of this in one line; null before schema 0003.';

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
    CONSTRAINT ck_declarations_total_epochs CHECK (total_epochs >= 0),
    CONSTRAINT ck_declarations_epoch CHECK (epoch >= 0),
    CONSTRAINT ck_declarations_progress CHECK (progress >= 0),
    CONSTRAINT ck_declarations_bounds CHECK (progress <= 1e18 AND least_total_progress <= 1e27),
    CONSTRAINT ck_declarations_least_total_progress CHECK (least_total_progress >= 0),
    CONSTRAINT fk_declarations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

COMMENT ON TABLE declarations IS 'Every number of epochs that a job has declared, in the order in which it first did.';
COMMENT ON COLUMN declarations.job_id IS 'The job.';
COMMENT ON COLUMN declarations.number IS 'Which declaration of the job: 0, 1, ...';
COMMENT ON COLUMN declarations.total_epochs IS 'Epochs declared.';
COMMENT ON COLUMN declarations.at IS 'When it was first declared.';
COMMENT ON COLUMN declarations.epoch IS 'The epoch under way then.';
COMMENT ON COLUMN declarations.progress IS 'Scale-invariant iterations done then.';
COMMENT ON COLUMN declarations.least_total_progress IS 'Least iterations in all that it ever amounted to; null before the first epoch ended.';

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
    CONSTRAINT pk_model_versions PRIMARY KEY (id),
    CONSTRAINT ck_model_versions_initial_batch_size CHECK (initial_batch_size >= 1),
    CONSTRAINT ck_model_versions_max_batch_size CHECK (max_batch_size >= initial_batch_size),
    CONSTRAINT ck_model_versions_min_atomic CHECK (min_atomic >= 1),
    CONSTRAINT ck_model_versions_max_atomic CHECK (max_atomic >= min_atomic),
    CONSTRAINT ck_model_versions_statistics CHECK ((grad_sqr IS NULL) = (grad_var IS NULL)),
    CONSTRAINT ck_model_versions_statistics_sign CHECK (grad_sqr >= 0 AND grad_var >= 0),
    CONSTRAINT ck_model_versions_throughput CHECK ((beta_g IS NULL) = (alpha_g IS NULL) AND (alpha_n IS NULL) = (alpha_g IS NULL) AND (beta_n IS NULL) = (alpha_g IS NULL) AND (alpha_l IS NULL) = (alpha_g IS NULL) AND (beta_l IS NULL) = (alpha_g IS NULL) AND (gamma IS NULL) = (alpha_g IS NULL)),
    CONSTRAINT ck_model_versions_throughput_sign CHECK (alpha_g >= 0 AND beta_g >= 0 AND alpha_n >= 0 AND beta_n >= 0 AND alpha_l >= 0 AND beta_l >= 0 AND gamma >= 0),
    CONSTRAINT ck_model_versions_seen CHECK (max_gpus_seen >= 0 AND max_nodes_seen >= 0),
    CONSTRAINT ck_model_versions_bounds CHECK (grad_sqr <= 1e30 AND grad_var <= 1e30 AND noise_low <= 1e30 AND noise_high <= 1e30 AND alpha_g <= 1e6 AND beta_g <= 1e6 AND alpha_n <= 1e6 AND beta_n <= 1e6 AND alpha_l <= 1e6 AND beta_l <= 1e6 AND gamma <= 10),
    CONSTRAINT fk_model_versions_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX ix_model_versions_job_id_id ON model_versions (job_id, id);

CREATE INDEX ix_model_versions_job_id_run_number_id ON model_versions (job_id, run_number, id);

COMMENT ON TABLE model_versions IS 'Goodput models of a job; a row is added only when something in it changed.';
COMMENT ON COLUMN model_versions.id IS 'Number of the version; grows.';
COMMENT ON COLUMN model_versions.job_id IS 'The job.';
COMMENT ON COLUMN model_versions.at IS 'When it was reported.';
COMMENT ON COLUMN model_versions.initial_batch_size IS 'M0, examples.';
COMMENT ON COLUMN model_versions.max_batch_size IS 'Largest global batch allowed, examples; null for always M0.';
COMMENT ON COLUMN model_versions.min_atomic IS 'Smallest batch per GPU and pass, examples.';
COMMENT ON COLUMN model_versions.max_atomic IS 'Largest batch per GPU and pass, examples; null for no bound.';
COMMENT ON COLUMN model_versions.accumulation IS 'May gradients be accumulated?';
COMMENT ON COLUMN model_versions.grad_sqr IS 'Squared norm of the true gradient; null before it is known.';
COMMENT ON COLUMN model_versions.grad_var IS 'Trace of the gradient''s covariance at batch M0; null before it is known.';
COMMENT ON COLUMN model_versions.alpha_g IS 'Fixed time of a pass, seconds.';
COMMENT ON COLUMN model_versions.beta_g IS 'Time of a pass per example, seconds.';
COMMENT ON COLUMN model_versions.alpha_n IS 'Synchronisation across nodes, seconds.';
COMMENT ON COLUMN model_versions.beta_n IS 'The same per replica above two, seconds.';
COMMENT ON COLUMN model_versions.alpha_l IS 'Synchronisation on one node, seconds.';
COMMENT ON COLUMN model_versions.beta_l IS 'The same per replica above two, seconds.';
COMMENT ON COLUMN model_versions.gamma IS 'Overlap of computation and synchronisation, 1 (none) to 10.';
COMMENT ON COLUMN model_versions.max_gpus_seen IS 'Most GPUs the job says it has run on.';
COMMENT ON COLUMN model_versions.max_nodes_seen IS 'Most nodes the job says it has run on.';
COMMENT ON COLUMN model_versions.noise_low IS 'Low end of the noise scale''s interval, examples; null where none was told.';
COMMENT ON COLUMN model_versions.noise_high IS 'Its high end, examples; null where nothing is excluded upwards.';
COMMENT ON COLUMN model_versions.run_number IS 'The run that reported it; null before schema 0003.';

CREATE TABLE reallocations (
    id BIGSERIAL NOT NULL,
    job_id BIGINT NOT NULL,
    round_id BIGINT,
    step VARCHAR(32) NOT NULL,
    moves_running BOOLEAN NOT NULL,
    from_restart_count INTEGER NOT NULL,
    reason TEXT,
    CONSTRAINT pk_reallocations PRIMARY KEY (id),
    CONSTRAINT ck_reallocations_from_restart_count CHECK (from_restart_count >= 0),
    CONSTRAINT fk_reallocations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    CONSTRAINT fk_reallocations_round_id_rounds FOREIGN KEY(round_id) REFERENCES rounds (id) ON DELETE SET NULL,
    CONSTRAINT ck_reallocations_step CHECK (step IN ('planned', 'checkpoint_requested', 'checkpointed', 'requeued', 'reshaped', 'released', 'running', 'confirmed', 'rolled_back', 'failed'))
);

CREATE INDEX ix_reallocations_job_id_id ON reallocations (job_id, id);

CREATE INDEX ix_reallocations_round_id ON reallocations (round_id);

CREATE UNIQUE INDEX uq_reallocations_open ON reallocations (job_id) WHERE step NOT IN ('confirmed', 'rolled_back', 'failed');

COMMENT ON TABLE reallocations IS 'A job changing allocation: the daemon''s journal.';
COMMENT ON COLUMN reallocations.id IS 'The reallocation''s number; grows.';
COMMENT ON COLUMN reallocations.job_id IS 'The job.';
COMMENT ON COLUMN reallocations.round_id IS 'The round that decided it.';
COMMENT ON COLUMN reallocations.step IS 'Where it stands; the last of its steps.';
COMMENT ON COLUMN reallocations.moves_running IS 'Is a running job requeued, rather than a waiting one reshaped?';
COMMENT ON COLUMN reallocations.from_restart_count IS 'Slurm''s restart count of the job when it was planned.';
COMMENT ON COLUMN reallocations.reason IS 'Why it ended as it did.';

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
    CONSTRAINT ck_runs_run_number CHECK (run_number >= 0),
    CONSTRAINT ck_runs_restart_count CHECK (restart_count >= 0),
    CONSTRAINT ck_runs_last_report_at CHECK (last_report_at >= first_report_at),
    CONSTRAINT ck_runs_last_sequence CHECK (last_sequence >= 0),
    CONSTRAINT ck_runs_num_steps CHECK (num_steps >= 0),
    CONSTRAINT ck_runs_first_step_s CHECK (first_step_s > 0),
    CONSTRAINT ck_runs_first_step_at CHECK ((first_step_s IS NULL) = (first_step_at IS NULL)),
    CONSTRAINT ck_runs_restore_s CHECK (restore_s >= 0),
    CONSTRAINT ck_runs_bounds CHECK (first_step_s <= 1e7 AND restore_s <= 1e7),
    CONSTRAINT fk_runs_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    CONSTRAINT ck_runs_phase CHECK (phase IN ('starting', 'training', 'waiting', 'finished'))
);

COMMENT ON TABLE runs IS 'One row per start of a job that reported.';
COMMENT ON COLUMN runs.id IS 'This database''s number of the run.';
COMMENT ON COLUMN runs.job_id IS 'The job.';
COMMENT ON COLUMN runs.run_number IS 'The run''s claim on its checkpoint directory: 0, 1, ...';
COMMENT ON COLUMN runs.restart_count IS 'Slurm''s restart count during the run.';
COMMENT ON COLUMN runs.phase IS 'Where the run stood at its last report.';
COMMENT ON COLUMN runs.first_report_at IS 'When its first report came.';
COMMENT ON COLUMN runs.last_report_at IS 'When its last report came.';
COMMENT ON COLUMN runs.last_sequence IS 'Number of its last report.';
COMMENT ON COLUMN runs.num_steps IS 'Optimizer steps as last reported.';
COMMENT ON COLUMN runs.first_step_s IS 'Process start to the end of the first optimizer step, seconds; null before.';
COMMENT ON COLUMN runs.first_step_at IS 'When a report first told of that step.';
COMMENT ON COLUMN runs.restore_s IS 'Part of it spent reading the checkpoint, seconds.';
COMMENT ON COLUMN runs.gpu_type IS 'Slurm''s name of the GPUs it ran on; null if unknown, nameless or of several types.';

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

COMMENT ON TABLE allocation_nodes IS 'GPUs held on each node during a stretch.';
COMMENT ON COLUMN allocation_nodes.job_id IS 'The job.';
COMMENT ON COLUMN allocation_nodes.number IS 'Which stretch of the job.';
COMMENT ON COLUMN allocation_nodes.node_name IS 'The node.';
COMMENT ON COLUMN allocation_nodes.num_gpus IS 'GPUs held there.';

CREATE TABLE checkpoints (
    run_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    reallocation_id BIGINT,
    blocked_s DOUBLE PRECISION NOT NULL,
    size_bytes BIGINT NOT NULL,
    CONSTRAINT pk_checkpoints PRIMARY KEY (run_id, sequence),
    CONSTRAINT fk_checkpoints_reallocation_id_reallocations FOREIGN KEY(reallocation_id) REFERENCES reallocations (id) ON DELETE SET NULL,
    CONSTRAINT ck_checkpoints_sequence CHECK (sequence >= 0),
    CONSTRAINT ck_checkpoints_blocked_s CHECK (blocked_s >= 0),
    CONSTRAINT ck_checkpoints_bounds CHECK (blocked_s <= 1e7),
    CONSTRAINT ck_checkpoints_size_bytes CHECK (size_bytes >= 0),
    CONSTRAINT fk_checkpoints_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

CREATE UNIQUE INDEX uq_checkpoints_reallocation_id ON checkpoints (reallocation_id);

COMMENT ON TABLE checkpoints IS 'Checkpoints that runs confirmed.';
COMMENT ON COLUMN checkpoints.run_id IS 'The run.';
COMMENT ON COLUMN checkpoints.sequence IS 'Number of the report that confirmed it.';
COMMENT ON COLUMN checkpoints.at IS 'When it was confirmed.';
COMMENT ON COLUMN checkpoints.reallocation_id IS 'The reallocation that it let go on; null if it answered none.';
COMMENT ON COLUMN checkpoints.blocked_s IS 'How long training stood still, seconds.';
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

COMMENT ON TABLE decision_nodes IS 'Where the GPUs of a decision lie.';
COMMENT ON COLUMN decision_nodes.round_id IS 'The round.';
COMMENT ON COLUMN decision_nodes.job_id IS 'The job.';
COMMENT ON COLUMN decision_nodes.node_name IS 'The node.';
COMMENT ON COLUMN decision_nodes.num_gpus IS 'GPUs there.';

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
    CONSTRAINT pk_goodput_samples PRIMARY KEY (run_id, sequence),
    CONSTRAINT ck_goodput_samples_sequence CHECK (sequence >= 0),
    CONSTRAINT ck_goodput_samples_batch CHECK ((global_batch_size IS NULL) = (atomic_batch_size IS NULL) AND (global_batch_size IS NULL) = (accumulation_steps IS NULL)),
    CONSTRAINT ck_goodput_samples_global_batch_size CHECK (global_batch_size >= 1),
    CONSTRAINT ck_goodput_samples_atomic_batch_size CHECK (atomic_batch_size >= 1),
    CONSTRAINT ck_goodput_samples_accumulation_steps CHECK (accumulation_steps >= 0),
    CONSTRAINT ck_goodput_samples_throughput CHECK (throughput > 0),
    CONSTRAINT ck_goodput_samples_predicted_throughput CHECK (predicted_throughput > 0),
    CONSTRAINT ck_goodput_samples_step_time_s CHECK (step_time_s > 0),
    CONSTRAINT ck_goodput_samples_bounds CHECK (throughput <= 1e12 AND predicted_throughput <= 1e12 AND step_time_s <= 1e7 AND progress <= 1e18),
    CONSTRAINT ck_goodput_samples_efficiency CHECK (efficiency > 0 AND efficiency <= 1),
    CONSTRAINT ck_goodput_samples_progress CHECK (progress >= 0),
    CONSTRAINT ck_goodput_samples_epoch CHECK (epoch >= 0),
    CONSTRAINT ck_goodput_samples_total_epochs CHECK (total_epochs >= 0),
    CONSTRAINT fk_goodput_samples_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

CREATE INDEX ix_goodput_samples_at ON goodput_samples (at);

COMMENT ON TABLE goodput_samples IS 'What runs measured, a row per report after the start.';
COMMENT ON COLUMN goodput_samples.run_id IS 'The run.';
COMMENT ON COLUMN goodput_samples.sequence IS 'Number of the report within the run.';
COMMENT ON COLUMN goodput_samples.at IS 'When it was reported.';
COMMENT ON COLUMN goodput_samples.global_batch_size IS 'M, examples per step.';
COMMENT ON COLUMN goodput_samples.atomic_batch_size IS 'm, examples per GPU and pass.';
COMMENT ON COLUMN goodput_samples.accumulation_steps IS 's, extra passes per step.';
COMMENT ON COLUMN goodput_samples.throughput IS 'Measured, examples per second.';
COMMENT ON COLUMN goodput_samples.predicted_throughput IS 'What the model in force predicted for it, examples per second.';
COMMENT ON COLUMN goodput_samples.step_time_s IS 'Mean time of a step, seconds.';
COMMENT ON COLUMN goodput_samples.efficiency IS 'Statistical efficiency, 0 to 1; goodput is throughput times efficiency.';
COMMENT ON COLUMN goodput_samples.progress IS 'Scale-invariant iterations done.';
COMMENT ON COLUMN goodput_samples.epoch IS 'The epoch under way, from 0.';
COMMENT ON COLUMN goodput_samples.total_epochs IS 'Epochs declared; null if none were.';

CREATE TABLE reallocation_nodes (
    reallocation_id BIGINT NOT NULL,
    side VARCHAR(32) NOT NULL,
    node_name TEXT NOT NULL,
    num_gpus INTEGER NOT NULL,
    CONSTRAINT pk_reallocation_nodes PRIMARY KEY (reallocation_id, side, node_name),
    CONSTRAINT ck_reallocation_nodes_num_gpus CHECK (num_gpus >= 1),
    CONSTRAINT fk_reallocation_nodes_reallocation_id_reallocations FOREIGN KEY(reallocation_id) REFERENCES reallocations (id) ON DELETE CASCADE,
    CONSTRAINT ck_reallocation_nodes_side CHECK (side IN ('source', 'target'))
);

COMMENT ON TABLE reallocation_nodes IS 'GPUs per node before (source) and after (target) a reallocation.';
COMMENT ON COLUMN reallocation_nodes.reallocation_id IS 'The reallocation.';
COMMENT ON COLUMN reallocation_nodes.side IS 'source or target.';
COMMENT ON COLUMN reallocation_nodes.node_name IS 'The node.';
COMMENT ON COLUMN reallocation_nodes.num_gpus IS 'GPUs there.';

CREATE TABLE reallocation_steps (
    reallocation_id BIGINT NOT NULL,
    step VARCHAR(32) NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_reallocation_steps PRIMARY KEY (reallocation_id, step),
    CONSTRAINT fk_reallocation_steps_reallocation_id_reallocations FOREIGN KEY(reallocation_id) REFERENCES reallocations (id) ON DELETE CASCADE,
    CONSTRAINT ck_reallocation_steps_step CHECK (step IN ('planned', 'checkpoint_requested', 'checkpointed', 'requeued', 'reshaped', 'released', 'running', 'confirmed', 'rolled_back', 'failed'))
);

COMMENT ON TABLE reallocation_steps IS 'When a reallocation entered each of its steps.';
COMMENT ON COLUMN reallocation_steps.reallocation_id IS 'The reallocation.';
COMMENT ON COLUMN reallocation_steps.step IS 'The step.';
COMMENT ON COLUMN reallocation_steps.at IS 'When it was journaled.';

CREATE TABLE run_nodes (
    run_id BIGINT NOT NULL,
    node_rank INTEGER NOT NULL,
    num_gpus INTEGER NOT NULL,
    CONSTRAINT pk_run_nodes PRIMARY KEY (run_id, node_rank),
    CONSTRAINT ck_run_nodes_node_rank CHECK (node_rank >= 0),
    CONSTRAINT ck_run_nodes_num_gpus CHECK (num_gpus >= 1),
    CONSTRAINT fk_run_nodes_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

COMMENT ON TABLE run_nodes IS 'GPUs that a run really used on each of its nodes, by node rank.';
COMMENT ON COLUMN run_nodes.run_id IS 'The run.';
COMMENT ON COLUMN run_nodes.node_rank IS 'Place of the node in rank order: 0, 1, ...';
COMMENT ON COLUMN run_nodes.num_gpus IS 'GPUs used there.';

-- One row per reallocation: from what to what, how it ended, and where its time went, in seconds.
-- checkpoint_s is the standstill for the checkpoint, hold_s from there to the release, slurm_s from requeue to
-- start (it overlaps hold_s), launch_s from start to the first step, total_s the whole standstill.
CREATE VIEW reallocation_history AS
WITH times AS (
    SELECT reallocation_id,
           MIN(at) AS planned_at,
           MAX(at) AS last_step_at,
           MAX(CASE WHEN step = 'checkpointed' THEN at END) AS checkpointed_at,
           MAX(CASE WHEN step = 'requeued' THEN at END) AS requeued_at,
           MAX(CASE WHEN step = 'released' THEN at END) AS released_at,
           MAX(CASE WHEN step = 'running' THEN at END) AS running_at,
           MAX(CASE WHEN step = 'confirmed' THEN at END) AS confirmed_at
    FROM reallocation_steps
    GROUP BY reallocation_id
),
sizes AS (
    SELECT reallocation_id,
           SUM(CASE WHEN side = 'source' THEN num_gpus ELSE 0 END) AS source_gpus,
           SUM(CASE WHEN side = 'source' THEN 1 ELSE 0 END) AS source_nodes,
           SUM(CASE WHEN side = 'target' THEN num_gpus ELSE 0 END) AS target_gpus,
           SUM(CASE WHEN side = 'target' THEN 1 ELSE 0 END) AS target_nodes
    FROM reallocation_nodes
    GROUP BY reallocation_id
),
stepped AS (
    SELECT r.id AS reallocation_id,
           (SELECT n.first_step_at
            FROM runs AS n
            WHERE n.job_id = r.job_id
              AND n.restart_count > r.from_restart_count
              AND n.first_step_at IS NOT NULL
            ORDER BY n.run_number
            LIMIT 1) AS first_step_at
    FROM reallocations AS r
),
ends AS (
    SELECT t.reallocation_id,
           CASE WHEN s.first_step_at IS NULL OR t.confirmed_at < s.first_step_at
                THEN t.confirmed_at
                ELSE s.first_step_at
           END AS stepped_at
    FROM times AS t
    JOIN stepped AS s ON s.reallocation_id = t.reallocation_id
),
costs AS (
    SELECT t.reallocation_id,
           c.blocked_s AS checkpoint_s,
           (extract(epoch FROM (t.released_at) - (t.checkpointed_at))::double precision) AS hold_s,
           (extract(epoch FROM (t.running_at) - (t.requeued_at))::double precision) AS slurm_s,
           (extract(epoch FROM (e.stepped_at) - (t.running_at))::double precision) AS launch_s,
           CASE WHEN t.requeued_at IS NULL THEN NULL
                WHEN c.blocked_s IS NULL THEN (extract(epoch FROM (e.stepped_at) - (t.requeued_at))::double precision)
                ELSE (extract(epoch FROM (e.stepped_at) - (t.checkpointed_at))::double precision) + c.blocked_s
           END AS total_s
    FROM times AS t
    JOIN ends AS e ON e.reallocation_id = t.reallocation_id
    LEFT JOIN checkpoints AS c ON c.reallocation_id = t.reallocation_id
)
SELECT r.id AS reallocation_id,
       r.job_id,
       j.slurm_job_id,
       u.user_name,
       j.account,
       r.round_id,
       r.step,
       r.reason,
       r.moves_running,
       t.planned_at,
       t.last_step_at,
       COALESCE(z.source_gpus, 0) AS source_gpus,
       COALESCE(z.source_nodes, 0) AS source_nodes,
       COALESCE(z.target_gpus, 0) AS target_gpus,
       COALESCE(z.target_nodes, 0) AS target_nodes,
       c.checkpoint_s,
       CASE WHEN c.hold_s < 0.0 THEN 0.0 ELSE c.hold_s END AS hold_s,
       CASE WHEN c.slurm_s < 0.0 THEN 0.0 ELSE c.slurm_s END AS slurm_s,
       CASE WHEN c.launch_s < 0.0 THEN 0.0 ELSE c.launch_s END AS launch_s,
       CASE WHEN c.total_s < 0.0 THEN 0.0 ELSE c.total_s END AS total_s
FROM reallocations AS r
JOIN jobs AS j ON j.id = r.job_id
JOIN users AS u ON u.user_id = j.user_id
JOIN times AS t ON t.reallocation_id = r.id
JOIN costs AS c ON c.reallocation_id = r.id
LEFT JOIN sizes AS z ON z.reallocation_id = r.id;

-- One row per job: what it got, what it made of it, and what moving it cost.
-- gpu_hours counts a stretch that still lasts up to now; the means are over the job's goodput samples, which
-- come at even intervals; lost_s adds up the standstill of the confirmed reallocations.
CREATE VIEW job_goodput AS
WITH gpu_time AS (
    SELECT s.job_id,
           SUM(s.duration_s * n.num_gpus) / 3600.0 AS gpu_hours
    FROM (
        SELECT job_id, number,
               (extract(epoch FROM (COALESCE(ended_at, CURRENT_TIMESTAMP)) - (started_at))::double precision) AS duration_s
        FROM allocations
    ) AS s
    JOIN allocation_nodes AS n ON n.job_id = s.job_id AND n.number = s.number
    GROUP BY s.job_id
),
measured AS (
    SELECT r.job_id,
           COUNT(*) AS num_samples,
           AVG(s.throughput) AS throughput,
           AVG(s.efficiency) AS efficiency,
           AVG(s.throughput * s.efficiency) AS goodput,
           MAX(s.progress) AS progress
    FROM goodput_samples AS s
    JOIN runs AS r ON r.id = s.run_id
    GROUP BY r.job_id
),
moves AS (
    SELECT job_id,
           COUNT(*) AS restarts,
           SUM(total_s) AS lost_s
    FROM reallocation_history
    WHERE step = 'confirmed' AND moves_running
    GROUP BY job_id
)
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
       (extract(epoch FROM (j.finished_at) - (j.submitted_at))::double precision) AS submit_to_finish_s,
       COALESCE(g.gpu_hours, 0.0) AS gpu_hours,
       COALESCE(m.num_samples, 0) AS num_samples,
       m.throughput,
       m.efficiency,
       m.goodput,
       m.progress,
       COALESCE(v.restarts, 0) AS restarts,
       COALESCE(v.lost_s, 0.0) AS lost_s
FROM jobs AS j
JOIN users AS u ON u.user_id = j.user_id
LEFT JOIN gpu_time AS g ON g.job_id = j.id
LEFT JOIN measured AS m ON m.job_id = j.id
LEFT JOIN moves AS v ON v.job_id = j.id;
