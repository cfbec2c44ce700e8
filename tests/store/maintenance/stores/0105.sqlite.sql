BEGIN TRANSACTION;
CREATE TABLE accounts (
	account TEXT NOT NULL, 
	first_seen_at DATETIME NOT NULL, 
	CONSTRAINT pk_accounts PRIMARY KEY (account)
);
INSERT INTO "accounts" VALUES('vision','2026-03-01 12:00:00.000000');
CREATE TABLE allocation_days (
	job_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	day DATE NOT NULL, 
	allocated_s DOUBLE NOT NULL, 
	CONSTRAINT pk_allocation_days PRIMARY KEY (job_id, number, day), 
	CONSTRAINT fk_allocation_days_job_id_number_allocations FOREIGN KEY(job_id, number) REFERENCES allocations (job_id, number) ON DELETE CASCADE, 
	CONSTRAINT ck_allocation_days_allocated_s CHECK (allocated_s >= 0)
);
INSERT INTO "allocation_days" VALUES(1,0,'2026-03-01',29.0);
CREATE TABLE allocation_nodes (
	job_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	node_name TEXT NOT NULL, 
	num_gpus INTEGER NOT NULL, 
	CONSTRAINT pk_allocation_nodes PRIMARY KEY (job_id, number, node_name), 
	CONSTRAINT fk_allocation_nodes_job_id_number_allocations FOREIGN KEY(job_id, number) REFERENCES allocations (job_id, number) ON DELETE CASCADE, 
	CONSTRAINT ck_allocation_nodes_num_gpus CHECK (num_gpus >= 1)
);
INSERT INTO "allocation_nodes" VALUES(1,0,'n0',2);
INSERT INTO "allocation_nodes" VALUES(1,1,'n1',3);
INSERT INTO "allocation_nodes" VALUES(1,1,'n2',1);
INSERT INTO "allocation_nodes" VALUES(2,0,'n0',2);
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
INSERT INTO "allocations" VALUES(1,0,'2026-03-01 12:00:01.000000','2026-03-01 12:00:30.000000',0,1);
INSERT INTO "allocations" VALUES(1,1,'2026-03-01 12:00:30.000000',NULL,0,0);
INSERT INTO "allocations" VALUES(2,0,'2026-03-01 12:01:41.000000',NULL,0,1);
CREATE TABLE checkpoints (
	run_id INTEGER NOT NULL, 
	sequence INTEGER NOT NULL, 
	at DATETIME NOT NULL, 
	reallocation_id INTEGER, 
	blocked_s DOUBLE NOT NULL, 
	size_bytes INTEGER NOT NULL, 
	CONSTRAINT pk_checkpoints PRIMARY KEY (run_id, sequence), 
	CONSTRAINT ck_checkpoints_sequence CHECK (sequence BETWEEN 0 AND 1000000000000), 
	CONSTRAINT ck_checkpoints_blocked_s CHECK (blocked_s BETWEEN 0.0 AND 10000000.0), 
	CONSTRAINT ck_checkpoints_size_bytes CHECK (size_bytes BETWEEN 0 AND 1152921504606846976), 
	CONSTRAINT fk_checkpoints_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE, 
	CONSTRAINT fk_checkpoints_reallocation_id_reallocations FOREIGN KEY(reallocation_id) REFERENCES reallocations (id) ON DELETE SET NULL
);
INSERT INTO "checkpoints" VALUES(1,1000,'2026-03-01 12:00:23.000000',1,0.5,4096);
CREATE TABLE decision_nodes (
	round_id INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	node_name TEXT NOT NULL, 
	num_gpus INTEGER NOT NULL, 
	CONSTRAINT pk_decision_nodes PRIMARY KEY (round_id, job_id, node_name), 
	CONSTRAINT fk_decision_nodes_round_id_job_id_decisions FOREIGN KEY(round_id, job_id) REFERENCES decisions (round_id, job_id) ON DELETE CASCADE, 
	CONSTRAINT ck_decision_nodes_num_gpus CHECK (num_gpus >= 1)
);
INSERT INTO "decision_nodes" VALUES(1,1,'m1',1);
INSERT INTO "decision_nodes" VALUES(1,1,'n1',3);
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
INSERT INTO "decisions" VALUES(1,1,4,2,1.75,320.5,7.19101123595505669055e+02,0.9,'capacity',3,1,1.5,'a100',-0.25,1.0,'t4',256,64,1,1.5,NULL,'it is being moved',NULL,'job 1: m1:1+n1:3 (t4); speedup 1.75; goodput 320.5/s; restart factor 0.90; bound by capacity (it is being moved); next best 3 a100 GPUs on 1 node, speedup 1.5, at a price of -0.25 to others; what it declares changes its weight by a factor of 1.50');
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
INSERT INTO "declarations" VALUES(1,0,5,'2026-03-01 12:00:02.000000',1,8.0,40.0);
INSERT INTO "declarations" VALUES(2,0,5,'2026-03-01 12:01:50.000000',1,8.0,40.0);
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
INSERT INTO "generation_members" VALUES(1,1,0,'base.0','n0',1);
INSERT INTO "generation_members" VALUES(1,1,1,'wing7.0','n7',0);
INSERT INTO "generation_members" VALUES(2,1,0,'0.0.n0.0','n0',1);
INSERT INTO "generation_members" VALUES(2,1,1,'0.0.n0.1','n0',1);
INSERT INTO "generation_members" VALUES(2,1,2,'0.2.n1.0','n1',1);
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
INSERT INTO "generations" VALUES(1,1,'planned','2026-03-01 12:00:40.000000',0,NULL,NULL,NULL);
INSERT INTO "generations" VALUES(2,1,'regrouped','2026-03-01 12:02:09.000000',0,'10.0.0.7:41213',0.5,NULL);
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
INSERT INTO "goodput_samples" VALUES(1,1,'2026-03-01 12:00:02.000000',256,64,1,200.0,190.0,1.28,0.8,8.0,1,5,NULL);
INSERT INTO "goodput_samples" VALUES(1,1000,'2026-03-01 12:00:23.000000',256,64,1,200.0,190.0,1.28,0.8,8000.0,1,5,NULL);
INSERT INTO "goodput_samples" VALUES(2,2,'2026-03-01 12:00:35.000000',256,64,1,200.0,190.0,1.28,0.8,16.0,1,5,NULL);
INSERT INTO "goodput_samples" VALUES(3,1,'2026-03-01 12:01:50.000000',256,64,1,200.0,190.0,1.28,0.8,8.0,1,5,NULL);
CREATE TABLE gpu_prices (
	round_id INTEGER NOT NULL, 
	gpu_type TEXT NOT NULL, 
	price DOUBLE NOT NULL, 
	CONSTRAINT pk_gpu_prices PRIMARY KEY (round_id, gpu_type), 
	CONSTRAINT fk_gpu_prices_round_id_rounds FOREIGN KEY(round_id) REFERENCES rounds (id) ON DELETE CASCADE
);
INSERT INTO "gpu_prices" VALUES(1,'a100',0.5);
INSERT INTO "gpu_prices" VALUES(1,'t4',0.25);
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
INSERT INTO "job_days" VALUES(1,'2026-03-01',1,4.0,4.0,1.75,1,1.83142857142857138795e+02,1,7.19101123595505669055e+02);
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
	cpus_per_gpu INTEGER NOT NULL, 
	memory_per_gpu_mb INTEGER NOT NULL, 
	state VARCHAR(32) NOT NULL, 
	submitted_at DATETIME NOT NULL, 
	registered_at DATETIME NOT NULL, 
	started_at DATETIME, 
	finished_at DATETIME, 
	time_limit_s DOUBLE, 
	required_nodes TEXT, 
	not_moved_reason TEXT, 
	estimated BOOLEAN DEFAULT 0 NOT NULL, in_place BOOLEAN DEFAULT false NOT NULL CONSTRAINT ck_jobs_in_place CHECK (in_place IN (0, 1)), submitted_gpus INTEGER, kind VARCHAR(32), finish_by DATETIME, promise VARCHAR(32) CONSTRAINT ck_jobs_promise CHECK (promise IN ('unknown', 'refused', 'accepted', 'ended')), promise_gpus INTEGER, promise_finish_at DATETIME, promise_reason TEXT, 
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
	CONSTRAINT ck_jobs_state CHECK (state IN ('pending', 'running', 'completing', 'suspended', 'completed', 'failed', 'cancelled', 'timeout'))
);
INSERT INTO "jobs" VALUES(1,'1',NULL,'57390c35a03263ebe758432a37f654fa9af28794c277211e23edba3c7f45af75',1001,'train-1','vision','gpu',1,NULL,0,2,4000,'running','2026-03-01 12:00:00.000000','2026-03-01 12:00:00.000000','2026-03-01 12:00:01.000000',NULL,NULL,NULL,'its owner holds it',1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(2,'2',NULL,'1c3a99a0e8c7577186eb27321ba57965c7a5ecc4fc99d25a6887c0dc4b11759b',1001,'größer','vision','gpu',2,8,0,2,4000,'running','2026-03-01 12:00:00.000000','2026-03-01 12:01:40.000000','2026-03-01 12:01:41.000000',NULL,NULL,NULL,NULL,1,1,2,'resnet50','2026-03-02 13:00:00.000000','accepted',2,NULL,NULL);
CREATE TABLE leases (
	name VARCHAR(32) NOT NULL, 
	owner TEXT NOT NULL, 
	renewed_at DATETIME NOT NULL, 
	expires_at DATETIME NOT NULL, 
	interval_s DOUBLE, 
	watch_s DOUBLE, 
	CONSTRAINT pk_leases PRIMARY KEY (name)
);
INSERT INTO "leases" VALUES('daemon','daemon','2026-03-01 12:00:00.000000','2026-03-01 12:00:10.000000',NULL,NULL);
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
	CONSTRAINT fk_model_versions_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT ck_model_versions_accumulation CHECK (accumulation IN (0, 1))
);
INSERT INTO "model_versions" VALUES(1,1,'2026-03-01 12:00:02.000000',128,1024,1,256,1,0.5,3.0,0.05,0.001,0.04,0.002,0.03,0.001,1.5,2,1,500.0,1000.0,0);
INSERT INTO "model_versions" VALUES(2,1,'2026-03-01 12:00:35.000000',128,1024,1,256,1,0.5,3.0,0.05,0.001,0.04,0.002,0.03,0.001,1.5,2,1,500.0,1000.0,1);
INSERT INTO "model_versions" VALUES(3,2,'2026-03-01 12:01:50.000000',128,1024,1,256,1,0.5,3.0,0.05,0.001,0.04,0.002,0.03,0.001,1.5,2,1,500.0,1000.0,0);
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
INSERT INTO "node_days" VALUES('n1','2026-03-01',1,4.0,0.0);
CREATE TABLE nodes (
	node_name TEXT NOT NULL, 
	gpu_type TEXT NOT NULL, 
	num_gpus INTEGER NOT NULL, 
	first_seen_at DATETIME NOT NULL, 
	last_seen_at DATETIME NOT NULL, 
	CONSTRAINT pk_nodes PRIMARY KEY (node_name)
);
INSERT INTO "nodes" VALUES('n1','t4',4,'2026-03-01 12:00:03.000000','2026-03-01 12:00:03.000000');
CREATE TABLE pollux_schema_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT pollux_schema_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "pollux_schema_version" VALUES('0105');
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
INSERT INTO "reallocation_nodes" VALUES(1,'source','n0',2);
INSERT INTO "reallocation_nodes" VALUES(1,'target','n1',3);
INSERT INTO "reallocation_nodes" VALUES(1,'target','n2',1);
INSERT INTO "reallocation_nodes" VALUES(2,'source','n0',2);
INSERT INTO "reallocation_nodes" VALUES(2,'target','n0',2);
INSERT INTO "reallocation_nodes" VALUES(2,'target','n1',1);
INSERT INTO "reallocation_nodes" VALUES(3,'source','n0',2);
INSERT INTO "reallocation_nodes" VALUES(3,'target','n1',3);
INSERT INTO "reallocation_nodes" VALUES(3,'target','n2',1);
INSERT INTO "reallocation_nodes" VALUES(3,'refused','n9',4);
CREATE TABLE reallocation_steps (
	reallocation_id INTEGER NOT NULL, 
	step VARCHAR(32) NOT NULL, 
	at DATETIME NOT NULL, 
	CONSTRAINT pk_reallocation_steps PRIMARY KEY (reallocation_id, step), 
	CONSTRAINT fk_reallocation_steps_reallocation_id_reallocations FOREIGN KEY(reallocation_id) REFERENCES reallocations (id) ON DELETE CASCADE, 
	CONSTRAINT ck_reallocation_steps_step CHECK (step IN ('planned', 'checkpoint_requested', 'checkpointed', 'requeued', 'reshaped', 'released', 'running', 'regroup_requested', 'regrouped', 'confirmed', 'rolled_back', 'failed'))
);
INSERT INTO "reallocation_steps" VALUES(1,'planned','2026-03-01 12:00:20.000000');
INSERT INTO "reallocation_steps" VALUES(1,'checkpoint_requested','2026-03-01 12:00:21.000000');
INSERT INTO "reallocation_steps" VALUES(1,'checkpointed','2026-03-01 12:00:23.000000');
INSERT INTO "reallocation_steps" VALUES(1,'requeued','2026-03-01 12:00:24.000000');
INSERT INTO "reallocation_steps" VALUES(1,'reshaped','2026-03-01 12:00:25.000000');
INSERT INTO "reallocation_steps" VALUES(1,'released','2026-03-01 12:00:27.000000');
INSERT INTO "reallocation_steps" VALUES(1,'running','2026-03-01 12:00:29.000000');
INSERT INTO "reallocation_steps" VALUES(1,'confirmed','2026-03-01 12:00:36.000000');
INSERT INTO "reallocation_steps" VALUES(2,'planned','2026-03-01 12:02:00.000000');
INSERT INTO "reallocation_steps" VALUES(2,'regroup_requested','2026-03-01 12:02:01.000000');
INSERT INTO "reallocation_steps" VALUES(2,'regrouped','2026-03-01 12:02:09.000000');
INSERT INTO "reallocation_steps" VALUES(2,'confirmed','2026-03-01 12:02:10.000000');
INSERT INTO "reallocation_steps" VALUES(3,'planned','2026-03-01 12:03:20.000000');
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
	time_left_s DOUBLE, way VARCHAR(32) DEFAULT 'requeue' NOT NULL CONSTRAINT ck_reallocations_way CHECK (way IN ('requeue', 'in_place')), generation INTEGER CONSTRAINT ck_reallocations_generation CHECK (generation BETWEEN 1 AND 1000000), refused VARCHAR(32) CONSTRAINT ck_reallocations_refused CHECK (refused IN ('never', 'not_now')), refused_at DATETIME, refused_reason TEXT, refused_request TEXT, priority INTEGER, priority_ended_at DATETIME, 
	CONSTRAINT pk_reallocations PRIMARY KEY (id), 
	CONSTRAINT ck_reallocations_from_restart_count CHECK (from_restart_count >= 0), 
	CONSTRAINT fk_reallocations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT fk_reallocations_round_id_rounds FOREIGN KEY(round_id) REFERENCES rounds (id) ON DELETE SET NULL, 
	CONSTRAINT ck_reallocations_step CHECK (step IN ('planned', 'checkpoint_requested', 'checkpointed', 'requeued', 'reshaped', 'released', 'running', 'regroup_requested', 'regrouped', 'confirmed', 'rolled_back', 'failed')), 
	CONSTRAINT ck_reallocations_moves_running CHECK (moves_running IN (0, 1)), 
	CONSTRAINT ck_reallocations_cause CHECK (cause IN ('decision', 'pause', 'drain', 'resume', 'time_limit', 'after_failure', 'failed_start', 'held_by_slurm', 'stray_wings', 'late_command')), 
	CONSTRAINT ck_reallocations_checkpoint_waived CHECK (checkpoint_waived IN (0, 1)), 
	CONSTRAINT ck_reallocations_retargeted CHECK (retargeted IN (0, 1)), 
	CONSTRAINT ck_reallocations_continued_training CHECK (continued_training IN (0, 1)), 
	CONSTRAINT ck_reallocations_job_failed CHECK (job_failed IN (0, 1)), 
	CONSTRAINT ck_reallocations_taken_over CHECK (taken_over IN (0, 1))
);
INSERT INTO "reallocations" VALUES(1,1,NULL,'confirmed',1,0,'decision',0,0,0,0,0,NULL,NULL,'requeue',NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "reallocations" VALUES(2,2,NULL,'confirmed',1,0,'decision',0,0,0,0,0,NULL,NULL,'in_place',1,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "reallocations" VALUES(3,2,NULL,'planned',1,0,'pause',0,0,0,0,0,'by root',NULL,'requeue',NULL,'not_now','2026-03-01 12:03:30.000000','AssocGrpGRES','',4000000000,NULL);
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
INSERT INTO "rounds" VALUES(1,'2026-03-01 12:00:03.000000',0,'generalized-mean','test',0.8,'{"format":"pollux-problem","version":1,"problem":{"nodes":[{"name":"n1","num_gpus":4,"num_cpus":8,"memory_mb":16000,"gpu_type":"t4","accepts_new":true,"several_wings":false}],"jobs":[{"job_id":"1","model":{"limits":{"initial_batch_size":128,"max_batch_size":1024,"min_atomic":1,"max_atomic":256,"accumulation":true},"statistics":{"sqr":0.5,"var":3.0,"noise_low":500.0,"noise_high":1000.0},"throughput":{"alpha_g":0.05,"beta_g":0.001,"alpha_n":0.04,"beta_n":0.002,"alpha_l":0.03,"beta_l":0.001,"gamma":1.5},"max_gpus_seen":2,"max_nodes_seen":1},"models":[],"min_gpus":1,"max_gpus":8,"cpus_per_gpu":1,"memory_per_gpu_mb":0,"age_s":61.5,"num_restarts":0,"restart_delay_s":30.0,"wings":[],"in_place_delay_s":null,"current":{"n1":2},"pinned":false,"pinned_because":null,"partition_nodes":["n1"],"weight":1.0,"account":"","user":"","share":1.0,"share_note":null,"rigid":false,"progress":null,"epochs_done":null,"epochs_declared":null,"declaration_doubt":null,"expected_progress":null,"model_doubt":null,"kind_note":null,"waiting_s":0.0,"qos":"","prediction_error":0.0,"held_off":false,"one_node":false,"refused":[],"course":null,"finish_by_s":null,"promise":null,"promised_gpus":0}],"objective":{"name":"generalized-mean","exponent":-1.0,"floor":0.001,"penalty":"paper","horizon_s":600.0,"fair_share_gpus":null,"between":"jobs"},"seed":7,"limits":[],"moving":{"hysteresis":0.0,"max_reallocations":null,"min_age_s":0.0,"min_remaining_s":0.0,"pauses":false},"gpu_speeds":[],"uneven":null,"max_wait_s":null}}','{"format":"pollux-decision","version":1,"decision":{"jobs":[{"job_id":"1","allocation":{"m1":1,"n1":3},"speedup":1.75,"goodput":320.5,"penalty":0.9,"batch":{"global_batch_size":256,"atomic_batch_size":64,"accumulation_steps":1},"bound_by":"capacity","runner_up":{"num_nodes":1,"num_gpus":3},"runner_up_speedup":1.5,"runner_up_cost":-0.25,"cost":1.0,"gpu_type":"t4","runner_up_gpu_type":"a100","declared_gain":1.5,"declaration_doubt":null,"pinned_because":"it is being moved","way":null,"move_delay_s":null}],"fitness":0.8,"solver":"test","excluded":[["99","its minimum does not fit"]],"upper_bound":0.9,"gap":0.1111111111111111,"gpu_prices":[["a100",0.5],["t4",0.25]],"times_s":[],"timed_out":true}}',0.9,1.11111111111111104943e-01,1,1,1,4,4,4,1.75,1.75,NULL);
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
INSERT INTO "run_days" VALUES(1,'2026-03-01',2,8000.0,22.28,44.56,4456.0,22.28,3564.8,17.824,35.648,2,22.28,4456.0,4233.2,-1.00000000000000088817e-01,1.00000000000000088817e-01,4456.0);
INSERT INTO "run_days" VALUES(2,'2026-03-01',1,16.0,1.28,2.56,256.0,1.28,204.8,1.024,2.048,1,1.28,256.0,2.43200000000000017053e+02,-5.00000000000000444089e-02,5.00000000000000444089e-02,256.0);
INSERT INTO "run_days" VALUES(3,'2026-03-01',1,8.0,1.28,2.56,256.0,1.28,204.8,1.024,2.048,1,1.28,256.0,2.43200000000000017053e+02,-5.00000000000000444089e-02,5.00000000000000444089e-02,256.0);
CREATE TABLE run_nodes (
	run_id INTEGER NOT NULL, 
	node_rank INTEGER NOT NULL, 
	num_gpus INTEGER NOT NULL, 
	CONSTRAINT pk_run_nodes PRIMARY KEY (run_id, node_rank), 
	CONSTRAINT ck_run_nodes_node_rank CHECK (node_rank BETWEEN 0 AND 9999), 
	CONSTRAINT ck_run_nodes_num_gpus CHECK (num_gpus BETWEEN 1 AND 1024), 
	CONSTRAINT fk_run_nodes_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "run_nodes" VALUES(1,0,2);
INSERT INTO "run_nodes" VALUES(2,0,3);
INSERT INTO "run_nodes" VALUES(2,1,1);
INSERT INTO "run_nodes" VALUES(3,0,2);
CREATE TABLE run_warnings (
	run_id INTEGER NOT NULL, 
	warning TEXT NOT NULL, 
	first_seen_at DATETIME NOT NULL, 
	CONSTRAINT pk_run_warnings PRIMARY KEY (run_id, warning), 
	CONSTRAINT ck_run_warnings_warning CHECK (length(warning) BETWEEN 1 AND 64), 
	CONSTRAINT fk_run_warnings_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "run_warnings" VALUES(1,'never_stepped','2026-03-01 12:00:02.000000');
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
INSERT INTO "runs" VALUES(1,1,0,0,'waiting','2026-03-01 12:00:02.000000','2026-03-01 12:00:23.000000',1000,10000,NULL,NULL,NULL,NULL);
INSERT INTO "runs" VALUES(2,1,1,1,'training','2026-03-01 12:00:31.000000','2026-03-01 12:00:35.000000',2,20,5.0,'2026-03-01 12:00:35.000000',1.0,NULL);
INSERT INTO "runs" VALUES(3,2,0,0,'training','2026-03-01 12:01:50.000000','2026-03-01 12:01:50.000000',1,10,NULL,NULL,NULL,NULL);
CREATE TABLE users (
	user_id INTEGER NOT NULL, 
	user_name TEXT NOT NULL, 
	CONSTRAINT pk_users PRIMARY KEY (user_id), 
	CONSTRAINT ck_users_user_id CHECK (user_id >= 0)
);
INSERT INTO "users" VALUES(1001,'ada');
CREATE INDEX ix_jobs_account_submitted_at ON jobs (account, submitted_at);
CREATE INDEX ix_jobs_estimated ON jobs (estimated) WHERE estimated;
CREATE INDEX ix_jobs_finished_at ON jobs (finished_at);
CREATE INDEX ix_jobs_first_job_id ON jobs (first_job_id);
CREATE INDEX ix_jobs_slurm_job_id_id ON jobs (slurm_job_id, id);
CREATE INDEX ix_jobs_started_at ON jobs (started_at);
CREATE INDEX ix_jobs_submitted_at ON jobs (submitted_at);
CREATE INDEX ix_jobs_user_id_submitted_at ON jobs (user_id, submitted_at);
CREATE UNIQUE INDEX uq_jobs_unfinished_slurm_job_id ON jobs (slurm_job_id) WHERE finished_at IS NULL;
CREATE INDEX ix_runs_first_report_at ON runs (first_report_at);
CREATE INDEX ix_model_versions_job_id_id ON model_versions (job_id, id);
CREATE INDEX ix_model_versions_job_id_run_number_id ON model_versions (job_id, run_number, id);
CREATE INDEX ix_goodput_samples_at ON goodput_samples (at);
CREATE INDEX ix_rounds_at ON rounds (at);
CREATE INDEX ix_decisions_job_id_round_id ON decisions (job_id, round_id);
CREATE INDEX ix_allocations_started_at ON allocations (started_at);
CREATE UNIQUE INDEX uq_allocations_open ON allocations (job_id) WHERE ended_at IS NULL;
CREATE INDEX ix_allocation_nodes_node_name ON allocation_nodes (node_name);
CREATE INDEX ix_reallocations_job_id_id ON reallocations (job_id, id);
CREATE INDEX ix_reallocations_round_id ON reallocations (round_id);
CREATE UNIQUE INDEX uq_reallocations_open ON reallocations (job_id) WHERE step NOT IN ('confirmed', 'rolled_back', 'failed');
CREATE INDEX ix_reallocation_steps_at ON reallocation_steps (at);
CREATE INDEX ix_reallocation_steps_step_at ON reallocation_steps (step, at);
CREATE INDEX ix_checkpoints_at ON checkpoints (at);
CREATE UNIQUE INDEX uq_checkpoints_reallocation_id ON checkpoints (reallocation_id);
CREATE INDEX ix_run_days_day ON run_days (day);
CREATE INDEX ix_allocation_days_day ON allocation_days (day);
CREATE INDEX ix_job_days_day ON job_days (day);
CREATE INDEX ix_node_days_day ON node_days (day);
CREATE UNIQUE INDEX uq_generations_open ON generations (job_id) WHERE state IN ('planned', 'committed');
CREATE INDEX ix_jobs_kind_id ON jobs (kind, id);
COMMIT;
