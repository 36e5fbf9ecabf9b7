"""How arms are compared: in the units of the program's own measure, and the right way round."""

import numpy as np
import pytest
from treated_programs import train

import labkit
from labkit.diagnosis.treatment.arms import DONE, Arm, Result
from labkit.diagnosis.treatment.experiment import Experiment
from labkit.diagnosis.treatment.judgement import direction
from labkit.diagnosis.treatment.treat import treat


@pytest.mark.parametrize("name", ["accuracy", "val_acc", "top5", "mAP50", "macro_f1", "R2", "answer_accuracy", "hit@1"])
def test_higher_is_better(name):
    assert direction(name) is True


@pytest.mark.parametrize("name", ["mape", "brier_score", "top5_error", "negative_log_likelihood", "RMSE", "wer"])
def test_lower_is_better(name):
    assert direction(name) is False


@pytest.mark.parametrize("name", ["stop", "white", "confidence", "epoch"])
def test_a_name_that_does_not_say_it(name):
    """Short words inside of longer ones, as "top" in "stop", mean nothing."""
    assert direction(name) is None


def experiment_of(name: str, curves: dict[tuple[str, ...], list[float]], constant_loss: float = 1.0) -> Experiment:
    def played(order, report=None):
        values = np.array(curves[order.arm.names])
        traces = {"step": np.arange(40), "loss": np.full(40, 0.5), "val_step": np.arange(1, len(values) + 1)}
        run = labkit.Run(traces | {f"val_{name}": values}, facts={"constant_loss": constant_loss})
        return Result(order.arm, DONE, "", run, (name,), 0.01)

    one = Experiment(played, (0, 1, 2), progress=False)
    one.run([Arm(names, 0) for names in curves])
    return one


@pytest.mark.parametrize("unit", [50_000.0, 1.0, 1e-3])
def test_an_error_in_any_unit_is_compared_with_where_the_arms_began(unit):
    """The loss of a constant prediction is 1, of scaled targets; the mean error is in dollars or in kilometres."""
    curves = {(): [0.9, 0.8, 0.8], ("clipped",): [0.8, 0.3, 0.1], ("adam",): [0.9, 0.8, 0.79]}
    one = experiment_of("mae", {names: [unit * each for each in values] for names, values in curves.items()})
    assert one.gain(("clipped",)) == pytest.approx(0.875, abs=0.05)
    assert one.best_so_far().arm.names == ("clipped",)
    assert one.gain(("adam",)) < 0.1


def test_one_validation_at_the_end_is_enough():
    arms = {(): [60.0], ("clipped",): [12.0], ("adam",): [12.5], ("cleared",): [13.0]}
    assert experiment_of("rmse", arms).gain(("clipped",)) > 0.5


def test_an_untreated_program_that_diverged_does_not_make_all_arms_alike():
    arms = {(): [1e9, 1e9], ("clipped",): [60.0, 40.0], ("adam",): [50.0, 10.0]}
    one = experiment_of("mae", arms)
    assert one.gain(("clipped",)) > 0.5 and one.gain(("adam",), ("clipped",)) > 0.04


def test_a_loss_is_compared_with_that_of_a_constant_prediction():
    """An arm that only comes back from infinity to what a constant reaches has learned nothing."""
    arms = {(): [2.3, 90.0], ("clipped",): [2.3, 2.3], ("adam",): [2.0, 0.4]}
    one = experiment_of("loss", arms, constant_loss=2.3)
    assert one.gain(("clipped",)) == 0 and one.gain(("adam",)) > 0.9


def test_after_a_divergence_only_arms_that_learned_about_as_much_go_on():
    """Untreated at 40, what arms gain over it is nearly all the same; what they learned is not."""
    arms = {(): [2.3, 40.0], ("adam",): [2.3, 0.74], ("clipped",): [2.3, 0.1], ("cleared",): [2.3, 0.09]}
    one = experiment_of("loss", arms, constant_loss=2.3)
    assert one.finalists(("cleared",)) == [("cleared",), ("clipped",)]
    assert one.gain(("cleared",)) >= one.gain(("adam",))


def slow_in_dollars(watch, seed):
    """As a practitioner's regression reports it: the validation error in another unit than the loss."""

    def recorded(*arguments, **options):
        record = watch(*arguments, **options)
        accuracy = record.validation
        record.validation = lambda **results: accuracy(mae=50_000 * (1 - results["accuracy"]))
        return record

    train(recorded, seed, lr=5e-6)


def test_a_program_with_an_error_in_dollars_is_cured():
    answer = treat(slow_in_dollars, progress=False)
    assert answer.cured and answer.measure.name == "mae" and not answer.measure.higher, str(answer)
