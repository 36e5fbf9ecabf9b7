"""Stable and unstable softmax, log-softmax and cross-entropy, to compare where they overflow."""

from dataclasses import dataclass

import torch


def naive_softmax(x: torch.Tensor) -> torch.Tensor:
    """As in the textbook: exp overflows to infinity from 88.8 on in float32, from 11.1 on in float16."""
    return x.exp() / x.exp().sum(-1, keepdim=True)


def stable_softmax(x: torch.Tensor) -> torch.Tensor:
    """The largest entry subtracted first: exp never sees a positive number."""
    shifted = (x - x.amax(-1, keepdim=True)).exp()
    return shifted / shifted.sum(-1, keepdim=True)


def naive_log_softmax(x: torch.Tensor) -> torch.Tensor:
    """The log of a softmax: a probability that was rounded to 0 becomes minus infinity."""
    return stable_softmax(x).log()


def stable_log_softmax(x: torch.Tensor) -> torch.Tensor:
    """The log is taken before anything can round to 0."""
    shifted = x - x.amax(-1, keepdim=True)
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


def naive_cross_entropy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return -naive_softmax(x).gather(-1, y[:, None]).log().mean()


def clamped_cross_entropy(x: torch.Tensor, y: torch.Tensor, smallest: float = 1e-8) -> torch.Tensor:
    """The common quick fix: no NaN, but no gradient either where the clamp applies."""
    return -stable_softmax(x).clamp_min(smallest).gather(-1, y[:, None]).log().mean()


def stable_cross_entropy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return -stable_log_softmax(x).gather(-1, y[:, None]).mean()


@dataclass(frozen=True)
class Row:
    """Loss and gradient of one function at one size of logits."""

    function: str
    size: float
    value: float
    gradient: float


LOSSES = {"naive": naive_cross_entropy, "clamped": clamped_cross_entropy, "stable": stable_cross_entropy}


def compare_losses(sizes=(1.0, 10.0, 50.0, 89.0, 200.0, 1000.0), dtype: torch.dtype = torch.float32) -> list[Row]:
    """Loss and gradient of each version when the wrong class leads by `size`: overflow, or no gradient."""
    rows = []
    for size in sizes:
        for name, function in LOSSES.items():
            logits = torch.tensor([[size, 0.0, 0.0]], dtype=dtype, requires_grad=True)
            loss = function(logits, torch.tensor([1]))
            (gradient,) = torch.autograd.grad(loss, logits)
            rows.append(Row(name, size, loss.item(), gradient.norm().item()))
    return rows


def table(rows: list[Row]) -> str:
    """The rows as text, one line per size."""
    lines = [f"{'lead':>8}" + "".join(f"{name + ' loss':>16}{'gradient':>12}" for name in LOSSES)]
    for size in dict.fromkeys(row.size for row in rows):
        own = {row.function: row for row in rows if row.size == size}
        lines.append(f"{size:8g}" + "".join(f"{own[name].value:16.4g}{own[name].gradient:12.3g}" for name in LOSSES))
    return "\n".join(lines)
