"""The contract on photographs, for the modes that have a version there; a file of its own, for a process of its own."""

import pytest
from test_contract import SEED, assert_contract, played

from labkit.failures.catalogue import FAILURES


@pytest.mark.parametrize("name", [name for name, mode in FAILURES.items() if mode.on("cifar10")])
def test_it_does_so_on_photographs_too(name):
    assert_contract(played(name, SEED, "cifar10"), "cifar10")
