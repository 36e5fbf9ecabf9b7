"""The same function for many cases: results in order, one by one, and as many processes as asked for."""

import os

import pytest
import torch

from labkit.errors import RecipeError
from labkit.training.parallel import spread


def test_results_come_in_the_order_of_the_cases_and_one_by_one():
    done = []
    results = spread(lambda a, b: done.append(a) or a + b, [(1, 10), (2, 20), (3, 30)])
    assert done == []
    assert next(results) == 11 and done == [1]
    assert list(results) == [22, 33]
    assert list(spread(pow, [])) == []


@pytest.mark.parametrize("jobs", [0, -1, 1.5])
def test_a_bad_number_of_jobs_is_refused_at_once(jobs):
    with pytest.raises(RecipeError, match="jobs: expected a whole number at least 1"):
        spread(pow, [(2, 3)], jobs)


def test_ctrl_c_keeps_the_results_that_were_given_out():
    def case(number: int) -> int:
        if number == 2:
            raise KeyboardInterrupt
        return number

    kept = []
    with pytest.raises(KeyboardInterrupt):
        for result in spread(case, [(0,), (1,), (2,), (3,)]):
            kept.append(result)
    assert kept == [0, 1]


def where(number: int) -> tuple[int, int, int]:
    return number, os.getpid(), torch.get_num_threads()


@pytest.mark.parametrize("in_order", [True, False])
def test_several_processes_use_one_thread_each(in_order):
    found = list(spread(where, [(number,) for number in range(4)], 2, in_order=in_order))
    numbers, processes, threads = zip(*found, strict=True)
    assert sorted(numbers) == [0, 1, 2, 3] and (numbers == (0, 1, 2, 3) or not in_order)
    assert os.getpid() not in processes and set(threads) == {1}
