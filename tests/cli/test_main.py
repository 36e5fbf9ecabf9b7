"""The command line: every command, its exit code, and errors that say what to do on one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, tiny, trained
from played import played, short

import labkit.cli.main as command_line
from labkit import __version__
from labkit.cli import bench, doctor
from labkit.course.poster import poster
from labkit.diagnosis import look_alikes, report
from labkit.failures.catalogue import FAILURES
from labkit.training import data, run_store

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture
def labkit(capsys):
    """Call a command: its exit code, what it printed, and what it complained about."""

    def call(*arguments: str):
        capsys.readouterr()
        try:
            code = command_line.main(list(arguments))
        except SystemExit as ended:  # argparse's own way out
            code = ended.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.fixture
def quick(monkeypatch) -> list:
    """Studies of sixty steps, each trained once; the recipes that were really asked for."""
    asked = []

    def train(recipe, **_):
        asked.append(recipe)
        return trained(short(recipe))

    monkeypatch.setattr(run_store, "train", train)
    return asked


def strict(text: str):
    """JSON as other languages read it: without NaN and Infinity."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def one_message(code: int, out: str, err: str) -> str:
    """A mistake of the user: exit code 2, one message and nothing else."""
    assert (code, out) == (2, "")
    assert err.startswith("labkit: ") and err.count("\n") == 1 and "Traceback" not in err
    return err


# --- help -----------------------------------------------------------------------------------------

LOADED = """
import runpy, sys
sys.argv = ["labkit", *sys.argv[1:]]
try:
    runpy.run_module("labkit", run_name="__main__", alter_sys=False)
finally:
    print("LOADED", *({"torch", "torchvision", "numpy", "matplotlib", "rich", "joblib"} & set(sys.modules)))
"""


@pytest.mark.parametrize("arguments", [["--help"], ["poster", "--help"], ["--version"], []], ids=" ".join)
def test_help_is_instant_because_nothing_heavy_is_loaded(arguments):
    command = [sys.executable, "-c", LOADED, *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert answer.stdout.splitlines()[-1] == "LOADED"
    assert answer.returncode == (0 if arguments else 2)


def test_python_m_labkit_works_and_lists_the_commands():
    answer = subprocess.run([sys.executable, "-m", "labkit", "--help"], capture_output=True, text=True, env=ENVIRONMENT)
    assert answer.returncode == 0 and answer.stderr == ""
    for name in ("list", "explain", "run", "data", "doctor", "bench", "poster", "atlas"):
        assert f"\n    {name} " in answer.stdout


def test_version(labkit):
    assert labkit("--version") == (0, f"labkit {__version__}\n", "")


@pytest.mark.parametrize("arguments", [[], ["cure"], ["list", "--what"], ["run"], ["run", "dead_relu", "--seed", "x"]])
def test_what_argparse_refuses_exits_with_two(arguments, labkit):
    code, out, err = labkit(*arguments)
    assert (code, out) == (2, "") and err.startswith("usage: labkit")


# --- list, explain --------------------------------------------------------------------------------


def test_list_names_every_mode(labkit):
    code, out, err = labkit("list")
    assert (code, err) == (0, "")
    assert all(name in out for name in FAILURES)


def test_list_for_a_program(labkit):
    code, out, _ = labkit("list", "--json")
    assert code == 0
    assert [(each["name"], each["topic"]) for each in strict(out)] == [(m.name, m.topic) for m in FAILURES.values()]
    assert all(each["title"] and each["symptom"] for each in strict(out))


def test_explain(labkit):
    mode = FAILURES["dead_relu"]
    assert labkit("explain", "dead_relu") == (0, report.mode_in_words(mode) + "\n", "")
    code, out, _ = labkit("explain", "dead_relu", "--json")
    assert code == 0 and strict(out)["remedy"] == mode.remedy


@pytest.mark.parametrize("command", ["explain", "run"])
def test_an_unknown_mode_suggests_the_nearest(command, labkit):
    message = one_message(*labkit(command, "dead_rely"))
    assert message == "labkit: there is no failure mode 'dead_rely'. Did you mean 'dead_relu'?\n"


# --- run ------------------------------------------------------------------------------------------


def test_run_prints_the_verdict(labkit, quick):
    code, out, err = labkit("run", "learning_rate_too_high")
    assert (code, err) == (0, "")
    assert out.startswith("Learning rate too high  (mnist, seed 0)")
    assert "verdict Learning rate too high, from step 0" in " ".join(out.split())


def test_run_for_a_program(labkit, quick):
    code, out, err = labkit("run", "learning_rate_too_high", "--json")
    values = strict(out)
    assert (code, err) == (0, "")
    assert (values["name"], values["named"], values["runs"]["sick"]["stopped"]) == (
        "learning_rate_too_high",
        True,
        "non-finite",
    )
    assert values["runs"]["sick"]["val_loss"] is None  # NaN, which JSON does not have


def test_run_passes_on_every_wish(labkit, quick, tmp_path):
    picture = tmp_path / "deep" / "picture.png"
    wishes = ["--set", "lr=3", "--set", "clip=none", "--face", "two_layers", "--seed", "4", "--out", str(picture)]
    code, out, err = labkit("run", "learning_rate_too_high", *wishes)
    assert code == 0
    healthy, sick = quick[:2]
    assert (healthy.lr, sick.lr) == (0.1, 3.0)
    assert {(recipe.seed, recipe.depth) for recipe in quick} == {(4, 2)}
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "seed 4" in out and f"picture: {picture}" in err  # the picture's name is not mixed into what is printed


def test_run_with_a_picture_still_prints_pure_json(labkit, quick, tmp_path):
    code, out, _ = labkit("run", "learning_rate_too_low", "--json", "--out", str(tmp_path / "a.svg"))
    assert code == 0 and strict(out)["name"] == "learning_rate_too_low"
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]


def test_run_on_another_data_set(labkit, quick):
    code, out, _ = labkit("run", "learning_rate_too_high", "--dataset", "cifar10", "--json")
    assert code == 0 and strict(out)["dataset"] == "cifar10"
    assert {recipe.data.__name__ for recipe in quick} == {"cifar10"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "lr=fast"], "lr: expected a number above 0, got 'fast' of type str"),
        (["--set", "lr=-1"], "lr: expected a number above 0, got -1.0"),
        (["--set", "lr"], "expected NAME=VALUE, got 'lr'; for example lr=3"),
        (["--set", "batchsize=3"], "a recipe has no 'batchsize'. Did you mean 'batch_size'?"),
        (["--set", "activation=rleu"], "activation: expected one of "),
        (["--set", "evaluate_every=0"], "evaluate_every: a study compares validations"),
        (["--dataset", "mnits"], "dataset: expected one of mnist, cifar10, got 'mnits'. Did you mean 'mnist'?"),
        (["--face", "three_layers"], "learning_rate_too_high has no face 'three_layers'. Did you mean 'two_layers'?"),
        (["--seed", "-1"], "seed: expected a whole number at least 0, got -1"),
        (["--out", "picture.txt"], "expected a file that ends in .png, .pdf or .svg, got 'picture.txt'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wish_that_cannot_be_granted_is_named_before_any_training(arguments, message, labkit, quick):
    assert message in one_message(*labkit("run", "learning_rate_too_high", *arguments))
    assert quick == []


def test_a_file_that_cannot_be_written_is_a_message(labkit, quick, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    code, _, err = labkit("run", "learning_rate_too_low", "--out", str(tmp_path / "file" / "a.png"))
    assert code == 2 and err.startswith("labkit: ") and "Traceback" not in err


# --- data, doctor, bench --------------------------------------------------------------------------

RECORDS = [
    data.DataFile(name="mnist", state="ok", where="/somewhere", bytes=2_500_000, what="digits", advice=""),
    data.DataFile(name="cifar10_full", state="not here", where="/nowhere", bytes=0, what="photos", advice="fetch it"),
]  # fmt: skip


def test_data_lists_what_is_there(labkit, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    monkeypatch.setattr(data, "available", lambda: RECORDS)
    code, out, _ = labkit("data")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["mnist", "ok", "2.5", "MB", "digits"]
    assert lines[1].strip() == "/somewhere"
    assert lines[4].strip() == "fetch it"
    code, out, _ = labkit("data", "--json")
    assert code == 0 and [each["name"] for each in strict(out)] == ["mnist", "cifar10_full", "runs"]


def test_data_shows_the_kept_runs_and_empties_them(labkit, monkeypatch, tmp_path):
    monkeypatch.setattr(data, "available", lambda: [])
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    run_store.on_disk().put(tiny(), trained(tiny()))
    [shown, where, advice] = labkit("data")[1].splitlines()
    assert "1 trained run, at most 500 MB" in shown and where.strip() == str(tmp_path)
    assert advice.strip() == "Delete them with `labkit data --empty-runs`."
    assert labkit("data", "--empty-runs") == (0, f"deleted 1 trained run (0.0 MB) from {tmp_path}\n", "")
    assert list(tmp_path.iterdir()) == []


def test_data_download_needs_a_name_and_passes_it_on(labkit, monkeypatch):
    fetched = []
    monkeypatch.setattr(data, "download", lambda name: fetched.append(name) or Path("/there"))
    assert "say which data set to download: labkit data download cifar10" in one_message(*labkit("data", "download"))
    assert fetched == []
    assert labkit("data", "download", "cifar10") == (0, "downloaded to /there\n", "")
    assert fetched == ["cifar10"]


def test_data_download_of_an_unknown_set_is_a_message(labkit):
    assert "mnits" in one_message(*labkit("data", "download", "mnits"))


@pytest.mark.parametrize("code", [0, 1])
def test_the_doctors_verdict_is_the_exit_code(code, labkit, monkeypatch):
    asked = []
    monkeypatch.setattr(doctor, "main", lambda json: asked.append(json) or code)
    assert labkit("doctor")[0] == labkit("doctor", "--json")[0] == code
    assert asked == [False, True]


def test_bench_prints_ratios(labkit, monkeypatch):
    found = {"help": 0.04}
    monkeypatch.setattr(bench, "measure", lambda: found)
    monkeypatch.setattr(bench, "ratios_as_text", lambda values: f"in words: {values}")
    assert labkit("bench") == (0, "in words: {'help': 0.04}\n", "")
    code, out, _ = labkit("bench", "--json")
    assert code == 0 and strict(out) == {"help": 0.04}


# --- poster, atlas --------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch) -> list:
    calls = []

    def make(paths, **options):
        calls.append((list(paths), options))
        return [Path(path) for path in paths]

    monkeypatch.setattr(poster, "make", make)
    return calls


USUAL = {"modes": None, "everything": False, "dataset": "mnist", "paper": "a3", "seed": 0, "jobs": 1, "width": None}


def test_poster_makes_the_usual_files_and_says_where(labkit, made):
    code, out, _ = labkit("poster")
    assert code == 0
    assert out == "".join(f"poster: {path}\n" for path in poster.DEFAULT)
    assert {Path(path).suffix for path in poster.DEFAULT} == {".pdf", ".png"}
    assert made == [(list(poster.DEFAULT), USUAL | {"remake": "labkit poster"})]


def test_poster_passes_on_every_wish_and_knows_how_to_be_made_again(labkit, made):
    wishes = ["--modes", "dead_relu,fp16_overflow", "--dataset", "cifar10", "--paper", "a4", "--seed", "3"]
    files = ["--out", "a.pdf", "--out", "b.svg"]
    assert labkit("poster", *wishes, *files, "--jobs", "2", "--width", "1600")[0] == 0
    [(paths, options)] = made
    assert paths == ["a.pdf", "b.svg"]
    remake = options.pop("remake")
    wanted = {"modes": ["dead_relu", "fp16_overflow"], "dataset": "cifar10", "paper": "a4", "seed": 3}
    assert options == USUAL | wanted | {"jobs": 2, "width": 1600}
    # The command in the footer, typed in, asks for the same picture; files and processes do not change it.
    assert labkit(*remake.split()[1:])[0] == 0
    again = made[1][1]
    assert again | {"jobs": 2, "width": 1600} == options | {"remake": remake}


def test_poster_of_all(labkit, made):
    assert labkit("poster", "--all")[0] == 0
    assert made[0][1] == USUAL | {"everything": True, "remake": "labkit poster --all"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modes", "dead_relu,dead_rely"], "Did you mean 'dead_relu'?"),
        (["--paper", "a5"], "paper: expected one of a4, a3, letter"),
        (["--out", "poster.jpg"], "expected files that end in .pdf, .png or .svg, got poster.jpg"),
        (["--dataset", "mnits"], "Did you mean 'mnist'?"),
        (["--jobs", "0"], "jobs: expected a whole number at least 1, got 0"),
    ],
)
def test_poster_names_a_mistake_before_any_training(arguments, message, labkit, quick):
    assert message in one_message(*labkit("poster", *arguments))
    assert quick == []


def test_atlas(labkit, monkeypatch):
    asked = []

    def run_studies(names, **options):
        asked.append((list(names), options))
        return [played(name) for name in ("dead_relu", "learning_rate_too_low", "learning_rate_too_high")]

    monkeypatch.setattr("labkit.diagnosis.study.run_studies", run_studies)
    studies = run_studies([])
    assert labkit("atlas", "--seed", "2", "--dataset", "cifar10", "--jobs", "2") == (
        0,
        look_alikes.tables_as_text(studies) + "\n",
        "",
    )
    there = [name for name, mode in FAILURES.items() if mode.on("cifar10")]
    assert asked[1] == (there, {"seed": 2, "dataset": "cifar10", "jobs": 2})
    code, out, _ = labkit("atlas", "--json")
    tables = strict(out)
    assert code == 0
    assert [(row["one"], row["other"]) for row in tables["look_alikes"]] == [("dead_relu", "learning_rate_too_low")]
    assert [row["loss"] for row in tables["lead_times"]] == [row.loss for row in look_alikes.lead_times(studies)]


# --- when things go wrong -------------------------------------------------------------------------


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


def test_ctrl_c_ends_with_130(labkit, monkeypatch):
    monkeypatch.setattr(poster, "make", raising(KeyboardInterrupt()))
    assert labkit("poster") == (130, "", "interrupted\n")


def test_ctrl_c_while_a_net_is_trained_ends_the_whole_study(labkit, monkeypatch):
    import dataclasses

    run = played("learning_rate_too_low").healthy
    broken_off = dataclasses.replace(run, facts=run.facts | {"stopped": "interrupted"})
    monkeypatch.setattr(run_store, "train", lambda *_, **__: broken_off)
    assert labkit("run", "learning_rate_too_low") == (130, "", "interrupted\n")


def test_a_missing_module_is_a_case_for_the_doctor(labkit, monkeypatch):
    monkeypatch.setattr(poster, "make", raising(ModuleNotFoundError("No module named 'joblib'", name="joblib")))
    assert labkit("poster") == (1, "", "labkit: the module 'joblib' is missing; `labkit doctor` says what to do\n")


@pytest.mark.parametrize(
    "error",
    [data.DataError("The file is damaged.", "damaged", "Fetch it again."), OSError(28, "No space left on device")],
)
def test_what_a_user_can_mend_is_a_message(error, labkit, monkeypatch):
    monkeypatch.setattr(poster, "make", raising(error))
    assert str(error) in one_message(*labkit("poster"))


def test_our_own_bugs_keep_their_traceback(labkit, monkeypatch):
    monkeypatch.setattr(poster, "make", raising(RuntimeError("ours")))
    with pytest.raises(RuntimeError, match="ours"):
        labkit("poster")


def test_a_closed_pipe_is_no_error():
    """As in `labkit explain dead_relu | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "labkit", "list", "--json"]
    answer = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=environment)
    os.close(writer)
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "split"),
    [
        ([], "held-out"),
        (["--split", "development"], "development"),
        (["--part", "setting"], "development"),
        (["--part", "judging"], "held-out"),
        (["--part", "judged"], "retired"),
    ],
    ids=" ".join,
)
def test_a_split_may_be_asked_for_by_its_name_of_version_0_1(words, split):
    assert command_line.parser().parse_args(["clinic", *words]).split == split
