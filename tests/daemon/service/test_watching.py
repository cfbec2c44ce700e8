"""Alerts and the Prometheus board rest on exported metrics, and on PromQL that Prometheus reads."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pollux_slurm.resources import resource_dir
from pollux_slurm.store.contract.interface import Store
from tests.daemon.harness import Harness

ALERTS = resource_dir("sql") / "prometheus" / "alerts.yml"
BOARD = resource_dir("sql") / "grafana" / "prometheus.json"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool: .ci/packages tests gets it")


def board_expressions() -> list[str]:
    """Return the board's queries with Grafana's variables as it replaces them."""
    panels = json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    replaced = [re.sub(r"\$(instance|gpu_type)", ".*", expr) for expr in found]
    replaced = [expr.replace("$__rate_interval", "4m") for expr in replaced]
    assert not [expr for expr in replaced if "$" in expr]
    return replaced


def promtool(*words: str) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_that_each_alert_fires_and_stays_quiet() -> None:
    promtool("check", "rules", str(ALERTS))
    promtool("test", "rules", str(Path(__file__).with_name("alerts_test.yml")))


def test_that_each_alert_is_tested_and_says_what_to_type() -> None:
    text = ALERTS.read_text(encoding="utf-8")
    names = re.findall(r"alert: (\w+)", text)
    tested = Path(__file__).with_name("alerts_test.yml").read_text(encoding="utf-8")
    assert len(names) == 8
    assert [name for name in names if name not in tested] == []
    for rule in text.split("- alert:")[1:]:
        assert re.search(r"severity: (critical|warning)\n", rule)
        assert re.search(r"for: \d+[mh]\n", rule)
        assert re.search(r"description: >-(.|\n)*(pollux |journalctl)", rule)


@needs_promtool
def test_that_the_boards_queries_are_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:number_{place}", "expr": expr} for place, expr in enumerate(board_expressions())
    ]
    assert len(rules) >= 14
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))  # JSON is YAML
    promtool("check", "rules", str(file))


def test_that_each_metric_of_alerts_and_board_is_exported_with_its_labels(store: Store) -> None:
    harness = Harness(store)
    daemon = harness.daemon()
    daemon.metrics.count_command("squeue")  # Slurm in memory runs none
    harness.submit(gpus=2)
    harness.run_until(daemon, seconds=3)
    families = text_string_to_metric_families(generate_latest(daemon.metrics.registry).decode())
    exported: dict[str, dict[str, set[str]]] = {}
    for sample in (one for family in families for one in family.samples):
        labels = exported.setdefault(sample.name, {})
        for label, value in sample.labels.items():
            labels.setdefault(label, set()).add(value)
    expressions = [
        *board_expressions(),
        *re.findall(r"expr: ((?:.|\n)*?)\n +for:", ALERTS.read_text("utf-8")),
    ]
    used = {name for expr in expressions for name in re.findall(r"pollux_\w+", expr)}
    assert used - exported.keys() == set()
    for name, matchers in re.findall(r"(pollux_\w+)\{([^}]*)\}", "\n".join(expressions)):
        for label, operator, value in re.findall(r'(\w+)(=~|!~|=)"([^"]*)"', matchers):
            if label == "instance":  # Prometheus adds it
                continue
            assert label in exported[name], (name, label)
            values = value.split("|") if operator == "!~" else [value] if operator == "=" else []
            assert set(values) <= exported[name][label], (name, label)


def test_that_a_round_counts_the_gpus_and_what_it_was_built_from(store: Store) -> None:
    harness = Harness(store)
    daemon = harness.daemon()
    daemon.metrics.describe_build(slurm="22.05.8", store="sqlite")
    harness.submit(gpus=2)
    harness.run_until(daemon, seconds=3)
    text = generate_latest(daemon.metrics.registry).decode()
    gpus = {
        state: float(found[1])
        for state in ("adaptive", "other", "free", "unavailable")
        if (found := re.search(rf'pollux_gpus\{{gpu_type="\w*",state="{state}"\}} (\S+)', text))
    }
    nodes = harness.slurm.snapshot().nodes
    assert gpus["adaptive"] == 2
    assert gpus["other"] == gpus["unavailable"] == 0
    assert sum(gpus.values()) == sum(node.num_gpus for node in nodes)
    assert "pollux_gpus_idle_while_waiting 0.0" in text.splitlines()
    assert 'pollux_build_info{slurm="22.05.8",store="sqlite",version="' in text
