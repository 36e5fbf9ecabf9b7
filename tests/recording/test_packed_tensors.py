"""Many tensors in one buffer: every number is that of its own tensor, padding and neighbours do not show."""

import math

import pytest
import torch

from labkit.recording.packed_tensors import ROW, PackedTensors

SHAPES = [(3, 4), (), (ROW,), (ROW + 1,), (2, 3, 5, 7), (1,), (40, 50)]


def random_tensors(scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [scale * torch.randn(shape, generator=generator) for shape in SHAPES]


def filled(tensors, copies: int = 1) -> PackedTensors:
    packed = PackedTensors([tensor.shape for tensor in tensors], torch.device("cpu"), copies)
    for copy in range(copies):
        packed.fill(copy, tensors)
    return packed


def test_copies_lie_side_by_side():
    tensors = random_tensors()
    held = filled(tensors, copies=3)
    held.fill(1, [2 * tensor for tensor in tensors])
    for one, two, three, tensor in zip(*held.views, tensors, strict=True):
        assert torch.equal(one, tensor) and torch.equal(two, 2 * tensor) and torch.equal(three, tensor)


def test_what_is_filled_in_can_be_read_back_and_leaves_the_source_alone():
    tensors = random_tensors()
    held = filled(tensors)
    for view, tensor in zip(held.views[0], tensors, strict=True):
        assert torch.equal(view, tensor)
    held.buffer.zero_()
    assert all(tensor.abs().sum() > 0 for tensor in tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32(dtype):
    tensors = [tensor.to(dtype) for tensor in random_tensors()]
    held = filled(tensors)
    assert held.buffer.dtype == torch.float32
    for view, tensor in zip(held.views[0], tensors, strict=True):
        assert torch.equal(view, tensor.float())


def test_a_part_is_one_tensor_without_its_padding():
    tensors = random_tensors()
    held = filled(tensors, copies=2)
    for index, tensor in enumerate(tensors):
        assert torch.equal(held.part(held.buffer, index), tensor.flatten().expand(2, -1))
        assert torch.equal(held.part(held.buffer[1], index), tensor.flatten())


@pytest.mark.parametrize("apart", [False, True])
def test_sums_of_rows_go_to_their_owners(apart):
    tensors = random_tensors()
    held = filled(tensors, copies=2)
    sums = held.sums(held.buffer.sum(-1), apart=apart)
    expected = torch.stack([tensor.sum() for tensor in tensors])
    torch.testing.assert_close(sums, expected.expand(2, -1), rtol=1e-5, atol=1e-4)


def test_padding_and_entries_are_counted():
    held = filled(random_tensors())
    sizes = [math.prod(shape) for shape in SHAPES]
    assert held.counts.tolist() == sizes
    assert held.sums(held.real.sum(-1)).tolist() == sizes
    assert [ROW * rows for rows in held.rows_each] == [math.ceil(size / ROW) * ROW for size in sizes]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_stays_in_its_own_tensor_where_sums_are_apart(bad):
    tensors = random_tensors()
    tensors[3][ROW // 2] = bad
    held = filled(tensors)
    sums = held.sums(held.wide(held.buffer).sum(-1), apart=True)[0]
    assert sums.isfinite().tolist() == [index != 3 for index in range(len(tensors))]
    if math.isinf(bad):
        assert held.sums(held.buffer.sum(-1)).isnan().any()  # why `apart` is there
