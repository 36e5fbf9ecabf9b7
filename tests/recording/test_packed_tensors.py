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


def true_norms(tensors) -> torch.Tensor:
    return torch.stack([tensor.double().norm() for tensor in tensors]).float()


@pytest.mark.parametrize("safe", [False, True])
def test_norms_are_those_of_each_tensor(safe):
    tensors = random_tensors()
    torch.testing.assert_close(filled(tensors).norms(safe)[0], true_norms(tensors))


@pytest.mark.parametrize("scale", [1e-25, 1e22])
def test_norms_of_tiny_and_huge_values_need_float64(scale):
    tensors = random_tensors(scale)
    held = filled(tensors)
    torch.testing.assert_close(held.norms(safe=True)[0], true_norms(tensors), rtol=1e-6, atol=0)
    naive = held.norms()[0]
    assert ((naive == 0) | naive.isinf() | naive.isnan()).all()  # why `safe` is there


def test_copies_lie_side_by_side():
    tensors = random_tensors()
    held = filled(tensors, copies=3)
    held.fill(1, [2 * tensor for tensor in tensors])
    expected = true_norms(tensors)
    torch.testing.assert_close(held.norms(), torch.stack([expected, 2 * expected, expected]))


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
    torch.testing.assert_close(held.norms()[0], true_norms(tensors))


@pytest.mark.parametrize("sign", [1, -1])
def test_extremes_do_not_see_the_padding(sign):
    tensors = [sign * (1 + tensor.abs()) for tensor in random_tensors()]  # no entry is near the zeros of the padding
    low, high = (held := filled(tensors)).extremes(held.buffer)[:, 0]
    assert low.tolist() == [tensor.min().item() for tensor in tensors]
    assert high.tolist() == [tensor.max().item() for tensor in tensors]


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
def test_what_is_not_finite_stays_in_its_own_tensor(bad):
    tensors = random_tensors()
    expected = true_norms(tensors)
    tensors[3][ROW // 2] = bad
    norms = filled(tensors).norms(safe=True)[0]
    assert not norms[3].isfinite()
    others = [index for index in range(len(tensors)) if index != 3]
    torch.testing.assert_close(norms[others], expected[others])
