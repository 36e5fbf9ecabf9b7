"""Held-out programs of other kinds: noisy autoencoders, views, choices, a bandit, an adversary, graphs, a teacher."""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from labkit.diagnosis.evaluation.foreign.programs.others import found_among_twenty, matching_loss
from labkit.diagnosis.evaluation.foreign.programs.retired_others import taken_first
from labkit.diagnosis.evaluation.foreign.programs.retired_tabular import standardised
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

# --- autoencoder --------------------------------------------------------------------------------------


class GeneVae(nn.Module):
    """Returns the reconstruction, the mean and the log of the variance, in a dictionary."""

    def __init__(self, genes: int, width: int):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(genes, width), nn.LayerNorm(width), nn.GELU())
        self.mean, self.spread = nn.Linear(width, 5), nn.Linear(width, 5)
        self.decoder = nn.Sequential(nn.Linear(5, width), nn.GELU(), nn.Linear(width, genes))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.encoder(x)
        mean, spread = self.mean(hidden), self.spread(hidden).clamp(-8, 4)
        code = mean + torch.randn_like(mean) * (spread / 2).exp() if self.training else mean
        return {"logits": self.decoder(code), "mean": mean, "spread": spread}


def evidence(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    """Squared error and, weighed down, the divergence from a normal distribution."""
    mean, spread = outputs["mean"], outputs["spread"]
    divergence = 0.5 * (mean**2 + spread.exp() - 1 - spread).sum(1).mean()
    return F.mse_loss(outputs["logits"], targets) + 0.01 * divergence


def only_losses(s: Setup, watch: Callable) -> None:
    """Inputs are the targets; the record receives the loss as a number, and no batch."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for x, same in s.epoch():
                loss = s.loss(s.model(x), same)
                s.optimizer.zero_grad()
                loss.backward()
                s.optimizer.step()
                record.step(loss.item())
            s.validate(record)
            s.end_epoch()


@program("autoencoder", {"adam": (3e-3, 5e-3), "adamw": (4e-3,)}, (48, 64), (32, 40), 9, 0.32,
         schedules=("constant", "cosine", "exponential"), loop=only_losses)  # fmt: skip
def gene_profiles(seed: int, chosen: Settings) -> Setup:
    """A variational autoencoder of forty genes, of which more than half is noise that no code can keep."""
    g = generator(seed)
    cells = torch.randn(1400, 4, generator=g)
    genes = torch.tanh(cells @ torch.randn(4, 40, generator=g)) + 0.9 * torch.randn(1400, 40, generator=g)
    genes = standardised(genes)
    train, val = split_off(300, genes, genes.clone())
    model = GeneVae(40, chosen.width)
    return Setup(
        "reconstruction", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, evidence,
        lambda outputs, targets: r2(outputs["logits"], targets), "r2",
    )  # fmt: skip


# --- pairs --------------------------------------------------------------------------------------------


class Versions(nn.Module):
    """One encoder for both recordings, normalised vectors, and their products at a fixed temperature."""

    def __init__(self, width: int):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, width, 7, stride=2, padding=3), nn.GELU(), nn.Conv1d(width, width, 5, stride=2, padding=2),
            nn.GELU(), nn.Flatten(), nn.Linear(10 * width, 16),
        )  # fmt: skip

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        first, second = (F.normalize(self.encoder(each), dim=1) for each in (one, other))
        return first @ second.T / 0.15


def with_both_recordings(s: Setup, watch: Callable) -> None:
    """Adds a little noise to both sides before each step, and steps the schedule with each batch."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for one, other, number in s.epoch():
                one, other = (each + 0.1 * torch.randn_like(each) for each in (one, other))
                s.optimizer.zero_grad()
                loss = s.loss(s.model(one, other), number)
                loss.backward()
                s.optimizer.step()
                s.end_step()
                record.step(loss, batch=(one, other, number))
            s.validate(record)
            s.end_epoch()


@program("pairs", {"adam": (2e-3, 3e-3), "adamw": (3e-3,)}, (16, 20), (32, 40), 7, 0.4,
         schedules=("one cycle", "constant", "cosine"), loop=with_both_recordings)  # fmt: skip
def cover_versions(seed: int, chosen: Settings) -> Setup:
    """Which recordings are of the same song? Tempo, volume and noise differ; InfoNCE over the batch."""
    g = generator(seed)
    time = torch.linspace(0, 1, 40)
    pitch, phase = 1 + 7 * torch.rand(1100, 2, 1, generator=g), 6.2832 * torch.rand(1100, 2, 1, generator=g)

    def recorded() -> Tensor:
        tempo = 1 + 0.12 * torch.randn(1100, 1, 1, generator=g)
        tune = torch.sin(6.2832 * pitch * tempo * time + phase).sum(1, keepdim=True)
        volume = 0.6 + 0.8 * torch.rand(1100, 1, 1, generator=g)
        return 0.7 * (tune * volume + 0.5 * torch.randn(tune.shape, generator=g))

    train, val = split_off(300, recorded(), recorded(), torch.arange(1100))
    model = Versions(chosen.width)
    return Setup(
        "matching", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, matching_loss,
        found_among_twenty, "recall", floor=0.05,
    )  # fmt: skip


# --- ranking ------------------------------------------------------------------------------------------


class Hotels(nn.Module):
    """The same weight-normed net scores each hotel of the page, beside the guest."""

    def __init__(self, width: int):
        super().__init__()
        self.guest, self.hotel = nn.Linear(6, width), weight_norm(nn.Linear(8, width))
        self.act, self.mid, self.score = nn.ReLU(), weight_norm(nn.Linear(width, width)), nn.Linear(width, 1)

    def forward(self, guest: Tensor, hotels: Tensor) -> Tensor:
        hidden = self.act(self.hotel(hotels) + self.guest(guest).unsqueeze(1))
        return self.score(self.act(self.mid(hidden))).squeeze(-1)


def chosen_one(outputs: Tensor, booked: Tensor) -> Tensor:
    """Cross-entropy over the hotels of a page."""
    return -(booked * F.log_softmax(outputs.reshape(booked.shape), 1)).sum(1).mean()


def page_by_page(s: Setup, watch: Callable) -> None:
    """No probe; losses are recorded at every second step, and validated every third epoch."""
    with watch(s.model, s.optimizer, every=2) as record:
        for epoch in range(s.epochs):
            for guest, hotels, booked in s.epoch():
                s.optimizer.zero_grad()
                loss = s.loss(s.model(guest, hotels), booked)
                loss.backward()
                s.optimizer.step()
                record.step(loss.detach(), batch=(guest, hotels, booked))
            s.end_epoch()
            if epoch % 3 == 2 or epoch == s.epochs - 1:
                s.validate(record)


@program("ranking", {"adam": (2e-3, 3e-3), "adamw": (3e-3,), "momentum": (0.1,)}, (32, 48), (32, 48), 7, 0.3,
         schedules=("constant", "exponential", "cosine"), loop=page_by_page)  # fmt: skip
def hotel_bookings(seed: int, chosen: Settings) -> Setup:
    """Which of seven hotels does a guest book? Much of the choice cannot be known."""
    g = generator(seed)
    guests, hotels = torch.randn(2000, 6, generator=g), torch.randn(2000, 7, 8, generator=g)
    appeal = hotels[..., 0] - 0.8 * hotels[..., 1] * guests[:, :1].sigmoid() * 2 + 0.7 * hotels[..., 2] * guests[:, 1:2]
    luck = -(-torch.rand(2000, 7, generator=g).clamp(1e-6, 1 - 1e-6).log()).log()
    booked = (1.2 * appeal + luck).argmax(1)
    train, val = split_off(700, guests, hotels, F.one_hot(booked, 7).float())
    model = Hotels(chosen.width)
    return Setup(
        "ranking", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, chosen_one,
        taken_first, "taken_first", floor=1 / 7,
    )  # fmt: skip


# --- two optimizers -----------------------------------------------------------------------------------


class Editor(nn.Module):
    """Which of four headlines to show, and what reward to expect for each."""

    def __init__(self, width: int):
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))
        self.value = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, reader: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(reader), self.value(reader)


def shown_and_clicked(outputs: tuple[Tensor, Tensor], clicks: Tensor) -> Tensor:
    """Show one headline by chance, see whether it is clicked; the other rewards stay unknown."""
    logits, value = outputs
    policy = torch.distributions.Categorical(logits=logits)
    shown = policy.sample()
    reward, expected = clicks.gather(1, shown[:, None]).squeeze(1), value.gather(1, shown[:, None]).squeeze(1)
    baseline = (policy.probs.detach() * value.detach()).sum(1)
    gain = -(policy.log_prob(shown) * (reward - baseline)).mean() - 0.02 * policy.entropy().mean()
    return gain + 0.5 * F.mse_loss(expected, reward)


def policy_and_value(s: Setup, watch: Callable) -> None:
    """Two optimizers, cleared and stepped one after the other."""
    actor, critic = s.optimizer
    with watch(s.model, [actor, critic], probe=s.probe, loss_fn=s.loss) as record:
        for epoch in range(s.epochs):
            for reader, clicks in s.epoch():
                actor.zero_grad()
                critic.zero_grad()
                loss = s.loss(s.model(reader), clicks)
                loss.backward()
                critic.step()
                actor.step()
                record.step(loss.item(), batch=(reader, clicks))
            s.end_epoch()
            if epoch % 2:
                s.validate(record)
        s.validate(record)


@program("two optimizers", {"adam": (1e-2, 5e-3), "rmsprop": (5e-3,)}, (32, 24), (64, 80), 12, 0.5,
         schedules=("constant", "cosine"), loop=policy_and_value)  # fmt: skip
def headline_bandit(seed: int, chosen: Settings) -> Setup:
    """A policy learns which headline each reader clicks, from clicks that even the best headline often does not get."""
    g = generator(seed)
    readers = torch.randn(2400, 8, generator=g)
    interest = readers @ torch.randn(8, 4, generator=g) / 2
    chances = torch.sigmoid(interest - 1.5)
    clicks = (chances > torch.rand(2400, 4, generator=g)).float()
    train, val = split_off(800, readers, clicks)
    best, always = chances[-800:].amax(1).mean().item(), chances[-800:].mean(0).max().item()
    model = Editor(chosen.width)
    optimizers = [optimizer_for(model.policy.parameters(), chosen), optimizer_for(model.value.parameters(), chosen)]

    def greedy_reward(outputs: tuple[Tensor, Tensor], _: Tensor) -> float:
        """Expected clicks of the best-scored headlines, as a share of what is possible; ties are drawn by lot."""
        if outputs[0].isnan().any():
            return float("nan")
        top = (outputs[0] == outputs[0].amax(1, keepdim=True)).float()
        return (((top * chances[-len(top) :]).sum(1) / top.sum(1)).mean() / best).item()

    return Setup(
        "policy", chosen, seed, model, optimizers, train, val, shown_and_clicked, greedy_reward, "reward",
        floor=always / best,
    )  # fmt: skip


class Stations(nn.Module):
    """Features, a head for the weather, and an adversary that tries to tell from the features which station it was."""

    def __init__(self, width: int):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.station = nn.Sequential(nn.Linear(width, 24), nn.ReLU(), nn.Linear(24, 1))
        self.weather = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(x)
        return self.weather(features), features


def against_an_adversary(s: Setup, watch: Callable) -> None:
    """One backward pass for both: the gradient of the adversary's loss is turned round where it enters the features."""
    adversary, learner = s.optimizer
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for x, weather in s.epoch():
                adversary.zero_grad()
                learner.zero_grad()
                outputs = s.model(x)
                turned = 2 * outputs[1].detach() - outputs[1]
                told = s.model.get_submodule("station")(turned).squeeze(1)
                loss = s.loss(outputs, weather)
                (loss + 0.1 * F.binary_cross_entropy_with_logits(told, (x[:, 0] > 0).float())).backward()
                adversary.step()
                learner.step()
                record.step(loss, batch=(x, weather))
            s.validate(record)
            s.end_epoch()


@program("two optimizers", {"adam": (2e-3, 1e-3), "adamw": (2e-3,)}, (40, 56), (40, 56), 10, 0.25,
         schedules=("constant",), loop=against_an_adversary)  # fmt: skip
def weather_stations(seed: int, chosen: Settings) -> Setup:
    """Dry, rain or snow, from features that should not give away the station, which the first column tells."""
    g = generator(seed)
    x = torch.randn(2200, 20, generator=g)
    drivers = torch.stack([x[:, 1] * x[:, 2], x[:, 3] - 0.5 * x[:, 4], x[:, 5].abs() - 0.8 + 0.4 * x[:, 0]], 1)
    chances = (1.7 * drivers).softmax(1)
    weather = torch.multinomial(chances, 1, generator=g).squeeze(1)
    train, val = split_off(800, x, weather)
    model = Stations(chosen.width)
    optimizers = [
        optimizer_for(model.station.parameters(), replace(chosen, lr=2 * chosen.lr)),
        optimizer_for([*model.features.parameters(), *model.weather.parameters()], chosen),
    ]
    return Setup(
        "classes", chosen, seed, model, optimizers, train, val,
        lambda outputs, targets: F.cross_entropy(outputs[0], targets),
        lambda outputs, targets: accuracy(outputs[0], targets), floor=most_frequent(val[-1]),
    )  # fmt: skip


# --- graphs -------------------------------------------------------------------------------------------


class GraphNet(nn.Module):
    """Two rounds of attention between neighbours, batch norm, a sum over the crossings, one number."""

    def __init__(self, width: int):
        super().__init__()
        self.enter = nn.Linear(3, width)
        self.asks, self.gives = (nn.ModuleList(nn.Linear(width, width) for _ in range(2)) for _ in range(2))
        self.act, self.norm = nn.LeakyReLU(0.1), nn.BatchNorm1d(width)
        self.leave = nn.Linear(width, 1)

    def forward(self, crossings: Tensor, roads: Tensor) -> Tensor:
        hidden = self.act(self.enter(crossings))
        for ask, give in zip(self.asks, self.gives, strict=True):
            near = (ask(hidden) @ hidden.transpose(1, 2) / hidden.shape[2]).masked_fill(~roads, -30.0).softmax(2)
            hidden = hidden + self.act(give(near @ hidden))
        return self.leave(self.norm(hidden.mean(1))).squeeze(-1)


@program("graphs", {"adam": (4e-3, 3e-3), "adamw": (5e-3,), "rmsprop": (2e-3,)}, (24, 32), (32, 40), 7, 0.4,
         schedules=("cosine", "constant", "exponential"))  # fmt: skip
def town_traffic(seed: int, chosen: Settings) -> Setup:
    """How much traffic is in a town? Busy crossings count where they are neighbours; the day adds its own part."""
    g = generator(seed)
    crossings = torch.randn(1500, 10, 3, generator=g)
    roads = torch.rand(1500, 10, 10, generator=g) < 0.2
    roads = roads | roads.transpose(1, 2) | torch.eye(10, dtype=torch.bool)
    busy = crossings[..., 0].relu()
    jams = (roads * busy[:, :, None] * busy[:, None]).sum((1, 2)) - 0.8 * crossings[..., 1].sum(1)
    traffic = standardised(standardised(jams) + 0.8 * torch.randn(1500, generator=g))
    train, val = split_off(500, crossings, roads, traffic)
    model = GraphNet(chosen.width)
    return Setup(
        "regression", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, F.mse_loss, r2, "r2"
    )


# --- a teacher ----------------------------------------------------------------------------------------


def labelled_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the samples that have a label; 0 where none has."""
    return F.cross_entropy(outputs, targets, reduction="sum") / (targets >= 0).sum().clamp(min=1)


def with_a_teacher(s: Setup, watch: Callable) -> None:
    """A slow copy of the net says what the unlabelled samples might be; the net should agree with it under noise."""
    teacher = copy.deepcopy(s.model)
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for epoch in range(s.epochs):
            s.model.train()
            for x, y in s.epoch():
                outputs = s.model(x + 0.1 * torch.randn_like(x))
                with torch.no_grad():
                    believed = teacher(x).softmax(-1)
                loss = s.loss(outputs, y)
                agreement = F.mse_loss(outputs.softmax(-1), believed)
                s.optimizer.zero_grad()
                (loss + min(1.0, epoch / 5) * 0.5 * agreement).backward()
                s.optimizer.step()
                with torch.no_grad():
                    for slow, fast in zip(teacher.parameters(), s.model.parameters(), strict=True):
                        slow.lerp_(fast, 0.03)
                record.step(loss, batch=(x, y))
            s.validate(record)
            s.end_epoch()


@program("semi-supervised", {"adam": (2e-3, 3e-3), "adamw": (3e-3,), "momentum": (0.05,)}, (48, 64), (50, 40), 16, 0.5,
         schedules=("constant", "cosine", "exponential"), loop=with_a_teacher)  # fmt: skip
def half_labelled_plants(seed: int, chosen: Settings) -> Setup:
    """Seven plants, and a label for two samples of five only: the others have -100; a mean teacher helps."""
    g = generator(seed)
    kinds = torch.randint(7, (1900,), generator=g)
    leaves = torch.randn(7, 2, 15, generator=g)
    x = 0.75 * leaves[kinds, torch.randint(2, (1900,), generator=g)] + 0.9 * torch.randn(1900, 15, generator=g)
    train, val = split_off(800, x, kinds)
    train[-1] = torch.where(torch.rand(1100, generator=g) < 0.4, train[-1], -100)
    w = chosen.width
    model = nn.Sequential(nn.Linear(15, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 7))
    return Setup(
        "tokens", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, labelled_loss, accuracy,
        floor=most_frequent(val[-1]),
    )  # fmt: skip
