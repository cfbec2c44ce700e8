"""Settings: file, environment above it, and one clear line for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.config import Config, load_config
from pollux_slurm.errors import ConfigError


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "pollux.toml"
    file.write_text(text)
    return file


def test_that_an_empty_environment_gives_the_defaults() -> None:
    assert load_config({}) == Config()


def test_that_the_environment_stands_above_the_file(tmp_path: Path) -> None:
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
        ("[daemon]\ninterval_s = -1\n", "daemon.interval_s: expected a positive float"),
        ("[daemon]\ninterval_s = nan\n", "daemon.interval_s: expected a positive float"),
        ("[daemon]\ninterval_s = true\n", "daemon.interval_s: expected a positive float"),
        ("[daemon]\nmax_in_flight = 1.5\n", "daemon.max_in_flight: expected a positive int"),
        ('[daemon]\nshadow = "yes"\n', "daemon.shadow: expected true or false"),
        ("store = 1\n", "[store] must be a table"),
        ("[store\n", "not valid TOML"),
    ],
)
def test_that_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config({}, path=file)
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


def test_that_a_mistake_in_the_environment_names_the_variable() -> None:
    with pytest.raises(
        ConfigError, match=r"\$POLLUX_DAEMON_INTERVAL_S: expected a positive float, not 'soon'"
    ):
        load_config({"POLLUX_DAEMON_INTERVAL_S": "soon"})


def test_that_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such configuration file"):
        load_config({"POLLUX_CONFIG": str(tmp_path / "none.toml")})


def test_that_a_missing_store_says_how_to_set_one() -> None:
    with pytest.raises(ConfigError, match="set POLLUX_STORE_URL="):
        Config().require_store_url()
