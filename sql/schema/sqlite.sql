-- Schema 0004 of a pollux store on sqlite. Generated: pollux db schema sqlite
-- Times are UTC. A store is made by `pollux db init`, not from this text.

-- accounts: Slurm accounts that jobs are charged to.
--   account: Slurm's name of it; may be empty.
--   first_seen_at: When the daemon first saw a job of it.

CREATE TABLE accounts (
    account TEXT NOT NULL,
    first_seen_at DATETIME NOT NULL,
    CONSTRAINT pk_accounts PRIMARY KEY (account)
);

-- leases: Who may act: one daemon at a time.
--   name: What the lease is for.
--   owner: Who holds it.
--   acquired_at: When this owner took it.
--   expires_at: When it runs out unless prolonged.

CREATE TABLE leases (
    name VARCHAR(32) NOT NULL,
    owner TEXT NOT NULL,
    acquired_at DATETIME NOT NULL,
    expires_at DATETIME NOT NULL,
    CONSTRAINT pk_leases PRIMARY KEY (name)
);

-- rounds: One row per round that decided, with all that it was made from.
--   id: The round's number; grows.
--   at: When it was decided.
--   shadow: Was it only recorded, not enacted?
--   objective: Name of the objective.
--   solver: Which solver answered.
--   fitness: The objective's value at the decision.
--   problem: The problem as versioned JSON, for replays.
--   decision: The decision as versioned JSON, for replays.
--   upper_bound: No decision that serves as many jobs has a larger value; null if none was proved.
--   gap: (upper_bound - fitness) / upper_bound; null without a bound.
--   timed_out: Did the time limit cut the search short? Null before schema 0003.

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
    timed_out BOOLEAN,
    CONSTRAINT pk_rounds PRIMARY KEY (id),
    CONSTRAINT ck_rounds_shadow CHECK (shadow IN (0, 1))
);

CREATE INDEX ix_rounds_at ON rounds (at);

-- users: People who own jobs, as Slurm authenticated them.
--   user_id: Unix user id.
--   user_name: Login name last seen with this id.

CREATE TABLE users (
    user_id INTEGER NOT NULL,
    user_name TEXT NOT NULL,
    CONSTRAINT pk_users PRIMARY KEY (user_id),
    CONSTRAINT ck_users_user_id CHECK (user_id >= 0)
);

-- gpu_prices: What one more GPU of a type would have added to a round's objective.
--   round_id: The round.
--   gpu_type: Slurm's name of it; may be empty.
--   price: Shadow price, in the objective's sum.

CREATE TABLE gpu_prices (
    round_id INTEGER NOT NULL,
    gpu_type TEXT NOT NULL,
    price DOUBLE NOT NULL,
    CONSTRAINT pk_gpu_prices PRIMARY KEY (round_id, gpu_type),
    CONSTRAINT fk_gpu_prices_round_id_rounds FOREIGN KEY(round_id) REFERENCES rounds (id) ON DELETE CASCADE
);

-- jobs: Adaptive jobs, one row each, with the terms from their Slurm Comment.
--   id: This database's number of the job.
--   slurm_job_id: Slurm's job number as text.
--   token_sha256: SHA-256 (hex) of the token that the job reports with.
--   user_id: The owner.
--   name: Job name.
--   account: Slurm account it is charged to; may be empty.
--   partition: Slurm partition.
--   min_gpus: Fewest GPUs it may be given.
--   max_gpus: Most GPUs; null for no bound.
--   allow_unconfirmed: May it be requeued when its checkpoint was not confirmed in time?
--   cpus_per_gpu: CPUs that come with each GPU.
--   memory_per_gpu_mb: Memory that comes with each GPU, in MiB.
--   state: State at the last look at Slurm.
--   submitted_at: When it was first submitted.
--   registered_at: When the daemon first saw it.
--   started_at: When it first started; null before.
--   finished_at: When it ended for good; null while it lives.

CREATE TABLE jobs (
    id INTEGER NOT NULL,
    slurm_job_id VARCHAR(64) NOT NULL,
    token_sha256 VARCHAR(64) NOT NULL,
    user_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    account TEXT NOT NULL,
    partition TEXT NOT NULL,
    min_gpus INTEGER NOT NULL,
    max_gpus INTEGER,
    allow_unconfirmed BOOLEAN NOT NULL,
    cpus_per_gpu INTEGER NOT NULL,
    memory_per_gpu_mb INTEGER NOT NULL,
    state VARCHAR(32) NOT NULL,
    submitted_at DATETIME NOT NULL,
    registered_at DATETIME NOT NULL,
    started_at DATETIME,
    finished_at DATETIME,
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
    CONSTRAINT ck_jobs_allow_unconfirmed CHECK (allow_unconfirmed IN (0, 1)),
    CONSTRAINT ck_jobs_state CHECK (state IN ('pending', 'running', 'completing', 'suspended', 'completed', 'failed', 'cancelled', 'timeout'))
);

CREATE INDEX ix_jobs_account_submitted_at ON jobs (account, submitted_at);

CREATE INDEX ix_jobs_slurm_job_id_id ON jobs (slurm_job_id, id);

CREATE INDEX ix_jobs_user_id_submitted_at ON jobs (user_id, submitted_at);

CREATE UNIQUE INDEX uq_jobs_unfinished_slurm_job_id ON jobs (slurm_job_id) WHERE finished_at IS NULL;

-- allocations: Stretches of time during which a job held the same GPUs.
--   job_id: The job.
--   number: Which stretch of the job: 0, 1, ...
--   started_at: When the stretch began.
--   ended_at: When it ended; null while it lasts.

CREATE TABLE allocations (
    job_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    started_at DATETIME NOT NULL,
    ended_at DATETIME,
    CONSTRAINT pk_allocations PRIMARY KEY (job_id, number),
    CONSTRAINT ck_allocations_number CHECK (number >= 0),
    CONSTRAINT ck_allocations_ended_at CHECK (ended_at >= started_at),
    CONSTRAINT fk_allocations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX ix_allocations_started_at ON allocations (started_at);

CREATE UNIQUE INDEX uq_allocations_open ON allocations (job_id) WHERE ended_at IS NULL;

-- decisions: What a round gave to each job, and why.
--   round_id: The round.
--   job_id: The job.
--   num_gpus: GPUs given in all.
--   num_nodes: Nodes they lie on.
--   speedup: Predicted goodput over that at the job's fair share.
--   goodput: Predicted goodput, examples per second; null without a model.
--   penalty: Restart penalty applied, 0 to 1; 1 is none.
--   bound_by: What kept the job from more.
--   runner_up_gpus: GPUs of the next best size.
--   runner_up_nodes: Nodes of the next best size.
--   runner_up_speedup: Speedup at that size.
--   runner_up_gpu_type: Type of the GPUs of that size.
--   runner_up_cost: What others would have paid for it beyond cost, in the objective's sum.
--   cost: What others pay for these GPUs at the round's prices.
--   gpu_type: Type of the GPUs given; null for none, several or a nameless one.
--   global_batch_size: Predicted best M, examples per step; null without a model.
--   atomic_batch_size: Its m, per GPU and pass.
--   accumulation_steps: Its s, extra passes per step.
--   declared_gain: Factor by which what the job declares changed its weight; null where it counts not.
--   declaration_doubt: Why what the job declares did not count; null where it did.
--   pinned_because: Why the job had to stay as it was; null where it had not, or nobody said.
--   excluded: Why the job was left as it is; null when it took part.
--   explanation: All of this in one line; null before schema 0003.

CREATE TABLE decisions (
    round_id INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    num_gpus INTEGER NOT NULL,
    num_nodes INTEGER NOT NULL,
    speedup DOUBLE NOT NULL,
    goodput DOUBLE,
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

-- declarations: Every number of epochs that a job has declared, in the order in which it first did.
--   job_id: The job.
--   number: Which declaration of the job: 0, 1, ...
--   total_epochs: Epochs declared.
--   at: When it was first declared.
--   epoch: The epoch under way then.
--   progress: Scale-invariant iterations done then.
--   least_total_progress: Least iterations in all that it ever amounted to; null before the first epoch ended.

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
    CONSTRAINT ck_declarations_total_epochs CHECK (total_epochs >= 0),
    CONSTRAINT ck_declarations_epoch CHECK (epoch >= 0),
    CONSTRAINT ck_declarations_progress CHECK (progress >= 0),
    CONSTRAINT ck_declarations_bounds CHECK (progress <= 1e18 AND least_total_progress <= 1e27),
    CONSTRAINT ck_declarations_least_total_progress CHECK (least_total_progress >= 0),
    CONSTRAINT fk_declarations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

-- model_versions: Goodput models of a job; a row is added only when something in it changed.
--   id: Number of the version; grows.
--   job_id: The job.
--   at: When it was reported.
--   initial_batch_size: M0, examples.
--   max_batch_size: Largest global batch allowed, examples; null for always M0.
--   min_atomic: Smallest batch per GPU and pass, examples.
--   max_atomic: Largest batch per GPU and pass, examples; null for no bound.
--   accumulation: May gradients be accumulated?
--   grad_sqr: Squared norm of the true gradient; null before it is known.
--   grad_var: Trace of the gradient's covariance at batch M0; null before it is known.
--   alpha_g: Fixed time of a pass, seconds.
--   beta_g: Time of a pass per example, seconds.
--   alpha_n: Synchronisation across nodes, seconds.
--   beta_n: The same per replica above two, seconds.
--   alpha_l: Synchronisation on one node, seconds.
--   beta_l: The same per replica above two, seconds.
--   gamma: Overlap of computation and synchronisation, 1 (none) to 10.
--   max_gpus_seen: Most GPUs the job says it has run on.
--   max_nodes_seen: Most nodes the job says it has run on.
--   noise_low: Low end of the noise scale's interval, examples; null where none was told.
--   noise_high: Its high end, examples; null where nothing is excluded upwards.
--   run_number: The run that reported it; null before schema 0003.

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
    CONSTRAINT fk_model_versions_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    CONSTRAINT ck_model_versions_accumulation CHECK (accumulation IN (0, 1))
);

CREATE INDEX ix_model_versions_job_id_id ON model_versions (job_id, id);

CREATE INDEX ix_model_versions_job_id_run_number_id ON model_versions (job_id, run_number, id);

-- reallocations: A job changing allocation: the daemon's journal.
--   id: The reallocation's number; grows.
--   job_id: The job.
--   round_id: The round that decided it.
--   step: Where it stands; the last of its steps.
--   moves_running: Is a running job requeued, rather than a waiting one reshaped?
--   from_restart_count: Slurm's restart count of the job when it was planned.
--   reason: Why it ended as it did.

CREATE TABLE reallocations (
    id INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    round_id INTEGER,
    step VARCHAR(32) NOT NULL,
    moves_running BOOLEAN NOT NULL,
    from_restart_count INTEGER NOT NULL,
    reason TEXT,
    CONSTRAINT pk_reallocations PRIMARY KEY (id),
    CONSTRAINT ck_reallocations_from_restart_count CHECK (from_restart_count >= 0),
    CONSTRAINT fk_reallocations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    CONSTRAINT fk_reallocations_round_id_rounds FOREIGN KEY(round_id) REFERENCES rounds (id) ON DELETE SET NULL,
    CONSTRAINT ck_reallocations_step CHECK (step IN ('planned', 'checkpoint_requested', 'checkpointed', 'requeued', 'reshaped', 'released', 'running', 'confirmed', 'rolled_back', 'failed')),
    CONSTRAINT ck_reallocations_moves_running CHECK (moves_running IN (0, 1))
);

CREATE INDEX ix_reallocations_job_id_id ON reallocations (job_id, id);

CREATE INDEX ix_reallocations_round_id ON reallocations (round_id);

CREATE UNIQUE INDEX uq_reallocations_open ON reallocations (job_id) WHERE step NOT IN ('confirmed', 'rolled_back', 'failed');

-- runs: One row per start of a job that reported.
--   id: This database's number of the run.
--   job_id: The job.
--   run_number: The run's claim on its checkpoint directory: 0, 1, ...
--   restart_count: Slurm's restart count during the run.
--   phase: Where the run stood at its last report.
--   first_report_at: When its first report came.
--   last_report_at: When its last report came.
--   last_sequence: Number of its last report.
--   num_steps: Optimizer steps as last reported.
--   first_step_s: Process start to the end of the first optimizer step, seconds; null before.
--   first_step_at: When a report first told of that step.
--   restore_s: Part of it spent reading the checkpoint, seconds.
--   gpu_type: Slurm's name of the GPUs it ran on; null if unknown, nameless or of several types.

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

-- allocation_nodes: GPUs held on each node during a stretch.
--   job_id: The job.
--   number: Which stretch of the job.
--   node_name: The node.
--   num_gpus: GPUs held there.

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
--   sequence: Number of the report that confirmed it.
--   at: When it was confirmed.
--   reallocation_id: The reallocation that it let go on; null if it answered none.
--   blocked_s: How long training stood still, seconds.
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
    CONSTRAINT ck_checkpoints_sequence CHECK (sequence >= 0),
    CONSTRAINT ck_checkpoints_blocked_s CHECK (blocked_s >= 0),
    CONSTRAINT ck_checkpoints_bounds CHECK (blocked_s <= 1e7),
    CONSTRAINT ck_checkpoints_size_bytes CHECK (size_bytes >= 0),
    CONSTRAINT fk_checkpoints_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

CREATE UNIQUE INDEX uq_checkpoints_reallocation_id ON checkpoints (reallocation_id);

-- decision_nodes: Where the GPUs of a decision lie.
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

-- goodput_samples: What runs measured, a row per report after the start.
--   run_id: The run.
--   sequence: Number of the report within the run.
--   at: When it was reported.
--   global_batch_size: M, examples per step.
--   atomic_batch_size: m, examples per GPU and pass.
--   accumulation_steps: s, extra passes per step.
--   throughput: Measured, examples per second.
--   predicted_throughput: What the model in force predicted for it, examples per second.
--   step_time_s: Mean time of a step, seconds.
--   efficiency: Statistical efficiency, 0 to 1; goodput is throughput times efficiency.
--   progress: Scale-invariant iterations done.
--   epoch: The epoch under way, from 0.
--   total_epochs: Epochs declared; null if none were.

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

-- reallocation_nodes: GPUs per node before (source) and after (target) a reallocation.
--   reallocation_id: The reallocation.
--   side: source or target.
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
    CONSTRAINT ck_reallocation_nodes_side CHECK (side IN ('source', 'target'))
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
    CONSTRAINT ck_reallocation_steps_step CHECK (step IN ('planned', 'checkpoint_requested', 'checkpointed', 'requeued', 'reshaped', 'released', 'running', 'confirmed', 'rolled_back', 'failed'))
);

-- run_nodes: GPUs that a run really used on each of its nodes, by node rank.
--   run_id: The run.
--   node_rank: Place of the node in rank order: 0, 1, ...
--   num_gpus: GPUs used there.

CREATE TABLE run_nodes (
    run_id INTEGER NOT NULL,
    node_rank INTEGER NOT NULL,
    num_gpus INTEGER NOT NULL,
    CONSTRAINT pk_run_nodes PRIMARY KEY (run_id, node_rank),
    CONSTRAINT ck_run_nodes_node_rank CHECK (node_rank >= 0),
    CONSTRAINT ck_run_nodes_num_gpus CHECK (num_gpus >= 1),
    CONSTRAINT fk_run_nodes_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

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
           ((julianday(t.released_at) - julianday(t.checkpointed_at)) * 86400.0) AS hold_s,
           ((julianday(t.running_at) - julianday(t.requeued_at)) * 86400.0) AS slurm_s,
           ((julianday(e.stepped_at) - julianday(t.running_at)) * 86400.0) AS launch_s,
           CASE WHEN t.requeued_at IS NULL THEN NULL
                WHEN c.blocked_s IS NULL THEN ((julianday(e.stepped_at) - julianday(t.requeued_at)) * 86400.0)
                ELSE ((julianday(e.stepped_at) - julianday(t.checkpointed_at)) * 86400.0) + c.blocked_s
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
               ((julianday(COALESCE(ended_at, CURRENT_TIMESTAMP)) - julianday(started_at)) * 86400.0) AS duration_s
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
       ((julianday(j.finished_at) - julianday(j.submitted_at)) * 86400.0) AS submit_to_finish_s,
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
