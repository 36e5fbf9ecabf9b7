"""Logs of other tools, damaged and odd: a clear error that names the line, or the numbers that are really there."""

import random
from pathlib import Path

import numpy as np
import pytest
from helpers import hand_made
from hostility import AMOUNT, TEXTS, chances, damaged, summary, tracebacks

from labkit.cli.main import main
from labkit.diagnosis.report import exam
from labkit.recording import logs
from labkit.recording.run import Run, RunError

CELLS = (*TEXTS, "nan", "-inf", "1e308", "1,5", "2.5", "-3", "1e400", "9" * 400, '"', "\n", "\r", ";", "x" * 200_000)
HEADERS = ("step", "loss", "Step", "STEP", "train/loss", "val/loss", "lr", "", "global_step", "val_loss", "loss ", "é")
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("logs")


def table(steps: int = 30) -> list[list[str]]:
    rows = [["step", "loss", "lr", "val_loss", "val_accuracy", "note"]]
    for step in range(steps):
        validated = [f"{2.2 - 0.05 * step:.4f}", f"{step / steps:.3f}"] if step % 5 == 0 else ["", ""]
        rows.append([str(step), f"{2.3 - 0.06 * step:.5f}", "0.1", *validated, "fine"])
    return rows


def edited_table(chance: random.Random) -> list[list[str]]:
    """A log with one to three edits of cells, rows, columns or headers."""
    rows = table(chance.choice((0, 1, 2, 30, 80)))
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        row = chance.randrange(len(rows))
        column = chance.randrange(6)
        how = chance.choice(
            ("cell", "cell", "header", "longer", "shorter", "swap", "double", "column", "same", "empty")
        )
        if how == "cell":
            rows[row][column : column + 1] = [chance.choice(CELLS)]
        elif how == "header":
            rows[0][column : column + 1] = [chance.choice(HEADERS)]
        elif how == "longer":
            rows[row] = rows[row] + ["1"]
        elif how == "shorter":
            rows[row] = rows[row][:column]
        elif how == "swap":
            rows[1:] = rows[:0:-1]
        elif how == "double":
            rows += rows[1:]
        elif how == "column":
            rows = [[*each[:column], chance.choice(CELLS), *each[column + 1 :]] for each in rows]
        elif how == "same":
            rows = [rows[0]] + [["7", *each[1:]] for each in rows[1:]]
        else:
            rows = rows[: chance.choice((0, 1))] or [[]]
    return rows


def written(chance: random.Random, folder: Path) -> Path:
    kind = chance.choice(("csv", "csv", "tsv"))
    text = "\n".join((";" if chance.random() < 0.05 else "\t" if kind == "tsv" else ",").join(row) for row in
                     edited_table(chance))  # fmt: skip
    content = text.encode(chance.choice(("utf-8", "utf-8", *ENCODINGS)), "replace")
    path = folder / f"log.{kind}"
    path.write_bytes(damaged(content, chance) if chance.random() < 0.3 else content)
    return path


def use(run: Run, folder: Path) -> None:
    exam(run)
    repr(run)
    logs.to_csv(run, folder / "out.csv")
    Run.load(run.save(folder / "again.npz"))


def test_edited_tables_are_refused_or_read(folder):
    accepted = []

    def read(chance: random.Random) -> None:
        accepted.append(logs.read(written(chance, folder)))
        use(accepted[-1], folder)

    found = tracebacks(chances("tables"), read)
    assert not found, summary(found)
    assert AMOUNT / 10 <= len(accepted) < AMOUNT * 9 / 10  # both ways out were taken, not one alone


def test_damaged_event_files_are_refused_or_read(folder):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    made = logs.to_tensorboard(hand_made(), folder / "events")
    [path] = [each for each in made.rglob("*tfevents*")]
    content = path.read_bytes()
    accepted = []

    def read(chance: random.Random) -> None:
        path.write_bytes(damaged(content, chance))
        accepted.append(logs.read(path.parent))
        use(accepted[-1], folder)

    found = tracebacks(chances("events"), read)
    assert not found, summary(found)
    assert AMOUNT / 10 <= len(accepted) < AMOUNT  # the records before the damage are read, unless none is left


# --- one kind of log each -------------------------------------------------------------------------


def log(folder: Path, text: str | bytes, name: str = "log.csv") -> Path:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / name


REFUSED = {
    "nothing": ("", "expected a column 'step', found none"),
    "a header alone": ("step,loss\n", "expected a series 'loss', found none"),
    "no header": ("0,2.3\n1,2.2\n", "is the first line a header?"),
    "semicolons": ("step;loss\n0;2.3\n", "expected a column 'step', found step;loss"),
    "a loss in words": ("step,loss\n0,2.3\n1,broken\n", "line 3, column 'loss': expected a number, got 'broken'"),
    "a step in words": ("step,loss\nfirst,2.3\n", "line 2: expected a step, a whole number at least 0, got 'first'"),
    "no step": ("step,loss\n,2.3\n", "line 2: expected a step"),
    "half a step": ("step,loss\n0.5,2.3\n", "expected a step, a whole number at least 0, got '0.5'"),
    "a step before 0": ("step,loss\n-1,2.3\n", "expected a step, a whole number at least 0, got '-1'"),
    "step nan": ("step,loss\nnan,2.3\n", "expected a step, a whole number at least 0, got 'nan'"),
    "an endless step": ("step,loss\n1e300,2.3\n", "expected a step, a whole number at least 0, got '1e300'"),
    "decimal commas": ("step,loss\n0,2,3\n", "line 2 has 3 cells, the header 2; is a comma inside a number?"),
    "a column twice": ("step,loss,loss\n0,1,2\n", "expected each column once, found 'loss' 2 times"),
    "NUL bytes": ("step,loss\n0,2.\x003\n", "found NUL bytes"),
    "UTF-16 without its mark": ("step,loss\n0,2.3\n".encode("utf-16-le"), "found NUL bytes"),
    "an enormous cell": ("step,loss\n0," + "1" * 200_000, "line 2 is not one of a CSV file: field larger"),
    "only the validation": ("step,val/loss\n0,2.3\n", "expected a series 'loss', found val/loss"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_log_that_cannot_be_trusted_is_refused_by_its_line(what, tmp_path):
    text, words = REFUSED[what]
    path = log(tmp_path, text)
    with pytest.raises(RunError) as caught:
        logs.read(path)
    assert words in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_the_encoding_does_not_change_the_numbers(encoding, tmp_path):
    text = "step,loss,Größe\r\n0,2.25,1\r\n1,nan,1\r\n"
    run = logs.read(log(tmp_path, text.encode(encoding)))
    assert run["step"].tolist() == [0, 1] and run["loss"][0] == 2.25 and np.isnan(run["loss"][1])
    assert run.facts["first_nonfinite"]["step"] == 1


def test_a_resumed_run_counts_once_and_says_so(tmp_path):
    first = "".join(f"{step},{step}.5\n" for step in range(30))
    again = "".join(f"{step},{step}.75\n" for step in range(20, 40))
    run = logs.read(log(tmp_path, "step,loss\n" + first + again))
    assert run["step"].tolist() == list(range(40))
    assert run["loss"].tolist() == [*(step + 0.5 for step in range(20)), *(step + 0.75 for step in range(20, 40))]
    assert run.facts["note"].startswith("10 rows were left out") and run.facts["note"] in exam(run)


def test_steps_that_fall_are_put_in_order(tmp_path):
    run = logs.read(log(tmp_path, "step,loss\n2,0.5\n1,1.5\n0,2.5\n"))
    assert run["step"].tolist() == [0, 1, 2] and run["loss"].tolist() == [2.5, 1.5, 0.5] and "note" not in run.facts


def test_series_belong_together_by_step_and_not_by_their_number_of_rows(tmp_path):
    text = "step,loss,lr,val_loss,val_acc\n0,2.5,,2.6,\n1,2.0,0.1,,0.5\n2,,0.1,,\n3,1.5,0.2,2.1,0.6\n"
    run = logs.read(log(tmp_path, text))  # three losses and three learning rates, at other steps
    assert "lr" not in run and run["loss"].tolist() == [2.5, 2.0, 1.5]
    assert run["val_step"].tolist() == [0, 3] and "val_accuracy" not in run


def test_the_validation_is_never_taken_for_the_training(tmp_path):
    run = logs.read(
        log(tmp_path, "step,val/epoch/loss,train/loss,train/accuracy,eval/accuracy\n0,9,2,0.9,0.3\n1,8,1,1,0.4\n")
    )
    assert run["loss"].tolist() == [2, 1] and run["val_loss"].tolist() == [9, 8]
    assert run["val_accuracy"].tolist() == [0.3, 0.4]


def test_rows_that_end_early_have_empty_cells(tmp_path):
    run = logs.read(log(tmp_path, "step,loss,lr\n0,2.5,0.1\n1,2.4\n\n2\n"))
    assert run["loss"].tolist() == [2.5, 2.4] and "lr" not in run


def test_the_command_refuses_with_one_line(tmp_path, capsys):
    for text, _ in REFUSED.values():
        assert main(["diagnose", str(log(tmp_path, text))]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.startswith("labkit: ") and printed.err.count("\n") == 1


def test_a_folder_named_like_a_log_and_a_log_that_is_missing_are_told_apart(tmp_path, capsys):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    (tmp_path / "runs").mkdir()
    assert main(["diagnose", str(tmp_path / "runs")]) == 2
    assert "expected a series 'loss', found none" in capsys.readouterr().err
    assert main(["diagnose", str(tmp_path / "events.out.tfevents.1")]) == 2
    assert "there is no file or folder" in capsys.readouterr().err
