"""Settings: the file, variables that override it, and one clear line for each error."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest

from pollux_slurm.cli.site import settings_text
from pollux_slurm.config import Config, PolicyConfig, load_config
from pollux_slurm.errors import ConfigError
from pollux_slurm.policy import OBJECTIVES, SOLVERS
from pollux_slurm.policy.participation.problem_checks import PENALTIES


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "pollux.toml"
    file.write_text(text)
    return file


def test_that_an_empty_environment_gives_the_defaults() -> None:
    assert load_config({}) == Config()


def test_that_variables_override_the_file(tmp_path: Path) -> None:
    file = written(
        tmp_path, '[store]\nurl = "sqlite:////a.db"\n[daemon]\ninterval_s = 30\npartitions = ["gpu"]\n'
    )
    environ = {
        "POLLUX_CONFIG": str(file),
        "POLLUX_STORE_URL": "sqlite:////b.db",
        "POLLUX_DAEMON_SHADOW": "yes",
    }
    config = load_config(environ)
    assert config.store.url == "sqlite:////b.db"
    assert config.daemon.interval_s == 30
    assert config.daemon.partitions == ("gpu",)
    assert config.daemon.shadow is True
    assert config.path == file


def test_that_lists_in_the_environment_are_separated_by_commas() -> None:
    assert load_config({"POLLUX_DAEMON_PARTITIONS": "gpu, long,"}).daemon.partitions == ("gpu", "long")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[stores]\n", "unknown table [stores]"),
        ('[store]\nurll = "x"\n', "unknown key store.urll; known: url"),
        ("[store]\nurl = 3\n", "store.url: expected a text"),
        ("[daemon]\ninterval_s = -1\n", "daemon.interval_s: expected a number from 0.5 to 86400"),
        ("[daemon]\ninterval_s = nan\n", "daemon.interval_s: expected a number from 0.5 to 86400"),
        ("[daemon]\ninterval_s = true\n", "daemon.interval_s: expected a number from 0.5 to 86400"),
        ("[daemon]\nmax_in_flight = 1.5\n", "daemon.max_in_flight: expected a whole number from 1 to"),
        ('[daemon]\nshadow = "yes"\n', "daemon.shadow: expected true or false"),
        ('[policy]\nobjectiv = "osdi21"\n', "unknown key policy.objectiv; known: objective, between"),
        (
            '[policy]\nobjective = "sum"\n',
            "objective: expected one of generalized-mean, osdi21, price-rank, attained-work, not 'sum'",
        ),
        ("[policy]\nobjective = 1\n", "policy.objective: expected a text"),
        (
            '[policy]\nbetween = "teams"\n',
            "policy.between: expected one of users, accounts, jobs, not 'teams'",
        ),
        ("[policy]\nexponent = nan\n", "policy.exponent: expected a number from -20 to 20, not nan"),
        ("[policy]\nexponent = inf\n", "policy.exponent: expected a number from -20 to 20, not inf"),
        ("[policy]\nfloor = 0\n", "policy.floor: expected a number from 1e-09 to 1, not 0"),
        ("[policy]\nfair_share_gpus = 0\n", "policy.fair_share_gpus: expected a whole number from 1 to 1024"),
        ("[policy]\nfair_share_gpus = 2.5\n", "policy.fair_share_gpus: expected a whole number from 1"),
        ('[policy]\npenalty = "age"\n', "policy.penalty: expected one of paper, amortised, not 'age'"),
        ("[policy]\nhorizon_s = 0\n", "policy.horizon_s: expected a number from 1 to 1e+12, not 0"),
        ('[policy]\nsolver = "fast"\n', "policy.solver: expected one of search, genetic, greedy"),
        ("[policy]\ntime_limit_s = 0\n", "policy.time_limit_s: expected a number from 0.001 to 86400"),
        (
            "[policy]\nhysteresis = 1.0\n",
            "policy.hysteresis: expected a number of at least 0 and below 1, not 1.0",
        ),
        ("[policy]\nmin_age_s = -1\n", "policy.min_age_s: expected a number from 0 to 1e+12, not -1"),
        ("[policy]\nmax_reallocations = true\n", "policy.max_reallocations: expected a whole number"),
        ("[policy]\nmax_wait_s = nan\n", "policy.max_wait_s: expected a number from 0 to 1e+12, not nan"),
        ("[policy.account_limits]\nx = -1\n", "policy.account_limits.x: expected a whole number from 0"),
        ("[policy.user_limits]\nx = 1.5\n", "policy.user_limits.x: expected a whole number from 0"),
        ("[policy]\nuser_limits = 3\n", "policy.user_limits: expected a table of names"),
        ('[policy.user_limits]\n"" = 3\n', "policy.user_limits: a name is empty"),
        (
            "[policy.account_weights]\nx = -2\n",
            "policy.account_weights.x: expected a number from 0.01 to 100, not -2",
        ),
        ('[policy.job_weights]\n7 = "2"\n', "policy.job_weights.7: expected a number from 0.01 to 100"),
        ("[policy.job_weights]\n'*' = 2\n", "* stands for all others in account_limits and user_limits only"),
        ("[policy.gpu_speeds]\n'*' = 2\n", "* stands for all others in account_limits and user_limits only"),
        ("[policy.gpu_speeds]\nt4 = 0\n", "policy.gpu_speeds.t4: expected a number from 1e-06 to 1e+06"),
        ("[policy]\nseed = -1\n", "policy.seed: expected a whole number from 0"),
        ("store = 1\n", "[store] must be a table"),
        ("[store\n", "not valid TOML"),
        pytest.param("x = 1" + "0" * 5000, "not valid TOML: Exceeds the limit", id="long"),
        pytest.param("x = " + "[" * 100_000 + "]" * 100_000, "not valid TOML: maximum recursion", id="deep"),
    ],
)
def test_that_an_error_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config({}, path=file)
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('# one\n\n[policy]\nseed = 1\nexponent = "x"\n', 5),
        ("[daemon]\npartitions = [\n  'a', # ]\n  'b',\n]\ninterval_s = true\n", 6),
        ("[daemon]\npartitions = [\n  1,\n  'b',\n]\n", 2),
        ("policy.seed = 1\npolicy.floor = 0\n", 2),
        ('[store]\nurl = """\n[policy]\nfloor = 0\n"""\n\n[policy]\nfloor = 0\n', 8),
        ("[policy.user_limits]\nada = 4\n'b o b' = -4\n", 3),
        ("[policy]\nuser_limits = { ada = 4, bob = -4 }\n", 2),
        ("[policy]\nseed = 1\n[daemon]\ninterval = 5\n", 4),
        ("[policy]\nseed = 1\n\n[demon]\ninterval = 5\n", 4),
        ("\n\nstore = 1\n", 3),
    ],
)
def test_that_an_error_in_the_file_has_its_line(tmp_path: Path, text: str, line: int) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config({}, path=file)
    assert str(caught.value).startswith(f"{file}, line {line}: ")


def test_that_an_error_in_a_huge_file_is_named_without_its_line(tmp_path: Path) -> None:
    file = written(tmp_path, "# nothing\n" * 600 + "[policy]\nfloor = 0\n")
    with pytest.raises(ConfigError, match=r"pollux\.toml: policy\.floor: expected"):
        load_config({}, path=file)


def test_that_the_solver_may_be_called_exact_in_the_file_and_in_a_variable(tmp_path: Path) -> None:
    file = written(tmp_path, '[policy]\nsolver = "exact"\n')
    assert load_config({}, path=file).policy.solver == "search"
    assert load_config({"POLLUX_POLICY_SOLVER": "exact"}).policy.solver == "search"


def test_that_an_error_in_a_variable_names_it() -> None:
    with pytest.raises(
        ConfigError, match=r"\$POLLUX_DAEMON_INTERVAL_S: expected a number from 0.5 to 86400, not 'soon'"
    ):
        load_config({"POLLUX_DAEMON_INTERVAL_S": "soon"})


def test_that_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such configuration file"):
        load_config({"POLLUX_CONFIG": str(tmp_path / "none.toml")})


def test_that_the_environment_can_name_tables_of_numbers() -> None:
    environ = {"POLLUX_POLICY_ACCOUNT_LIMITS": "vision=64, *=8", "POLLUX_POLICY_MAX_WAIT_S": "600"}
    policy = load_config(environ).policy
    assert policy.account_limits == (("vision", 64), ("*", 8))
    assert policy.max_wait_s == 600.0
    for bad in ("vision", "=3", "x=1,x=2", "x=1.5", "x=y"):
        with pytest.raises(ConfigError, match=r"\$POLLUX_POLICY_ACCOUNT_LIMITS"):
            load_config({"POLLUX_POLICY_ACCOUNT_LIMITS": bad})


def test_that_every_setting_has_its_origin(tmp_path: Path) -> None:
    file = written(tmp_path, "[daemon]\ninterval_s = 30\ntick_s = 1\n")
    config = load_config({"POLLUX_DAEMON_TICK_S": "2"}, path=file)
    origins = dict(config.origins)
    assert origins["daemon.interval_s"] == str(file)
    assert origins["daemon.tick_s"] == "$POLLUX_DAEMON_TICK_S"
    assert origins["policy.exponent"] == "default"


def test_that_objectives_solvers_and_penalties_are_those_of_the_policy() -> None:
    choices = {field.name: field.metadata.get("choices") for field in dataclasses.fields(PolicyConfig)}
    assert set(choices["objective"]) == set(OBJECTIVES)
    assert set(choices["solver"]) == set(SOLVERS)
    assert choices["penalty"] == PENALTIES


def test_that_the_example_holds_the_defaults_and_names_every_key(tmp_path: Path) -> None:
    text = settings_text.example()
    assert load_config({}, path=written(tmp_path, text)) == dataclasses.replace(
        Config(), path=tmp_path / "pollux.toml"
    )
    # With the examples taken in, every key there is has a line.
    full = load_config({}, path=written(tmp_path, re.sub(r"^# (?=\S+ = )", "", text, flags=re.MULTILINE)))
    unset = [key for key, origin in full.origins if origin == "default"]
    assert unset == []


def test_that_a_missing_store_is_an_error_with_the_cure() -> None:
    with pytest.raises(ConfigError, match="set POLLUX_STORE_URL="):
        Config().require_store_url()


def test_that_a_number_beyond_the_range_of_floats_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_in_flight"):
        load_config({}, path=written(tmp_path, f"[daemon]\nmax_in_flight = {'9' * 400}\n"))


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("POLLUX_DAEMON_INTERVALS", "POLLUX_DAEMON_INTERVAL_S"),
        ("POLLUX_DEAMON_INTERVAL_S", "POLLUX_DAEMON_INTERVAL_S"),
        ("POLLUX_STORE_URI", "POLLUX_STORE_URL"),
        ("POLLUX_STOREURL", "POLLUX_STORE_URL"),
        ("POLLUX_POLICY_OBJEKTIVE", "POLLUX_POLICY_OBJECTIVE"),
    ],
)
def test_that_a_misspelled_variable_is_refused_with_the_right_one(variable: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"\${variable}: there is no such setting; do you mean \${meant}"):
        load_config({variable: "1"})


@pytest.mark.parametrize(
    "variable",
    [
        "POLLUX_CHECKPOINT_DIR",
        "POLLUX_TOKEN_FILE",
        "POLLUX_JOB_ID",
        "POLLUX_STEP",
        "POLLUX_RUN_SECRET",
        "POLLUX_RENDEZVOUS_FILE",
        "POLLUX_EXAMPLE_DIR",
        "MY_STORE",
    ],
)
def test_that_other_variables_are_ignored(variable: str) -> None:
    assert load_config({variable: "1"}) == load_config({})


def own_settings(folder: Path, text: str) -> Path:
    """Write a user's own settings below the home `folder`."""
    file = folder / ".config" / "pollux" / "pollux.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def test_that_a_users_own_file_is_read_and_a_named_one_goes_first(tmp_path: Path) -> None:
    own = own_settings(tmp_path, "[agent]\nreport_interval_s = 7.0\n")
    home = {"HOME": str(tmp_path)}
    config = load_config(home)
    assert (config.path, config.agent.report_interval_s) == (own, 7.0)
    assert load_config({"XDG_CONFIG_HOME": str(tmp_path / ".config")}).path == own
    other = written(tmp_path, "[checkpoints]\nkeep = 3\n")
    named = load_config({**home, "POLLUX_CONFIG": str(other)})
    assert (named.path, named.agent.report_interval_s) == (other, Config().agent.report_interval_s)
    assert load_config({**home, "HOME": str(tmp_path / "elsewhere")}).path is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_that_another_users_own_file_is_not_read(tmp_path: Path) -> None:
    """`sudo` may keep HOME: the caller's file would decide which programs root runs."""
    own = own_settings(tmp_path, '[slurm]\nbin_dir = "/home/eve/bin"\n')
    os.chown(own, 1234, 1234)
    assert load_config({"HOME": str(tmp_path)}).slurm.bin_dir is None
