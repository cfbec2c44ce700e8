SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.accounts (
    account text NOT NULL,
    first_seen_at timestamp with time zone NOT NULL
);
CREATE TABLE public.allocation_days (
    job_id bigint NOT NULL,
    number integer NOT NULL,
    day date NOT NULL,
    allocated_s double precision NOT NULL,
    CONSTRAINT ck_allocation_days_allocated_s CHECK ((allocated_s >= (0)::double precision))
);
CREATE TABLE public.allocation_nodes (
    job_id bigint NOT NULL,
    number integer NOT NULL,
    node_name text NOT NULL,
    num_gpus integer NOT NULL,
    CONSTRAINT ck_allocation_nodes_num_gpus CHECK ((num_gpus >= 1))
);
CREATE TABLE public.allocations (
    job_id bigint NOT NULL,
    number integer NOT NULL,
    started_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    restart_count integer,
    estimated boolean DEFAULT false NOT NULL,
    CONSTRAINT ck_allocations_ended_at CHECK ((ended_at >= started_at)),
    CONSTRAINT ck_allocations_number CHECK ((number >= 0))
);
CREATE TABLE public.checkpoints (
    run_id bigint NOT NULL,
    sequence bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    reallocation_id bigint,
    blocked_s double precision NOT NULL,
    size_bytes bigint NOT NULL,
    CONSTRAINT ck_checkpoints_blocked_s CHECK (((blocked_s >= (0.0)::double precision) AND (blocked_s <= (10000000.0)::double precision))),
    CONSTRAINT ck_checkpoints_sequence CHECK (((sequence >= 0) AND (sequence <= '1000000000000'::bigint))),
    CONSTRAINT ck_checkpoints_size_bytes CHECK (((size_bytes >= 0) AND (size_bytes <= '1152921504606846976'::bigint)))
);
CREATE TABLE public.decision_nodes (
    round_id bigint NOT NULL,
    job_id bigint NOT NULL,
    node_name text NOT NULL,
    num_gpus integer NOT NULL,
    CONSTRAINT ck_decision_nodes_num_gpus CHECK ((num_gpus >= 1))
);
CREATE TABLE public.decisions (
    round_id bigint NOT NULL,
    job_id bigint NOT NULL,
    num_gpus integer NOT NULL,
    num_nodes integer NOT NULL,
    speedup double precision NOT NULL,
    goodput double precision,
    one_gpu_goodput double precision,
    penalty double precision NOT NULL,
    bound_by character varying(32) NOT NULL,
    runner_up_gpus integer,
    runner_up_nodes integer,
    runner_up_speedup double precision,
    runner_up_gpu_type text,
    runner_up_cost double precision,
    cost double precision,
    gpu_type text,
    global_batch_size bigint,
    atomic_batch_size bigint,
    accumulation_steps bigint,
    declared_gain double precision,
    declaration_doubt text,
    pinned_reason text,
    excluded_reason text,
    explanation text NOT NULL,
    CONSTRAINT ck_decisions_num_gpus CHECK ((num_gpus >= 0)),
    CONSTRAINT ck_decisions_num_nodes CHECK (((num_nodes >= 0) AND (num_nodes <= num_gpus))),
    CONSTRAINT ck_decisions_runner_up CHECK (((runner_up_gpus IS NULL) = (runner_up_nodes IS NULL)))
);
CREATE TABLE public.declarations (
    job_id bigint NOT NULL,
    number integer NOT NULL,
    total_epochs bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    epoch bigint NOT NULL,
    progress double precision NOT NULL,
    least_total_progress double precision,
    CONSTRAINT ck_declarations_epoch CHECK (((epoch >= 0) AND (epoch <= 1000000000))),
    CONSTRAINT ck_declarations_least_total_progress CHECK (((least_total_progress >= (0)::double precision) AND (least_total_progress <= ('1000000000000000000000000000'::numeric)::double precision))),
    CONSTRAINT ck_declarations_number CHECK ((number >= 0)),
    CONSTRAINT ck_declarations_progress CHECK (((progress >= (0.0)::double precision) AND (progress <= ('1000000000000000000'::numeric)::double precision))),
    CONSTRAINT ck_declarations_total_epochs CHECK (((total_epochs >= 0) AND (total_epochs <= 1000000000)))
);
CREATE TABLE public.generation_members (
    job_id bigint NOT NULL,
    number integer NOT NULL,
    rank integer NOT NULL,
    member_id text NOT NULL,
    node_name text NOT NULL,
    ready boolean NOT NULL,
    CONSTRAINT ck_generation_members_member_id CHECK (((length(member_id) >= 1) AND (length(member_id) <= 64))),
    CONSTRAINT ck_generation_members_rank CHECK (((rank >= 0) AND (rank <= 9999)))
);
CREATE TABLE public.generations (
    job_id bigint NOT NULL,
    number integer NOT NULL,
    state character varying(32) NOT NULL,
    at timestamp with time zone NOT NULL,
    restart_count integer NOT NULL,
    meeting text,
    standstill_s double precision,
    reason text,
    CONSTRAINT ck_generations_committed CHECK ((((state)::text = ANY ((ARRAY['committed'::character varying, 'regrouped'::character varying, 'failed'::character varying])::text[])) = (meeting IS NOT NULL))),
    CONSTRAINT ck_generations_meeting CHECK (((length(meeting) >= 1) AND (length(meeting) <= 300))),
    CONSTRAINT ck_generations_number CHECK (((number >= 1) AND (number <= 1000000))),
    CONSTRAINT ck_generations_reason CHECK ((length(reason) <= 1024)),
    CONSTRAINT ck_generations_regrouped CHECK ((((state)::text = 'regrouped'::text) = (standstill_s IS NOT NULL))),
    CONSTRAINT ck_generations_restart_count CHECK (((restart_count >= 0) AND (restart_count <= 1000000))),
    CONSTRAINT ck_generations_standstill_s CHECK (((standstill_s >= (0.0)::double precision) AND (standstill_s <= (10000000.0)::double precision))),
    CONSTRAINT ck_generations_state CHECK (((state)::text = ANY ((ARRAY['planned'::character varying, 'committed'::character varying, 'regrouped'::character varying, 'refused'::character varying, 'withdrawn'::character varying, 'failed'::character varying])::text[])))
);
CREATE TABLE public.goodput_samples (
    run_id bigint NOT NULL,
    sequence bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    global_batch_size bigint,
    atomic_batch_size bigint,
    accumulation_steps bigint,
    throughput double precision,
    predicted_throughput double precision,
    step_time_s double precision,
    efficiency double precision,
    progress double precision NOT NULL,
    epoch bigint NOT NULL,
    total_epochs bigint,
    num_examples bigint,
    CONSTRAINT ck_goodput_samples_accumulation_steps CHECK (((accumulation_steps >= 0) AND (accumulation_steps <= 1000000000))),
    CONSTRAINT ck_goodput_samples_atomic_batch_size CHECK (((atomic_batch_size >= 1) AND (atomic_batch_size <= 1000000000))),
    CONSTRAINT ck_goodput_samples_batch CHECK ((((global_batch_size IS NULL) = (atomic_batch_size IS NULL)) AND ((global_batch_size IS NULL) = (accumulation_steps IS NULL)))),
    CONSTRAINT ck_goodput_samples_efficiency CHECK (((efficiency >= (0.000000001)::double precision) AND (efficiency <= (1.0)::double precision))),
    CONSTRAINT ck_goodput_samples_epoch CHECK (((epoch >= 0) AND (epoch <= 1000000000))),
    CONSTRAINT ck_goodput_samples_global_batch_size CHECK (((global_batch_size >= 1) AND (global_batch_size <= 1000000000))),
    CONSTRAINT ck_goodput_samples_num_examples CHECK (((num_examples >= 0) AND (num_examples <= '1000000000000000'::bigint))),
    CONSTRAINT ck_goodput_samples_predicted_throughput CHECK (((predicted_throughput >= (0.0000001)::double precision) AND (predicted_throughput <= (1000000000000.0)::double precision))),
    CONSTRAINT ck_goodput_samples_progress CHECK (((progress >= (0.0)::double precision) AND (progress <= ('1000000000000000000'::numeric)::double precision))),
    CONSTRAINT ck_goodput_samples_sequence CHECK (((sequence >= 0) AND (sequence <= '1000000000000'::bigint))),
    CONSTRAINT ck_goodput_samples_step_time_s CHECK (((step_time_s >= (0.000001)::double precision) AND (step_time_s <= (10000000.0)::double precision))),
    CONSTRAINT ck_goodput_samples_throughput CHECK (((throughput >= (0.0000001)::double precision) AND (throughput <= (1000000000000.0)::double precision))),
    CONSTRAINT ck_goodput_samples_total_epochs CHECK (((total_epochs >= 0) AND (total_epochs <= 1000000000)))
);
CREATE TABLE public.gpu_prices (
    round_id bigint NOT NULL,
    gpu_type text NOT NULL,
    price double precision NOT NULL
);
CREATE TABLE public.job_days (
    job_id bigint NOT NULL,
    day date NOT NULL,
    num_rounds bigint NOT NULL,
    gpus_sum double precision NOT NULL,
    fair_share_gpus_sum double precision NOT NULL,
    speedup_sum double precision NOT NULL,
    num_compared bigint NOT NULL,
    fair_share_goodput_sum double precision NOT NULL,
    num_one_gpu bigint NOT NULL,
    one_gpu_goodput_sum double precision NOT NULL,
    CONSTRAINT ck_job_days_num_compared CHECK (((num_rounds >= num_compared) AND (num_compared >= 0))),
    CONSTRAINT ck_job_days_num_one_gpu CHECK (((num_rounds >= num_one_gpu) AND (num_one_gpu >= 0)))
);
CREATE TABLE public.jobs (
    id bigint NOT NULL,
    slurm_job_id character varying(64) NOT NULL,
    first_job_id bigint,
    token_sha256 character varying(64) NOT NULL,
    user_id bigint NOT NULL,
    name text NOT NULL,
    account text NOT NULL,
    partition text NOT NULL,
    min_gpus integer NOT NULL,
    max_gpus integer,
    allow_unconfirmed boolean NOT NULL,
    cpus_per_gpu integer NOT NULL,
    memory_per_gpu_mb bigint NOT NULL,
    state character varying(32) NOT NULL,
    submitted_at timestamp with time zone NOT NULL,
    registered_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    time_limit_s double precision,
    required_nodes text,
    not_moved_reason text,
    estimated boolean DEFAULT false NOT NULL,
    in_place boolean DEFAULT false NOT NULL,
    submitted_gpus integer,
    kind character varying(32),
    finish_by timestamp with time zone,
    promise character varying(32),
    promise_gpus integer,
    promise_finish_at timestamp with time zone,
    promise_reason text,
    CONSTRAINT ck_jobs_cpus_per_gpu CHECK ((cpus_per_gpu >= 0)),
    CONSTRAINT ck_jobs_finished_at CHECK (((finished_at IS NOT NULL) = ((state)::text = ANY ((ARRAY['completed'::character varying, 'failed'::character varying, 'cancelled'::character varying, 'timeout'::character varying])::text[])))),
    CONSTRAINT ck_jobs_max_gpus CHECK (((max_gpus IS NULL) OR (max_gpus >= min_gpus))),
    CONSTRAINT ck_jobs_memory_per_gpu_mb CHECK ((memory_per_gpu_mb >= 0)),
    CONSTRAINT ck_jobs_min_gpus CHECK ((min_gpus >= 1)),
    CONSTRAINT ck_jobs_promise CHECK (((promise)::text = ANY ((ARRAY['unknown'::character varying, 'refused'::character varying, 'accepted'::character varying, 'ended'::character varying])::text[]))),
    CONSTRAINT ck_jobs_state CHECK (((state)::text = ANY ((ARRAY['pending'::character varying, 'running'::character varying, 'completing'::character varying, 'suspended'::character varying, 'completed'::character varying, 'failed'::character varying, 'cancelled'::character varying, 'timeout'::character varying])::text[]))),
    CONSTRAINT ck_jobs_token_sha256 CHECK ((length((token_sha256)::text) = 64))
);
CREATE SEQUENCE public.jobs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.jobs_id_seq OWNED BY public.jobs.id;
CREATE TABLE public.leases (
    name character varying(32) NOT NULL,
    owner text NOT NULL,
    renewed_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    interval_s double precision,
    watch_s double precision
);
CREATE TABLE public.model_versions (
    id bigint NOT NULL,
    job_id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    initial_batch_size bigint NOT NULL,
    max_batch_size bigint,
    min_atomic bigint NOT NULL,
    max_atomic bigint,
    accumulation boolean NOT NULL,
    grad_sqr double precision,
    grad_var double precision,
    alpha_g double precision,
    beta_g double precision,
    alpha_n double precision,
    beta_n double precision,
    alpha_l double precision,
    beta_l double precision,
    gamma double precision,
    max_gpus_seen integer NOT NULL,
    max_nodes_seen integer NOT NULL,
    noise_low double precision,
    noise_high double precision,
    run_number integer,
    CONSTRAINT ck_model_versions_alpha_g CHECK (((alpha_g >= (0)::double precision) AND (alpha_g <= ('1000000'::numeric)::double precision))),
    CONSTRAINT ck_model_versions_alpha_l CHECK (((alpha_l >= (0)::double precision) AND (alpha_l <= ('1000000'::numeric)::double precision))),
    CONSTRAINT ck_model_versions_alpha_n CHECK (((alpha_n >= (0)::double precision) AND (alpha_n <= ('1000000'::numeric)::double precision))),
    CONSTRAINT ck_model_versions_beta_g CHECK (((beta_g >= (0)::double precision) AND (beta_g <= ('1000000'::numeric)::double precision))),
    CONSTRAINT ck_model_versions_beta_l CHECK (((beta_l >= (0)::double precision) AND (beta_l <= ('1000000'::numeric)::double precision))),
    CONSTRAINT ck_model_versions_beta_n CHECK (((beta_n >= (0)::double precision) AND (beta_n <= ('1000000'::numeric)::double precision))),
    CONSTRAINT ck_model_versions_gamma CHECK (((gamma >= (1)::double precision) AND (gamma <= (10)::double precision))),
    CONSTRAINT ck_model_versions_grad_sqr CHECK (((grad_sqr >= (0)::double precision) AND (grad_sqr <= ('1000000000000000000000000000000'::numeric)::double precision))),
    CONSTRAINT ck_model_versions_grad_var CHECK (((grad_var >= (0)::double precision) AND (grad_var <= ('1000000000000000000000000000000'::numeric)::double precision))),
    CONSTRAINT ck_model_versions_initial_batch_size CHECK (((initial_batch_size >= 1) AND (initial_batch_size <= 1000000000))),
    CONSTRAINT ck_model_versions_max_atomic CHECK (((max_atomic >= min_atomic) AND (max_atomic <= 1000000000))),
    CONSTRAINT ck_model_versions_max_batch_size CHECK (((max_batch_size >= initial_batch_size) AND (max_batch_size <= 1000000000))),
    CONSTRAINT ck_model_versions_max_gpus_seen CHECK (((max_gpus_seen >= 0) AND (max_gpus_seen <= 1000000))),
    CONSTRAINT ck_model_versions_max_nodes_seen CHECK (((max_nodes_seen >= 0) AND (max_nodes_seen <= max_gpus_seen))),
    CONSTRAINT ck_model_versions_min_atomic CHECK (((min_atomic >= 1) AND (min_atomic <= COALESCE(max_batch_size, initial_batch_size)))),
    CONSTRAINT ck_model_versions_noise_high CHECK (((noise_high >= COALESCE(noise_low, ('1000000000000000000000000000000'::numeric)::double precision)) AND (noise_high <= ('1000000000000000000000000000000'::numeric)::double precision))),
    CONSTRAINT ck_model_versions_noise_low CHECK (((noise_low >= (0)::double precision) AND (noise_low <= ('1000000000000000000000000000000'::numeric)::double precision))),
    CONSTRAINT ck_model_versions_statistics CHECK (((grad_sqr IS NULL) = (grad_var IS NULL))),
    CONSTRAINT ck_model_versions_throughput CHECK ((((beta_g IS NULL) = (alpha_g IS NULL)) AND ((alpha_n IS NULL) = (alpha_g IS NULL)) AND ((beta_n IS NULL) = (alpha_g IS NULL)) AND ((alpha_l IS NULL) = (alpha_g IS NULL)) AND ((beta_l IS NULL) = (alpha_g IS NULL)) AND ((gamma IS NULL) = (alpha_g IS NULL)))),
    CONSTRAINT ck_model_versions_time_per_example CHECK (((alpha_g + beta_g) >= (0.000000001)::double precision))
);
CREATE SEQUENCE public.model_versions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.model_versions_id_seq OWNED BY public.model_versions.id;
CREATE TABLE public.node_days (
    node_name text NOT NULL,
    day date NOT NULL,
    num_rounds bigint NOT NULL,
    gpus_sum double precision NOT NULL,
    available_gpu_s double precision NOT NULL,
    CONSTRAINT ck_node_days_num_rounds CHECK ((num_rounds >= 1)),
    CONSTRAINT ck_node_days_sums CHECK (((gpus_sum >= (0)::double precision) AND (available_gpu_s >= (0)::double precision)))
);
CREATE TABLE public.nodes (
    node_name text NOT NULL,
    gpu_type text NOT NULL,
    num_gpus integer NOT NULL,
    first_seen_at timestamp with time zone NOT NULL,
    last_seen_at timestamp with time zone NOT NULL
);
CREATE TABLE public.pollux_schema_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.reallocation_nodes (
    reallocation_id bigint NOT NULL,
    side character varying(32) NOT NULL,
    node_name text NOT NULL,
    num_gpus integer NOT NULL,
    CONSTRAINT ck_reallocation_nodes_num_gpus CHECK ((num_gpus >= 1)),
    CONSTRAINT ck_reallocation_nodes_side CHECK (((side)::text = ANY ((ARRAY['source'::character varying, 'target'::character varying, 'refused'::character varying])::text[])))
);
CREATE TABLE public.reallocation_steps (
    reallocation_id bigint NOT NULL,
    step character varying(32) NOT NULL,
    at timestamp with time zone NOT NULL,
    CONSTRAINT ck_reallocation_steps_step CHECK (((step)::text = ANY ((ARRAY['planned'::character varying, 'checkpoint_requested'::character varying, 'checkpointed'::character varying, 'requeued'::character varying, 'reshaped'::character varying, 'released'::character varying, 'running'::character varying, 'regroup_requested'::character varying, 'regrouped'::character varying, 'confirmed'::character varying, 'rolled_back'::character varying, 'failed'::character varying])::text[])))
);
CREATE TABLE public.reallocations (
    id bigint NOT NULL,
    job_id bigint NOT NULL,
    round_id bigint,
    step character varying(32) NOT NULL,
    moves_running boolean NOT NULL,
    from_restart_count integer NOT NULL,
    cause character varying(32) NOT NULL,
    checkpoint_waived boolean DEFAULT false NOT NULL,
    retargeted boolean DEFAULT false NOT NULL,
    continued_training boolean DEFAULT false NOT NULL,
    job_failed boolean DEFAULT false NOT NULL,
    taken_over boolean DEFAULT false NOT NULL,
    reason text,
    time_left_s double precision,
    way character varying(32) DEFAULT 'requeue'::character varying NOT NULL,
    generation integer,
    refused character varying(32),
    refused_at timestamp with time zone,
    refused_reason text,
    refused_request text,
    priority bigint,
    priority_ended_at timestamp with time zone,
    CONSTRAINT ck_reallocations_cause CHECK (((cause)::text = ANY ((ARRAY['decision'::character varying, 'pause'::character varying, 'drain'::character varying, 'resume'::character varying, 'time_limit'::character varying, 'after_failure'::character varying, 'failed_start'::character varying, 'held_by_slurm'::character varying, 'stray_wings'::character varying, 'late_command'::character varying])::text[]))),
    CONSTRAINT ck_reallocations_from_restart_count CHECK ((from_restart_count >= 0)),
    CONSTRAINT ck_reallocations_generation CHECK (((generation >= 1) AND (generation <= 1000000))),
    CONSTRAINT ck_reallocations_refused CHECK (((refused)::text = ANY ((ARRAY['never'::character varying, 'not_now'::character varying])::text[]))),
    CONSTRAINT ck_reallocations_step CHECK (((step)::text = ANY ((ARRAY['planned'::character varying, 'checkpoint_requested'::character varying, 'checkpointed'::character varying, 'requeued'::character varying, 'reshaped'::character varying, 'released'::character varying, 'running'::character varying, 'regroup_requested'::character varying, 'regrouped'::character varying, 'confirmed'::character varying, 'rolled_back'::character varying, 'failed'::character varying])::text[]))),
    CONSTRAINT ck_reallocations_way CHECK (((way)::text = ANY ((ARRAY['requeue'::character varying, 'in_place'::character varying])::text[])))
);
CREATE SEQUENCE public.reallocations_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.reallocations_id_seq OWNED BY public.reallocations.id;
CREATE TABLE public.rounds (
    id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    shadow boolean NOT NULL,
    objective text NOT NULL,
    solver text NOT NULL,
    fitness double precision NOT NULL,
    problem text NOT NULL,
    decision text NOT NULL,
    upper_bound double precision,
    gap double precision,
    timed_out boolean NOT NULL,
    num_jobs integer NOT NULL,
    num_served integer NOT NULL,
    num_gpus integer NOT NULL,
    total_gpus integer NOT NULL,
    fair_share_gpus integer NOT NULL,
    mean_speedup double precision,
    min_speedup double precision,
    solve_s double precision
);
CREATE SEQUENCE public.rounds_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.rounds_id_seq OWNED BY public.rounds.id;
CREATE TABLE public.run_days (
    run_id bigint NOT NULL,
    day date NOT NULL,
    num_samples bigint NOT NULL,
    progress double precision NOT NULL,
    trained_s double precision NOT NULL,
    trained_gpu_s double precision NOT NULL,
    examples double precision NOT NULL,
    measured_s double precision NOT NULL,
    useful_examples double precision NOT NULL,
    efficiency_s double precision NOT NULL,
    useful_gpu_s double precision NOT NULL,
    num_compared bigint NOT NULL,
    compared_s double precision NOT NULL,
    compared_examples double precision NOT NULL,
    predicted_examples double precision NOT NULL,
    error_sum double precision NOT NULL,
    abs_error_sum double precision NOT NULL,
    counted_examples double precision DEFAULT 0 NOT NULL,
    CONSTRAINT ck_run_days_counts CHECK (((num_samples >= 0) AND (num_compared >= 0))),
    CONSTRAINT ck_run_days_times CHECK (((trained_s >= (0)::double precision) AND (measured_s >= (0)::double precision) AND (compared_s >= (0)::double precision)))
);
CREATE TABLE public.run_nodes (
    run_id bigint NOT NULL,
    node_rank integer NOT NULL,
    num_gpus integer NOT NULL,
    CONSTRAINT ck_run_nodes_node_rank CHECK (((node_rank >= 0) AND (node_rank <= 9999))),
    CONSTRAINT ck_run_nodes_num_gpus CHECK (((num_gpus >= 1) AND (num_gpus <= 1024)))
);
CREATE TABLE public.run_warnings (
    run_id bigint NOT NULL,
    warning text NOT NULL,
    first_seen_at timestamp with time zone NOT NULL,
    CONSTRAINT ck_run_warnings_warning CHECK (((length(warning) >= 1) AND (length(warning) <= 64)))
);
CREATE TABLE public.runs (
    id bigint NOT NULL,
    job_id bigint NOT NULL,
    run_number integer NOT NULL,
    restart_count integer NOT NULL,
    phase character varying(32) NOT NULL,
    first_report_at timestamp with time zone NOT NULL,
    last_report_at timestamp with time zone NOT NULL,
    last_sequence bigint NOT NULL,
    num_steps bigint NOT NULL,
    first_step_s double precision,
    first_step_at timestamp with time zone,
    restore_s double precision,
    gpu_type text,
    CONSTRAINT ck_runs_first_step_at CHECK (((first_step_s IS NULL) = (first_step_at IS NULL))),
    CONSTRAINT ck_runs_first_step_s CHECK (((first_step_s >= (0.000001)::double precision) AND (first_step_s <= (10000000.0)::double precision))),
    CONSTRAINT ck_runs_last_report_at CHECK ((last_report_at >= first_report_at)),
    CONSTRAINT ck_runs_last_sequence CHECK (((last_sequence >= 0) AND (last_sequence <= '1000000000000'::bigint))),
    CONSTRAINT ck_runs_num_steps CHECK (((num_steps >= 0) AND (num_steps <= '1000000000000000'::bigint))),
    CONSTRAINT ck_runs_phase CHECK (((phase)::text = ANY ((ARRAY['starting'::character varying, 'training'::character varying, 'waiting'::character varying, 'finished'::character varying])::text[]))),
    CONSTRAINT ck_runs_restart_count CHECK (((restart_count >= 0) AND (restart_count <= 1000000))),
    CONSTRAINT ck_runs_restore_s CHECK (((restore_s >= (0.0)::double precision) AND (restore_s <= (10000000.0)::double precision))),
    CONSTRAINT ck_runs_run_number CHECK (((run_number >= 0) AND (run_number <= 1000000)))
);
CREATE SEQUENCE public.runs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.runs_id_seq OWNED BY public.runs.id;
CREATE TABLE public.users (
    user_id bigint NOT NULL,
    user_name text NOT NULL,
    CONSTRAINT ck_users_user_id CHECK ((user_id >= 0))
);
ALTER TABLE ONLY public.jobs ALTER COLUMN id SET DEFAULT nextval('public.jobs_id_seq'::regclass);
ALTER TABLE ONLY public.model_versions ALTER COLUMN id SET DEFAULT nextval('public.model_versions_id_seq'::regclass);
ALTER TABLE ONLY public.reallocations ALTER COLUMN id SET DEFAULT nextval('public.reallocations_id_seq'::regclass);
ALTER TABLE ONLY public.rounds ALTER COLUMN id SET DEFAULT nextval('public.rounds_id_seq'::regclass);
ALTER TABLE ONLY public.runs ALTER COLUMN id SET DEFAULT nextval('public.runs_id_seq'::regclass);
INSERT INTO public.accounts VALUES ('vision', '2026-03-01 12:00:00+00');
INSERT INTO public.allocation_days VALUES (1, 0, '2026-03-01', 29);
INSERT INTO public.allocation_nodes VALUES (1, 0, 'n0', 2);
INSERT INTO public.allocation_nodes VALUES (1, 1, 'n1', 3);
INSERT INTO public.allocation_nodes VALUES (1, 1, 'n2', 1);
INSERT INTO public.allocation_nodes VALUES (2, 0, 'n0', 2);
INSERT INTO public.allocations VALUES (1, 0, '2026-03-01 12:00:01+00', '2026-03-01 12:00:30+00', 0, true);
INSERT INTO public.allocations VALUES (1, 1, '2026-03-01 12:00:30+00', NULL, 0, false);
INSERT INTO public.allocations VALUES (2, 0, '2026-03-01 12:01:41+00', NULL, 0, true);
INSERT INTO public.checkpoints VALUES (1, 1000, '2026-03-01 12:00:23+00', 1, 0.5, 4096);
INSERT INTO public.decision_nodes VALUES (1, 1, 'm1', 1);
INSERT INTO public.decision_nodes VALUES (1, 1, 'n1', 3);
INSERT INTO public.decisions VALUES (1, 1, 4, 2, 1.75, 320.5, 719.1011235955057, 0.9, 'capacity', 3, 1, 1.5, 'a100', -0.25, 1, 't4', 256, 64, 1, 1.5, NULL, 'it is being moved', NULL, 'job 1: m1:1+n1:3 (t4); speedup 1.75; goodput 320.5/s; restart factor 0.90; bound by capacity (it is being moved); next best 3 a100 GPUs on 1 node, speedup 1.5, at a price of -0.25 to others; what it declares changes its weight by a factor of 1.50');
INSERT INTO public.declarations VALUES (1, 0, 5, '2026-03-01 12:00:02+00', 1, 8, 40);
INSERT INTO public.declarations VALUES (2, 0, 5, '2026-03-01 12:01:50+00', 1, 8, 40);
INSERT INTO public.generation_members VALUES (1, 1, 0, 'base.0', 'n0', true);
INSERT INTO public.generation_members VALUES (1, 1, 1, 'wing7.0', 'n7', false);
INSERT INTO public.generation_members VALUES (2, 1, 0, '0.0.n0.0', 'n0', true);
INSERT INTO public.generation_members VALUES (2, 1, 1, '0.0.n0.1', 'n0', true);
INSERT INTO public.generation_members VALUES (2, 1, 2, '0.2.n1.0', 'n1', true);
INSERT INTO public.generations VALUES (1, 1, 'planned', '2026-03-01 12:00:40+00', 0, NULL, NULL, NULL);
INSERT INTO public.generations VALUES (2, 1, 'regrouped', '2026-11-29 18:35:58.302069+00', 0, '10.0.0.7:41213', 0.5, NULL);
INSERT INTO public.goodput_samples VALUES (1, 1, '2026-03-01 12:00:02+00', 256, 64, 1, 200, 190, 1.28, 0.8, 8, 1, 5, NULL);
INSERT INTO public.goodput_samples VALUES (1, 1000, '2026-03-01 12:00:23+00', 256, 64, 1, 200, 190, 1.28, 0.8, 8000, 1, 5, NULL);
INSERT INTO public.goodput_samples VALUES (3, 2, '2026-03-01 12:00:35+00', 256, 64, 1, 200, 190, 1.28, 0.8, 16, 1, 5, NULL);
INSERT INTO public.goodput_samples VALUES (5, 1, '2026-03-01 12:01:50+00', 256, 64, 1, 200, 190, 1.28, 0.8, 8, 1, 5, NULL);
INSERT INTO public.gpu_prices VALUES (1, 'a100', 0.5);
INSERT INTO public.gpu_prices VALUES (1, 't4', 0.25);
INSERT INTO public.job_days VALUES (1, '2026-03-01', 1, 4, 4, 1.75, 1, 183.14285714285714, 1, 719.1011235955057);
INSERT INTO public.jobs VALUES (2, '2', NULL, '1c3a99a0e8c7577186eb27321ba57965c7a5ecc4fc99d25a6887c0dc4b11759b', 1001, 'größer', 'vision', 'gpu', 2, 8, false, 2, 4000, 'running', '2026-03-01 12:00:00+00', '2026-03-01 12:01:40+00', '2026-03-01 12:01:41+00', NULL, NULL, NULL, NULL, true, true, 2, 'resnet50', '2026-03-02 13:00:00+00', 'accepted', 2, NULL, NULL);
INSERT INTO public.jobs VALUES (1, '1', NULL, '57390c35a03263ebe758432a37f654fa9af28794c277211e23edba3c7f45af75', 1001, 'train-1', 'vision', 'gpu', 1, NULL, false, 2, 4000, 'running', '2026-03-01 12:00:00+00', '2026-03-01 12:00:00+00', '2026-03-01 12:00:01+00', NULL, NULL, NULL, 'its owner holds it', true, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.leases VALUES ('daemon', 'daemon', '2026-03-01 12:00:00+00', '2026-03-01 12:00:10+00', NULL, NULL);
INSERT INTO public.model_versions VALUES (1, 1, '2026-03-01 12:00:02+00', 128, 1024, 1, 256, true, 0.5, 3, 0.05, 0.001, 0.04, 0.002, 0.03, 0.001, 1.5, 2, 1, 500, 1000, 0);
INSERT INTO public.model_versions VALUES (2, 1, '2026-03-01 12:00:35+00', 128, 1024, 1, 256, true, 0.5, 3, 0.05, 0.001, 0.04, 0.002, 0.03, 0.001, 1.5, 2, 1, 500, 1000, 1);
INSERT INTO public.model_versions VALUES (3, 2, '2026-03-01 12:01:50+00', 128, 1024, 1, 256, true, 0.5, 3, 0.05, 0.001, 0.04, 0.002, 0.03, 0.001, 1.5, 2, 1, 500, 1000, 0);
INSERT INTO public.node_days VALUES ('n1', '2026-03-01', 1, 4, 0);
INSERT INTO public.nodes VALUES ('n1', 't4', 4, '2026-03-01 12:00:03+00', '2026-03-01 12:00:03+00');
INSERT INTO public.pollux_schema_version VALUES ('0105');
INSERT INTO public.reallocation_nodes VALUES (1, 'source', 'n0', 2);
INSERT INTO public.reallocation_nodes VALUES (1, 'target', 'n1', 3);
INSERT INTO public.reallocation_nodes VALUES (1, 'target', 'n2', 1);
INSERT INTO public.reallocation_nodes VALUES (2, 'source', 'n0', 2);
INSERT INTO public.reallocation_nodes VALUES (2, 'target', 'n0', 2);
INSERT INTO public.reallocation_nodes VALUES (2, 'target', 'n1', 1);
INSERT INTO public.reallocation_nodes VALUES (3, 'source', 'n0', 2);
INSERT INTO public.reallocation_nodes VALUES (3, 'target', 'n1', 3);
INSERT INTO public.reallocation_nodes VALUES (3, 'target', 'n2', 1);
INSERT INTO public.reallocation_nodes VALUES (3, 'refused', 'n9', 4);
INSERT INTO public.reallocation_steps VALUES (1, 'planned', '2026-03-01 12:00:20+00');
INSERT INTO public.reallocation_steps VALUES (1, 'checkpoint_requested', '2026-03-01 12:00:21+00');
INSERT INTO public.reallocation_steps VALUES (1, 'checkpointed', '2026-03-01 12:00:23+00');
INSERT INTO public.reallocation_steps VALUES (1, 'requeued', '2026-03-01 12:00:24+00');
INSERT INTO public.reallocation_steps VALUES (1, 'reshaped', '2026-03-01 12:00:25+00');
INSERT INTO public.reallocation_steps VALUES (1, 'released', '2026-03-01 12:00:27+00');
INSERT INTO public.reallocation_steps VALUES (1, 'running', '2026-03-01 12:00:29+00');
INSERT INTO public.reallocation_steps VALUES (1, 'confirmed', '2026-03-01 12:00:36+00');
INSERT INTO public.reallocation_steps VALUES (2, 'planned', '2026-03-01 12:02:00+00');
INSERT INTO public.reallocation_steps VALUES (2, 'regroup_requested', '2026-03-01 12:02:01+00');
INSERT INTO public.reallocation_steps VALUES (2, 'regrouped', '2026-03-01 12:02:09+00');
INSERT INTO public.reallocation_steps VALUES (2, 'confirmed', '2026-03-01 12:02:10+00');
INSERT INTO public.reallocation_steps VALUES (3, 'planned', '2026-03-01 12:03:20+00');
INSERT INTO public.reallocations VALUES (1, 1, NULL, 'confirmed', true, 0, 'decision', false, false, false, false, false, NULL, NULL, 'requeue', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.reallocations VALUES (2, 2, NULL, 'confirmed', true, 0, 'decision', false, false, false, false, false, NULL, NULL, 'in_place', 1, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.reallocations VALUES (3, 2, NULL, 'planned', true, 0, 'pause', false, false, false, false, false, 'by root', NULL, 'requeue', NULL, 'not_now', '2026-03-01 12:03:30+00', 'AssocGrpGRES', '', 4000000000, NULL);
INSERT INTO public.rounds VALUES (1, '2026-03-01 12:00:03+00', false, 'generalized-mean', 'test', 0.8, '{"format":"pollux-problem","version":1,"problem":{"nodes":[{"name":"n1","num_gpus":4,"num_cpus":8,"memory_mb":16000,"gpu_type":"t4","accepts_new":true,"several_wings":false}],"jobs":[{"job_id":"1","model":{"limits":{"initial_batch_size":128,"max_batch_size":1024,"min_atomic":1,"max_atomic":256,"accumulation":true},"statistics":{"sqr":0.5,"var":3.0,"noise_low":500.0,"noise_high":1000.0},"throughput":{"alpha_g":0.05,"beta_g":0.001,"alpha_n":0.04,"beta_n":0.002,"alpha_l":0.03,"beta_l":0.001,"gamma":1.5},"max_gpus_seen":2,"max_nodes_seen":1},"models":[],"min_gpus":1,"max_gpus":8,"cpus_per_gpu":1,"memory_per_gpu_mb":0,"age_s":61.5,"num_restarts":0,"restart_delay_s":30.0,"wings":[],"in_place_delay_s":null,"current":{"n1":2},"pinned":false,"pinned_because":null,"partition_nodes":["n1"],"weight":1.0,"account":"","user":"","share":1.0,"share_note":null,"rigid":false,"progress":null,"epochs_done":null,"epochs_declared":null,"declaration_doubt":null,"expected_progress":null,"model_doubt":null,"kind_note":null,"waiting_s":0.0,"qos":"","prediction_error":0.0,"held_off":false,"one_node":false,"refused":[],"course":null,"finish_by_s":null,"promise":null,"promised_gpus":0}],"objective":{"name":"generalized-mean","exponent":-1.0,"floor":0.001,"penalty":"paper","horizon_s":600.0,"fair_share_gpus":null,"between":"jobs"},"seed":7,"limits":[],"moving":{"hysteresis":0.0,"max_reallocations":null,"min_age_s":0.0,"min_remaining_s":0.0,"pauses":false},"gpu_speeds":[],"uneven":null,"max_wait_s":null}}', '{"format":"pollux-decision","version":1,"decision":{"jobs":[{"job_id":"1","allocation":{"m1":1,"n1":3},"speedup":1.75,"goodput":320.5,"penalty":0.9,"batch":{"global_batch_size":256,"atomic_batch_size":64,"accumulation_steps":1},"bound_by":"capacity","runner_up":{"num_nodes":1,"num_gpus":3},"runner_up_speedup":1.5,"runner_up_cost":-0.25,"cost":1.0,"gpu_type":"t4","runner_up_gpu_type":"a100","declared_gain":1.5,"declaration_doubt":null,"pinned_because":"it is being moved","way":null,"move_delay_s":null}],"fitness":0.8,"solver":"test","excluded":[["99","its minimum does not fit"]],"upper_bound":0.9,"gap":0.1111111111111111,"gpu_prices":[["a100",0.5],["t4",0.25]],"times_s":[],"timed_out":true}}', 0.9, 0.1111111111111111, true, 1, 1, 4, 4, 4, 1.75, 1.75, NULL);
INSERT INTO public.run_days VALUES (1, '2026-03-01', 2, 8000, 22.28, 44.56, 4456, 22.28, 3564.8, 17.824, 35.648, 2, 22.28, 4456, 4233.2, -0.10000000000000009, 0.10000000000000009, 4456);
INSERT INTO public.run_days VALUES (3, '2026-03-01', 1, 16, 1.28, 2.56, 256, 1.28, 204.8, 1.024, 2.048, 1, 1.28, 256, 243.20000000000002, -0.050000000000000044, 0.050000000000000044, 256);
INSERT INTO public.run_days VALUES (5, '2026-03-01', 1, 8, 1.28, 2.56, 256, 1.28, 204.8, 1.024, 2.048, 1, 1.28, 256, 243.20000000000002, -0.050000000000000044, 0.050000000000000044, 256);
INSERT INTO public.run_nodes VALUES (1, 0, 2);
INSERT INTO public.run_nodes VALUES (3, 0, 3);
INSERT INTO public.run_nodes VALUES (3, 1, 1);
INSERT INTO public.run_nodes VALUES (5, 0, 2);
INSERT INTO public.run_warnings VALUES (1, 'never_stepped', '2026-03-01 12:00:02+00');
INSERT INTO public.runs VALUES (1, 1, 0, 0, 'waiting', '2026-03-01 12:00:02+00', '2026-03-01 12:00:23+00', 1000, 10000, NULL, NULL, NULL, NULL);
INSERT INTO public.runs VALUES (3, 1, 1, 1, 'training', '2026-03-01 12:00:31+00', '2026-03-01 12:00:35+00', 2, 20, 5, '2026-03-01 12:00:35+00', 1, NULL);
INSERT INTO public.runs VALUES (5, 2, 0, 0, 'training', '2026-03-01 12:01:50+00', '2026-03-01 12:01:50+00', 1, 10, NULL, NULL, NULL, NULL);
INSERT INTO public.users VALUES (1001, 'ada');
SELECT pg_catalog.setval('public.jobs_id_seq', 2, true);
SELECT pg_catalog.setval('public.model_versions_id_seq', 3, true);
SELECT pg_catalog.setval('public.reallocations_id_seq', 3, true);
SELECT pg_catalog.setval('public.rounds_id_seq', 1, true);
SELECT pg_catalog.setval('public.runs_id_seq', 5, true);
ALTER TABLE ONLY public.accounts
    ADD CONSTRAINT pk_accounts PRIMARY KEY (account);
ALTER TABLE ONLY public.allocation_days
    ADD CONSTRAINT pk_allocation_days PRIMARY KEY (job_id, number, day);
ALTER TABLE ONLY public.allocation_nodes
    ADD CONSTRAINT pk_allocation_nodes PRIMARY KEY (job_id, number, node_name);
ALTER TABLE ONLY public.allocations
    ADD CONSTRAINT pk_allocations PRIMARY KEY (job_id, number);
ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT pk_checkpoints PRIMARY KEY (run_id, sequence);
ALTER TABLE ONLY public.decision_nodes
    ADD CONSTRAINT pk_decision_nodes PRIMARY KEY (round_id, job_id, node_name);
ALTER TABLE ONLY public.decisions
    ADD CONSTRAINT pk_decisions PRIMARY KEY (round_id, job_id);
ALTER TABLE ONLY public.declarations
    ADD CONSTRAINT pk_declarations PRIMARY KEY (job_id, number);
ALTER TABLE ONLY public.generation_members
    ADD CONSTRAINT pk_generation_members PRIMARY KEY (job_id, number, rank);
ALTER TABLE ONLY public.generations
    ADD CONSTRAINT pk_generations PRIMARY KEY (job_id, number);
ALTER TABLE ONLY public.goodput_samples
    ADD CONSTRAINT pk_goodput_samples PRIMARY KEY (run_id, sequence);
ALTER TABLE ONLY public.gpu_prices
    ADD CONSTRAINT pk_gpu_prices PRIMARY KEY (round_id, gpu_type);
ALTER TABLE ONLY public.job_days
    ADD CONSTRAINT pk_job_days PRIMARY KEY (job_id, day);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (id);
ALTER TABLE ONLY public.leases
    ADD CONSTRAINT pk_leases PRIMARY KEY (name);
ALTER TABLE ONLY public.model_versions
    ADD CONSTRAINT pk_model_versions PRIMARY KEY (id);
ALTER TABLE ONLY public.node_days
    ADD CONSTRAINT pk_node_days PRIMARY KEY (node_name, day);
ALTER TABLE ONLY public.nodes
    ADD CONSTRAINT pk_nodes PRIMARY KEY (node_name);
ALTER TABLE ONLY public.reallocation_nodes
    ADD CONSTRAINT pk_reallocation_nodes PRIMARY KEY (reallocation_id, side, node_name);
ALTER TABLE ONLY public.reallocation_steps
    ADD CONSTRAINT pk_reallocation_steps PRIMARY KEY (reallocation_id, step);
ALTER TABLE ONLY public.reallocations
    ADD CONSTRAINT pk_reallocations PRIMARY KEY (id);
ALTER TABLE ONLY public.rounds
    ADD CONSTRAINT pk_rounds PRIMARY KEY (id);
ALTER TABLE ONLY public.run_days
    ADD CONSTRAINT pk_run_days PRIMARY KEY (run_id, day);
ALTER TABLE ONLY public.run_nodes
    ADD CONSTRAINT pk_run_nodes PRIMARY KEY (run_id, node_rank);
ALTER TABLE ONLY public.run_warnings
    ADD CONSTRAINT pk_run_warnings PRIMARY KEY (run_id, warning);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT pk_runs PRIMARY KEY (id);
ALTER TABLE ONLY public.users
    ADD CONSTRAINT pk_users PRIMARY KEY (user_id);
ALTER TABLE ONLY public.pollux_schema_version
    ADD CONSTRAINT pollux_schema_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.declarations
    ADD CONSTRAINT uq_declarations_job_id_total_epochs UNIQUE (job_id, total_epochs);
ALTER TABLE ONLY public.generation_members
    ADD CONSTRAINT uq_generation_members_job_id_number_member_id UNIQUE (job_id, number, member_id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT uq_jobs_token_sha256_user_id UNIQUE (token_sha256, user_id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT uq_runs_job_id_run_number UNIQUE (job_id, run_number);
CREATE INDEX ix_allocation_days_day ON public.allocation_days USING btree (day);
CREATE INDEX ix_allocation_nodes_node_name ON public.allocation_nodes USING btree (node_name);
CREATE INDEX ix_allocations_started_at ON public.allocations USING btree (started_at);
CREATE INDEX ix_checkpoints_at ON public.checkpoints USING btree (at);
CREATE INDEX ix_decisions_job_id_round_id ON public.decisions USING btree (job_id, round_id);
CREATE INDEX ix_goodput_samples_at ON public.goodput_samples USING btree (at);
CREATE INDEX ix_job_days_day ON public.job_days USING btree (day);
CREATE INDEX ix_jobs_account_submitted_at ON public.jobs USING btree (account, submitted_at);
CREATE INDEX ix_jobs_estimated ON public.jobs USING btree (estimated) WHERE estimated;
CREATE INDEX ix_jobs_finished_at ON public.jobs USING btree (finished_at);
CREATE INDEX ix_jobs_first_job_id ON public.jobs USING btree (first_job_id);
CREATE INDEX ix_jobs_kind_id ON public.jobs USING btree (kind, id);
CREATE INDEX ix_jobs_slurm_job_id_id ON public.jobs USING btree (slurm_job_id, id);
CREATE INDEX ix_jobs_started_at ON public.jobs USING btree (started_at);
CREATE INDEX ix_jobs_submitted_at ON public.jobs USING btree (submitted_at);
CREATE INDEX ix_jobs_user_id_submitted_at ON public.jobs USING btree (user_id, submitted_at);
CREATE INDEX ix_model_versions_job_id_id ON public.model_versions USING btree (job_id, id);
CREATE INDEX ix_model_versions_job_id_run_number_id ON public.model_versions USING btree (job_id, run_number, id);
CREATE INDEX ix_node_days_day ON public.node_days USING btree (day);
CREATE INDEX ix_reallocation_steps_at ON public.reallocation_steps USING btree (at);
CREATE INDEX ix_reallocation_steps_step_at ON public.reallocation_steps USING btree (step, at);
CREATE INDEX ix_reallocations_job_id_id ON public.reallocations USING btree (job_id, id);
CREATE INDEX ix_reallocations_round_id ON public.reallocations USING btree (round_id);
CREATE INDEX ix_rounds_at ON public.rounds USING btree (at);
CREATE INDEX ix_run_days_day ON public.run_days USING btree (day);
CREATE INDEX ix_runs_first_report_at ON public.runs USING btree (first_report_at);
CREATE UNIQUE INDEX uq_allocations_open ON public.allocations USING btree (job_id) WHERE (ended_at IS NULL);
CREATE UNIQUE INDEX uq_checkpoints_reallocation_id ON public.checkpoints USING btree (reallocation_id);
CREATE UNIQUE INDEX uq_generations_open ON public.generations USING btree (job_id) WHERE ((state)::text = ANY ((ARRAY['planned'::character varying, 'committed'::character varying])::text[]));
CREATE UNIQUE INDEX uq_jobs_unfinished_slurm_job_id ON public.jobs USING btree (slurm_job_id) WHERE (finished_at IS NULL);
CREATE UNIQUE INDEX uq_reallocations_open ON public.reallocations USING btree (job_id) WHERE ((step)::text <> ALL ((ARRAY['confirmed'::character varying, 'rolled_back'::character varying, 'failed'::character varying])::text[]));
ALTER TABLE ONLY public.allocation_days
    ADD CONSTRAINT fk_allocation_days_job_id_number_allocations FOREIGN KEY (job_id, number) REFERENCES public.allocations(job_id, number) ON DELETE CASCADE;
ALTER TABLE ONLY public.allocation_nodes
    ADD CONSTRAINT fk_allocation_nodes_job_id_number_allocations FOREIGN KEY (job_id, number) REFERENCES public.allocations(job_id, number) ON DELETE CASCADE;
ALTER TABLE ONLY public.allocations
    ADD CONSTRAINT fk_allocations_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT fk_checkpoints_reallocation_id_reallocations FOREIGN KEY (reallocation_id) REFERENCES public.reallocations(id) ON DELETE SET NULL;
ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT fk_checkpoints_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.decision_nodes
    ADD CONSTRAINT fk_decision_nodes_round_id_job_id_decisions FOREIGN KEY (round_id, job_id) REFERENCES public.decisions(round_id, job_id) ON DELETE CASCADE;
ALTER TABLE ONLY public.decisions
    ADD CONSTRAINT fk_decisions_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.decisions
    ADD CONSTRAINT fk_decisions_round_id_rounds FOREIGN KEY (round_id) REFERENCES public.rounds(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.declarations
    ADD CONSTRAINT fk_declarations_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.generation_members
    ADD CONSTRAINT fk_generation_members_job_id_number_generations FOREIGN KEY (job_id, number) REFERENCES public.generations(job_id, number) ON DELETE CASCADE;
ALTER TABLE ONLY public.generations
    ADD CONSTRAINT fk_generations_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.goodput_samples
    ADD CONSTRAINT fk_goodput_samples_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.gpu_prices
    ADD CONSTRAINT fk_gpu_prices_round_id_rounds FOREIGN KEY (round_id) REFERENCES public.rounds(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.job_days
    ADD CONSTRAINT fk_job_days_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT fk_jobs_account_accounts FOREIGN KEY (account) REFERENCES public.accounts(account);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT fk_jobs_user_id_users FOREIGN KEY (user_id) REFERENCES public.users(user_id);
ALTER TABLE ONLY public.model_versions
    ADD CONSTRAINT fk_model_versions_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.node_days
    ADD CONSTRAINT fk_node_days_node_name_nodes FOREIGN KEY (node_name) REFERENCES public.nodes(node_name) ON DELETE CASCADE;
ALTER TABLE ONLY public.reallocation_nodes
    ADD CONSTRAINT fk_reallocation_nodes_reallocation_id_reallocations FOREIGN KEY (reallocation_id) REFERENCES public.reallocations(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.reallocation_steps
    ADD CONSTRAINT fk_reallocation_steps_reallocation_id_reallocations FOREIGN KEY (reallocation_id) REFERENCES public.reallocations(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.reallocations
    ADD CONSTRAINT fk_reallocations_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.reallocations
    ADD CONSTRAINT fk_reallocations_round_id_rounds FOREIGN KEY (round_id) REFERENCES public.rounds(id) ON DELETE SET NULL;
ALTER TABLE ONLY public.run_days
    ADD CONSTRAINT fk_run_days_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.run_nodes
    ADD CONSTRAINT fk_run_nodes_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.run_warnings
    ADD CONSTRAINT fk_run_warnings_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT fk_runs_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
