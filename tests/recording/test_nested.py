"""Tensors inside what training loops pass around: copied, counted and replaced, whatever they are in."""

import collections
import dataclasses
import types

import pytest
import torch

from labkit.recording.nested import Call, copied, first_tensor, real, replaced, tensors

Pair = collections.namedtuple("Pair", "scores state")


@dataclasses.dataclass(frozen=True)
class Answer:
    scores: torch.Tensor
    names: tuple[str, ...] = ("a",)


KINDS = {
    "tensor": lambda x: x,
    "tuple": lambda x: (x, None),
    "list": lambda x: [x, 3],
    "named tuple": lambda x: Pair(x, "state"),
    "dictionary": lambda x: {"scores": x, "name": "a"},
    "ordered": lambda x: collections.OrderedDict(scores=x),
    "dataclass": Answer,
    "object": lambda x: types.SimpleNamespace(scores=x, name="a"),
    "call": lambda x: Call((x, 2), {"mask": None}),
    "nested": lambda x: {"parts": [Answer(x), ()]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_has_its_own_memory_and_no_graph(kind):
    x = torch.ones(2, 3, requires_grad=True) * 2
    thing = KINDS[kind](x)
    found = copied(thing)
    tensor = first_tensor(found) if kind != "nested" else found["parts"][0].scores
    assert type(found) is type(thing) and torch.equal(tensor, x)
    assert not tensor.requires_grad and tensor.data_ptr() != x.data_ptr()
    assert [each.numel() for each in tensors(thing)] == [6]


@pytest.mark.parametrize("kind", KINDS)
def test_one_tensor_is_replaced_and_the_rest_stays(kind):
    x, other = torch.ones(2, 3), torch.zeros(2, 3)
    thing = KINDS[kind](x)
    found = replaced(thing, x, other)
    assert first_tensor(found) is other if kind != "nested" else found["parts"][0].scores is other
    assert first_tensor(thing) is x if kind != "nested" else thing["parts"][0].scores is x
    assert tensors(replaced(thing, other, x))[0] is x


@pytest.mark.parametrize("thing", [None, "text", 3, (), {}, object()])
def test_what_has_no_tensors_is_the_same(thing):
    assert copied(thing) == thing and tensors(thing) == [] and first_tensor(thing) is None


def test_of_a_sharded_tensor_this_processs_part_counts():
    class Shard(torch.Tensor):
        def to_local(self):
            return torch.ones(3)

    assert torch.equal(real(torch.zeros(6).as_subclass(Shard)), torch.ones(3))
