"""Retired programs, once held out, of other kinds: denoising, triplets, rankings by a hinge, two nets, graphs."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.diagnosis.evaluation.foreign.setup import (
    Settings,
    Setup,
    accuracy,
    generator,
    most_frequent,
    optimizer_for,
    program,
    r2,
    split_off,
)


def smooth_curves(count: int, length: int, g: torch.Generator) -> Tensor:
    """Curves of a few random waves that get weaker as they get faster: (count, length)."""
    time = torch.linspace(0, 1, length)
    phase, height = 6.2832 * torch.rand(count, 5, 1, generator=g), torch.randn(count, 5, 1, generator=g)
    order = torch.arange(1.0, 6.0)[:, None]
    return (height / order**0.7 * torch.sin(6.2832 * order * time + phase)).sum(1)


# --- autoencoder --------------------------------------------------------------------------------------


@program("autoencoder", {"adam": (5e-3, 3e-3), "adamax": (8e-3,)}, (12, 16), (32, 24), 10, 0.6,
         schedules=("halved", "constant", "exponential"))  # fmt: skip
def seismic_traces(seed: int, chosen: Settings) -> Setup:
    """A denoising autoencoder: arrivals of waves in a noisy trace, by strided and transposed convolutions."""
    g = generator(seed)
    time = torch.arange(48.0)
    arrival = 4 + 36 * torch.rand(840, 2, 1, generator=g)
    height = torch.tensor([1.0, 1.6])[:, None] * (0.5 + torch.rand(840, 2, 1, generator=g))
    since = (time - arrival) / 3.0
    clean = (height * (1 - since**2) * torch.exp(-(since**2) / 2)).sum(1, keepdim=True)
    noisy = clean + 0.45 * torch.randn(clean.shape, generator=g)
    train, val = split_off(168, noisy / noisy.std(), clean / clean.std())
    w = chosen.width
    model = nn.Sequential(
        nn.Conv1d(1, w, 5, stride=2, padding=2), nn.PReLU(), nn.Conv1d(w, 2 * w, 5, stride=2, padding=2), nn.PReLU(),
        nn.Conv1d(2 * w, 6, 3, padding=1), nn.PReLU(),
        nn.ConvTranspose1d(6, w, 4, stride=2, padding=1), nn.PReLU(), nn.ConvTranspose1d(w, 1, 4, stride=2, padding=1),
    )  # fmt: skip
    return Setup(
        "regression", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, F.mse_loss, r2, "r2"
    )


# --- pairs --------------------------------------------------------------------------------------------


class Profiles(nn.Module):
    """One encoder for all three; vectors of length 1."""

    def __init__(self, width: int):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, width, 5, stride=2, padding=2), nn.GroupNorm(2, width), nn.ELU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2), nn.ELU(), nn.Flatten(), nn.Linear(8 * width, 10),
        )  # fmt: skip

    def forward(self, anchor: Tensor, same: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one, two, three = (F.normalize(self.encoder(each), dim=1) for each in (anchor, same, other))
        return one, two, three


def triplet_loss(outputs: tuple[Tensor, Tensor, Tensor], _: Tensor) -> Tensor:
    """The anchor should be nearer to its own kind than to the other, by a margin."""
    return F.triplet_margin_loss(*outputs, margin=0.4)


def nearer(outputs: tuple[Tensor, Tensor, Tensor], _: Tensor) -> float:
    anchor, same, other = outputs
    return (F.pairwise_distance(anchor, same) < F.pairwise_distance(anchor, other)).float().mean().item()


def on_triplets(s: Setup, watch: Callable) -> None:
    """Three inputs per sample and no targets that the loss would read."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for anchor, same, other, number in s.epoch():
                loss = s.loss(s.model(anchor, same, other), number)
                s.model.zero_grad()
                loss.backward()
                s.optimizer.step()
                record.step(loss, batch=(anchor, same, other, number))
            s.end_epoch()
            s.validate(record)


@program("pairs", {"adam": (3e-3, 2e-3), "adamw": (3e-3,), "rmsprop": (1e-3,)}, (12, 16), (32, 48), 12, 0.6,
         schedules=("constant", "cosine"), loop=on_triplets)  # fmt: skip
def part_profiles(seed: int, chosen: Settings) -> Setup:
    """Which two profiles are of the same machine part? Each measurement is shifted, scaled and noisy."""
    g = generator(seed)
    parts = smooth_curves(12, 44, g)
    kinds = torch.randint(12, (1000,), generator=g)
    others = (kinds + torch.randint(1, 12, (1000,), generator=g)) % 12

    def measured(which: Tensor) -> Tensor:
        shifts = torch.randint(12, (1000, 1), generator=g) + torch.arange(32)
        x = parts[which].gather(1, shifts) * (0.7 + 0.6 * torch.rand(1000, 1, generator=g))
        return (x + 0.25 * torch.randn(1000, 32, generator=g)).unsqueeze(1)

    train, val = split_off(200, measured(kinds), measured(kinds), measured(others), torch.arange(1000))
    model = Profiles(chosen.width)
    return Setup(
        "matching", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, triplet_loss, nearer,
        "nearer", floor=0.5,
    )  # fmt: skip


# --- ranking ------------------------------------------------------------------------------------------


class Offers(nn.Module):
    """Scores each offer for a candidate: a product of two vectors, and a small net that sees both."""

    def __init__(self, width: int):
        super().__init__()
        self.candidate, self.offer = nn.Linear(8, width), nn.Linear(10, width)
        self.net = nn.Sequential(nn.Linear(2 * width, width), nn.ELU(), nn.Dropout(0.1), nn.Linear(width, 1))

    def forward(self, candidate: Tensor, offers: Tensor) -> Tensor:
        one = F.elu(self.candidate(candidate)).unsqueeze(1).expand(-1, offers.shape[1], -1)
        two = F.elu(self.offer(offers))
        return self.net(torch.cat([one * two, one + two], -1)).squeeze(-1)


def hinge_over_the_list(outputs: Tensor, taken: Tensor) -> Tensor:
    """The offer that was taken should score higher than each other one, by 1."""
    best = (outputs * taken).sum(1, keepdim=True)
    return ((1 + outputs - best).clamp(min=0) * (1 - taken)).sum(1).mean()


def taken_first(outputs: Tensor, taken: Tensor) -> float:
    """How often the offer that was taken has the highest score; equal scores count as a draw by lot."""
    scores = outputs.reshape(taken.shape)
    highest = (scores == scores.amax(1, keepdim=True)).float()
    return ((highest * taken).sum(1) / highest.sum(1).clamp(min=1)).mean().item()


@program("ranking", {"adam": (4e-3, 3e-3), "nadam": (3e-3,)}, (32, 48), (32, 48), 14, 0.4,
         schedules=("constant", "cosine", "exponential"))  # fmt: skip
def job_offers(seed: int, chosen: Settings) -> Setup:
    """Which of six offers will the candidate take?"""
    g = generator(seed)
    candidates, offers = torch.randn(1200, 8, generator=g), torch.randn(1200, 6, 10, generator=g)
    wishes = torch.tanh(candidates @ torch.randn(8, 4, generator=g))
    fit = (torch.tanh(offers @ torch.randn(10, 4, generator=g) / 2) * wishes[:, None]).sum(-1)
    liking = 2.5 * fit + offers[..., 0] - 0.7 * offers[..., 1].abs() + 0.2 * torch.randn(1200, 6, generator=g)
    train, val = split_off(240, candidates, offers, F.one_hot(liking.argmax(1), 6).float())
    model = Offers(chosen.width)
    return Setup(
        "ranking", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, hinge_over_the_list,
        taken_first, "taken_first", floor=1 / 6,
    )  # fmt: skip


# --- two optimizers -----------------------------------------------------------------------------------


class Upscaler(nn.Module):
    """A generator that draws a finer signal, and a critic that tells drawn signals from measured ones."""

    def __init__(self, width: int):
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(10, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, 40)
        )
        self.critic = nn.Sequential(nn.Linear(50, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))

    def judge(self, coarse: Tensor, fine: Tensor) -> Tensor:
        return self.critic(torch.cat([coarse, fine], 1)).squeeze(1)

    def forward(self, coarse: Tensor) -> tuple[Tensor, Tensor]:
        drawn = self.generator(coarse)
        return drawn, self.judge(coarse, drawn)


def close_and_convincing(outputs: tuple[Tensor, Tensor], fine: Tensor) -> Tensor:
    """The generator should be close to the measured signal, and the critic should believe it."""
    drawn, belief = outputs
    return F.l1_loss(drawn, fine) + 0.02 * F.softplus(-belief).mean()


def generator_and_critic(s: Setup, watch: Callable) -> None:
    """The generator takes a step, then the critic, each with its own optimizer and loss."""
    draws, judges = s.optimizer
    with watch(s.model, [draws, judges], probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            for coarse, fine in s.epoch():
                outputs = s.model(coarse)
                loss = s.loss(outputs, fine)
                draws.zero_grad()
                loss.backward()
                draws.step()
                judges.zero_grad()
                judge = s.model.judge  # type: ignore[operator]
                doubts = F.softplus(-judge(coarse, fine)) + F.softplus(judge(coarse, outputs[0].detach()))
                doubts.mean().backward()
                judges.step()
                record.step(loss, batch=(coarse, fine))
            s.validate(record)
            s.end_epoch()


@program("two optimizers", {"adam": (3e-3, 2e-3), "rmsprop": (1e-3,)}, (64, 96), (32, 48), 14, 0.6,
         schedules=("constant", "cosine"), loop=generator_and_critic)  # fmt: skip
def sharper_signals(seed: int, chosen: Settings) -> Setup:
    """Forty values of a signal from ten: a generator that also has to convince a critic."""
    g = generator(seed)
    fine = smooth_curves(960, 40, g)
    fine = torch.where(fine > 1, 1 + 0.3 * (fine - 1), fine)
    coarse = F.avg_pool1d(fine.unsqueeze(1), 4).squeeze(1) + 0.05 * torch.randn(960, 10, generator=g)
    train, val = split_off(192, coarse / coarse.std(), fine / fine.std())
    model = Upscaler(chosen.width)
    optimizers = [
        optimizer_for(model.generator.parameters(), chosen),
        optimizer_for(model.critic.parameters(), replace(chosen, lr=chosen.lr / 2)),
    ]
    return Setup(
        "regression", chosen, seed, model, optimizers, train, val, close_and_convincing,
        lambda outputs, targets: r2(outputs[0], targets), "r2",
    )  # fmt: skip


# --- graphs -------------------------------------------------------------------------------------------


def molecules(seed: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Trees of twelve atoms with a ring, a clique, a hub or only a few more bonds: (atoms, bonds, kinds)."""
    g = generator(seed)
    kinds = torch.randint(4, (count,), generator=g)
    atoms = F.one_hot(torch.randint(4, (count, 12), generator=g), 4).float()
    bonds = torch.zeros(count, 12, 12, dtype=torch.bool)
    parents = (torch.rand(count, 12, generator=g) * torch.arange(12)).long()
    rows = torch.arange(count)
    for atom in range(1, 12):
        bonds[rows, atom, parents[:, atom]] = True
    ring = [(one, (one + 1) % 6) for one in range(6)]
    clique = [(one, two) for one in range(4) for two in range(one)]
    hub, few = [(0, other) for other in range(1, 7)], [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11)]
    for row, order in enumerate(torch.rand(count, 12, generator=g).argsort(1)):
        for one, two in (few, ring, clique, hub)[int(kinds[row])]:
            bonds[row, order[one], order[two]] = True
    return atoms, (bonds | bonds.transpose(1, 2)) & ~torch.eye(12, dtype=torch.bool), kinds


class MessagePassing(nn.Module):
    """Three rounds in which each atom hears from its neighbours; then the sum over all atoms."""

    def __init__(self, width: int):
        super().__init__()
        self.enter = nn.Linear(4, width)
        self.own, self.heard = (nn.ModuleList(nn.Linear(width, width) for _ in range(3)) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.act = nn.ReLU()
        self.leave = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, atoms: Tensor, bonds: Tensor) -> Tensor:
        hidden = self.enter(atoms)
        for own, heard, norm in zip(self.own, self.heard, self.norms, strict=True):
            hidden = hidden + self.act(norm(own(hidden) + bonds.float() @ heard(hidden)))
        return self.leave(torch.cat([hidden.mean(1), hidden.amax(1)], 1))


@program("graphs", {"adam": (3e-3, 5e-3), "adamw": (4e-3,)}, (24, 32), (32, 48), 14, 0.5,
         schedules=("cosine", "constant", "exponential"))  # fmt: skip
def molecule_motifs(seed: int, chosen: Settings) -> Setup:
    """Which motif is hidden in a molecule? Message passing over its bonds."""
    train, val = split_off(240, *molecules(seed, 1200))
    model = MessagePassing(chosen.width)
    return Setup(
        "classes", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, F.cross_entropy,
        accuracy, floor=most_frequent(val[-1]),
    )  # fmt: skip
