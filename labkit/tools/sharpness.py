"""How sharp is the minimum? Top Hessian eigenvalue by power iteration; rise of the loss under random perturbations."""

import itertools

import torch


def top_eigenvalue(model, loss, x, y, iterations: int = 20, seed: int = 0) -> float:
    """Largest eigenvalue (by magnitude) of the Hessian of the loss on one batch.

    Power iteration with Hessian-vector products from autograd. 20 iterations bring a trained MNIST
    net within a few per cent; the sign is kept, so a negative value means a saddle or a maximum.
    """
    return top_eigenpair(model, loss, x, y, iterations, seed)[0]


def top_eigenpair(
    model, loss, x, y, iterations: int = 20, seed: int = 0
) -> tuple[float, dict[str, torch.Tensor] | None]:
    """The same eigenvalue and its eigenvector: parameter name -> tensor, of norm 1 in total; None without curvature."""
    names, weights, times = _hessian(model, loss, x, y)
    if times is None:
        return 0.0, None
    eigenvalue, direction, _ = _power_iteration(times, weights, iterations, seed)
    return eigenvalue, dict(zip(names, direction, strict=True)) if direction else None


def extreme_eigenvalues(model, loss, x, y, iterations: int = 40, seed: int = 0) -> tuple[float, float]:
    """(Lowest, highest) eigenvalue of the Hessian on one batch. The lowest is negative where the loss bends down.

    Power iteration on the Hessian minus, and plus, the largest size of an eigenvalue. It also works where eigenvalues
    come in pairs of opposite sign, as at a saddle point: there `top_eigenvalue` ends up between the two.
    """
    _, weights, times = _hessian(model, loss, x, y)
    if times is None:
        return 0.0, 0.0
    _, _, radius = _power_iteration(times, weights, iterations, seed)
    lowest, highest = (_power_iteration(times, weights, iterations, seed, shift)[0] for shift in (radius, -radius))
    return lowest, highest


def _hessian(model, loss, x, y):
    """Names and tensors of the weights, and the function that multiplies by the Hessian; None without curvature."""
    names, weights = zip(*((name, each) for name, each in model.named_parameters() if each.requires_grad), strict=True)
    gradients = torch.autograd.grad(loss(model(x), y), weights, create_graph=True, materialize_grads=True)
    curved = [gradient.requires_grad for gradient in gradients]  # not where the loss is linear or does not depend on it
    slopes = list(itertools.compress(gradients, curved))

    def times(direction: list[torch.Tensor]) -> list[torch.Tensor]:
        along = list(itertools.compress(direction, curved))
        product = torch.autograd.grad(slopes, weights, along, retain_graph=True, materialize_grads=True)
        return [part.detach() for part in product]

    return names, weights, times if any(curved) else None


def _power_iteration(times, weights, iterations: int, seed: int, shift: float = 0.0):
    """(The eigenvalue farthest from `shift`, its eigenvector or None, the norm of the last product)."""
    generator = torch.Generator().manual_seed(seed)
    following = [torch.randn(weight.shape, generator=generator).to(weight) for weight in weights]
    eigenvalue, direction, radius = 0.0, None, 0.0
    for _ in range(iterations):
        length = _norm(following)
        if length == 0:
            break
        direction = [part / length for part in following]
        product = times(direction)
        radius = _norm(product)
        eigenvalue = float(sum((a * b).sum() for a, b in zip(product, direction, strict=True)))
        following = [part - shift * along for part, along in zip(product, direction, strict=True)]
    return eigenvalue, direction if radius else None, radius


@torch.no_grad()
def perturbed_rise(model, loss, x, y, size: float = 0.2, draws: int = 5, seed: int = 0) -> float:
    """Mean rise of the loss when every weight tensor is perturbed at random by `size` times its norm.

    Compare nets only at the same training loss: an untrained net is the flattest of all.
    """
    weights = list(model.parameters())
    before = [weight.clone() for weight in weights]
    generator = torch.Generator().manual_seed(seed)
    base, rises = loss(model(x), y), []
    try:
        for _ in range(draws):
            for weight, origin in zip(weights, before, strict=True):
                push = torch.randn(weight.shape, generator=generator).to(weight)
                weight.copy_(origin + push * (size * origin.norm() / push.norm()))
            rises.append(loss(model(x), y) - base)
    finally:
        for weight, origin in zip(weights, before, strict=True):
            weight.copy_(origin)
    return (sum(rises) / draws).item()


def _norm(tensors) -> float:
    return sum(tensor.square().sum() for tensor in tensors).sqrt().item()
