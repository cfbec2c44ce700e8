"""Jobs of public traces, read from made samples in the form in which each is published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator import read_applications
from pollux_slurm.simulator.inputs.batch_splits import user_training_time_s
from pollux_slurm.simulator.site.public_traces import read_public_trace
from pollux_slurm.simulator.site.used_jobs import UsedJob, as_workload
from tests.published import traces_dir

SAMPLES = Path(__file__).resolve().parent.parent / "public_traces"
FILES = {"philly": "cluster_job_log", "helios": "cluster_log.csv", "pai": "pai_task_table.csv"}


def jobs_of(form: str, **window: float) -> dict[str, UsedJob]:
    return {job.name: job for job in read_public_trace(form, SAMPLES / FILES[form], **window).jobs}


def test_that_a_job_of_philly_has_the_time_of_all_attempts_and_the_gpus_of_the_last() -> None:
    found = jobs_of("philly")
    assert list(found) == ["application_1", "application_4"], "one never ran, one still runs"
    first = found["application_1"]
    assert (first.num_gpus, first.gpu_s) == (4, 2 * 60 + 4 * 3600)
    assert (first.user, first.account) == ("u1", "v1")
    assert found["application_4"].submitted_s - first.submitted_s == 4 * 3600


def test_that_a_job_of_philly_in_its_second_attempt_still_runs(tmp_path: Path) -> None:
    file = tmp_path / "log"
    entries = json.loads((SAMPLES / FILES["philly"]).read_text())
    entries[0]["attempts"][1]["end_time"] = "None"
    file.write_text(json.dumps(entries))
    assert [job.name for job in read_public_trace("philly", file).jobs] == ["application_4"]


def test_that_a_job_of_pai_comes_with_its_first_task(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("j,a,1,Terminated,1000,2000,,,100,\nj,b,1,Terminated,1500,2000,,,100,\n")
    (job,) = read_public_trace("pai", file).jobs
    assert (job.submitted_s, job.num_gpus, job.gpu_s) == (1000, 2, 1500)


def test_that_a_table_of_pai_may_have_a_header(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    file.write_text(header + (SAMPLES / FILES["pai"]).read_text())
    assert [job.name for job in read_public_trace("pai", file).jobs] == ["j1", "j3"]


def test_that_a_job_of_helios_has_its_columns() -> None:
    found = jobs_of("helios")
    assert list(found) == ["11", "14"]
    assert (found["11"].num_gpus, found["11"].gpu_s) == (8, 8 * 3600)
    assert (found["11"].user, found["11"].account) == ("ua", "vca")
    assert read_public_trace("helios", SAMPLES / FILES["helios"]).num_left_out == 2


def test_that_a_job_of_pai_has_whole_gpus_and_the_time_of_its_parts() -> None:
    found = jobs_of("pai")
    assert list(found) == ["j1", "j3"], "j2 still runs"
    assert (found["j1"].num_gpus, found["j1"].gpu_s) == (2, 3 * 0.5 * 3600)
    assert (found["j3"].num_gpus, found["j3"].gpu_s) == (4, 4 * 60)


def test_that_a_window_of_hours_is_cut_out() -> None:
    assert list(jobs_of("philly", hours=3)) == ["application_1"]
    assert list(jobs_of("philly", skip_hours=3)) == ["application_4"]
    with pytest.raises(TraceError, match="no ended job with GPUs in this time"):
        jobs_of("philly", skip_hours=9)


@pytest.mark.parametrize("form", FILES)
def test_that_jobs_train_for_their_own_gpu_time(form: str) -> None:
    applications = read_applications(traces_dir())
    used = jobs_of(form)
    for job in as_workload(tuple(used.values()), applications):
        gpu_s = job.num_replicas * user_training_time_s(job, applications[job.application], 4)
        assert gpu_s == pytest.approx(used[job.name].gpu_s)


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        ("philly", "{", "not JSON"),
        ("philly", "{}", "expected a list of jobs"),
        ("philly", "[{}]", "job 0 of the list has no jobid"),
        (
            "philly",
            '[{"jobid": "a", "vc": "", "user": "", "submitted_time": "soon", "attempts": [{"start_time": '
            '"2017-10-07 01:00:00", "end_time": "2017-10-07 02:00:00", "detail": [{"gpus": ["g"]}]}]}]',
            "job a: 'soon' is not a time such as 2017-10-07",
        ),
        ("helios", "job_id,user\n1,u\n", "no column 'vc'"),
        ("pai", "a,b\n", "line 1 has 2 columns; expected job_name, task_name"),
        ("pai", "a,b,x,T,1,2,3,4,100,T4\n", "job a: inst_num is 'x'; expected a number"),
    ],
)
def test_that_another_file_is_refused(tmp_path: Path, form: str, text: str, message: str) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_public_trace(form, file)


def test_that_an_unknown_form_names_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="unknown form 'borg' of a trace; there are philly, helios, pai"):
        read_public_trace("borg", tmp_path)
