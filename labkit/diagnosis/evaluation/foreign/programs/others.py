"""Autoencoders, pairs, rankings, and loops with two optimizers."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.diagnosis.evaluation.foreign.setup import (
    Settings,
    Setup,
    generator,
    most_frequent,
    optimizer_for,
    program,
    r2,
    split_off,
)

# --- autoencoders -------------------------------------------------------------------------------------


@program("autoencoder", {"adam": (5e-3, 3e-3), "adamw": (5e-3,)}, (48, 64), (32, 48), 12, 0.4)
def sensor_autoencoder(seed: int, chosen: Settings) -> Setup:
    """Twenty-four sensors that depend on three causes, through a bottleneck of four."""
    g = generator(seed)
    causes = torch.randn(900, 3, generator=g)
    x = torch.tanh(causes @ torch.randn(3, 24, generator=g)) + 0.1 * torch.randn(900, 24, generator=g)
    x = x / x.std(0)
    train, val = split_off(180, x, x.clone())
    w = chosen.width
    model = nn.Sequential(
        nn.Linear(24, w), nn.ReLU(), nn.Linear(w, 4), nn.Linear(4, w), nn.ReLU(), nn.Linear(w, 24)
    )  # fmt: skip
    return Setup(
        "reconstruction",
        chosen,
        seed,
        model,
        optimizer_for(model.parameters(), chosen),
        train,
        val,
        nn.MSELoss(),
        r2,
        "r2",
    )


class VariationalAutoencoder(nn.Module):
    """Returns the reconstruction, the mean and the log of the variance."""

    def __init__(self, width: int):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(100, width), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(width, 6), nn.Linear(width, 6)
        self.decoder = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 100))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(images)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        noise = torch.randn_like(mean) * (0.5 * log_variance).exp() if self.training else 0
        return self.decoder(mean + noise), mean, log_variance


def negative_elbo(outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
    again, mean, log_variance = outputs
    divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
    return F.mse_loss(again, targets.flatten(1)) + 0.002 * divergence


@program("autoencoder", {"adam": (5e-3, 3e-3), "adamw": (5e-3,)}, (64, 96), (32, 24), 16, 0.3)
def shape_vae(seed: int, chosen: Settings) -> Setup:
    """Small images of shapes; the loss has two terms, the net returns a tuple."""
    g = generator(seed)
    place = torch.rand(800, 2, 1, 1, generator=g) * 6 + 2
    rows, columns = torch.meshgrid(torch.arange(10.0), torch.arange(10.0), indexing="ij")
    width = 2 + 4 * torch.rand(800, 1, 1, generator=g)
    images = 2 * torch.exp(-((rows - place[:, 0]) ** 2 + (columns - place[:, 1]) ** 2) / width)
    images = images + 0.05 * torch.randn(800, 10, 10, generator=g)
    train, val = split_off(160, images, images.clone())
    model = VariationalAutoencoder(chosen.width)
    return Setup(
        "reconstruction", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, negative_elbo,
        lambda outputs, targets: r2(outputs[0], targets.flatten(1)), "r2",
    )  # fmt: skip


# --- pairs --------------------------------------------------------------------------------------------


def contrastive(outputs: tuple[Tensor, Tensor], same: Tensor) -> Tensor:
    """Pull pairs of the same kind together, push others at least 2 apart."""
    apart = F.pairwise_distance(*outputs)
    return (same * apart**2 + (1 - same) * (2 - apart).clamp(min=0) ** 2).mean()


def same_or_not(outputs: tuple[Tensor, Tensor], same: Tensor) -> float:
    return ((F.pairwise_distance(*outputs) < 1) == (same > 0.5)).float().mean().item()


class Siamese(nn.Module):
    """The same net for both sides."""

    def __init__(self, width: int):
        super().__init__()
        self.tower = nn.Sequential(
            nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8)
        )

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return self.tower(left), self.tower(right)


def in_pairs(x: Tensor, kinds: Tensor, count: int, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Left, right, and whether they are of the same kind, half of the time."""
    left = torch.randint(len(x), (count,), generator=g)
    right = torch.randint(len(x), (count,), generator=g)
    alike = [torch.nonzero(kinds == kinds[each]).flatten() for each in left]
    partner = torch.stack([some[int(turn) % len(some)] for some, turn in zip(alike, right, strict=True)])
    right = torch.where(torch.rand(count, generator=g) < 0.45, partner, right)
    return x[left], x[right], (kinds[left] == kinds[right]).float()


def on_pairs(s: Setup, watch: Callable) -> None:
    """Two inputs per sample, and a loss that is called on both outputs."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            for left, right, same in s.epoch():
                s.optimizer.zero_grad()
                outputs = s.model(left, right)
                loss = s.loss(outputs, same)
                loss.backward()
                s.optimizer.step()
                record.step(loss, batch=(left, right, same))
            s.validate(record)
            s.end_epoch()


@program("pairs", {"adam": (3e-3, 2e-3), "adamw": (3e-3,)}, (64, 48), (32, 48), 12, 0.5, loop=on_pairs)
def signature_pairs(seed: int, chosen: Settings) -> Setup:
    """Were these two written by the same person? Contrastive loss on a siamese net."""
    g = generator(seed)
    kinds = torch.randint(8, (500,), generator=g)
    bends = torch.randn(8, 20, generator=g) * 1.2
    x = bends[kinds] + 0.7 * torch.randn(500, 20, generator=g)
    train, val = list(in_pairs(x[:400], kinds[:400], 800, g)), list(in_pairs(x[400:], kinds[400:], 200, g))
    model = Siamese(chosen.width)
    return Setup(
        "pairs", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, contrastive, same_or_not,
        floor=max(val[-1].mean().item(), 1 - val[-1].mean().item()),
    )  # fmt: skip


class TwoViews(nn.Module):
    """Image and text side by side: two encoders, normalised vectors, a learned temperature."""

    def __init__(self, width: int):
        super().__init__()
        self.sight = nn.Sequential(nn.Linear(30, width), nn.GELU(), nn.Linear(width, 12))
        self.words = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, 12))
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        image, text = F.normalize(self.sight(image), dim=1), F.normalize(self.words(text), dim=1)
        return image @ text.T * self.temperature.exp()


def matching_loss(outputs: Tensor, _: Tensor) -> Tensor:
    """Each image belongs to the text in the same row, and the other way round."""
    rows = torch.arange(len(outputs))
    return (F.cross_entropy(outputs, rows) + F.cross_entropy(outputs.T, rows)) / 2


def found_among_twenty(outputs: Tensor, _: Tensor) -> float:
    blocks = [outputs[at : at + 20, at : at + 20] for at in range(0, len(outputs) - 19, 20)]
    return torch.stack([(block.argmax(1) == torch.arange(20)).float().mean() for block in blocks]).mean().item()


@program("pairs", {"adam": (5e-3, 3e-3), "adamw": (5e-3,)}, (48, 64), (32, 48), 12, 0.4, loop=on_pairs)
def captions(seed: int, chosen: Settings) -> Setup:
    """Which text belongs to which image? A contrastive loss over the batch, as CLIP has it."""
    g = generator(seed)
    meaning = torch.randn(900, 4, generator=g)
    image = torch.tanh(meaning @ torch.randn(4, 30, generator=g)) + 0.1 * torch.randn(900, 30, generator=g)
    text = torch.sin(meaning @ torch.randn(4, 16, generator=g)) + 0.1 * torch.randn(900, 16, generator=g)
    train, val = split_off(200, image, text, torch.arange(900))
    model = TwoViews(chosen.width)
    return Setup(
        "matching", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, matching_loss,
        found_among_twenty, "recall", floor=0.05,
    )  # fmt: skip


# --- rankings -----------------------------------------------------------------------------------------


def pairwise_ranking(outputs: Tensor, relevance: Tensor) -> Tensor:
    """RankNet: of two documents of a query the more relevant one should score higher."""
    scores = outputs.reshape(relevance.shape)
    margin, order = scores[:, :, None] - scores[:, None, :], relevance[:, :, None] - relevance[:, None, :]
    return F.softplus(-margin[order > 0]).mean()


def rank_agreement(outputs: Tensor, relevance: Tensor) -> float:
    """Share of the pairs in the right order, from -1 to 1; ties count as wrong half of the time."""
    scores = outputs.reshape(relevance.shape)
    margin, order = scores[:, :, None] - scores[:, None, :], relevance[:, :, None] - relevance[:, None, :]
    return margin[order > 0].sign().mean().item()


def documents(seed: int, queries: int, length: int) -> tuple[Tensor, Tensor]:
    g = generator(seed)
    x = torch.randn(queries, length, 10, generator=g)
    relevance = x[..., 0] * x[..., 1] + x[..., 2] - x[..., 3].abs() + 0.2 * torch.randn(queries, length, generator=g)
    return x, relevance


@program("ranking", {"adam": (5e-3, 3e-3), "momentum": (0.1,)}, (48, 64), (16, 24), 12, 0.5)
def search_results(seed: int, chosen: Settings) -> Setup:
    """Order the documents of a query, by comparing pairs."""
    train, val = split_off(60, *documents(seed, 300, 8))
    w = chosen.width
    model = nn.Sequential(nn.Linear(10, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 1))
    return Setup(
        "ranking", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, pairwise_ranking,
        rank_agreement, "rank_agreement",
    )  # fmt: skip


def listwise(outputs: Tensor, relevance: Tensor) -> Tensor:
    """ListNet: the scores of a list should have the distribution of its relevances."""
    return -(F.softmax(2 * relevance, 1) * F.log_softmax(outputs.reshape(relevance.shape), 1)).sum(1).mean()


@program("ranking", {"adamw": (5e-3, 3e-3), "adam": (5e-3,)}, (40, 64), (16, 24), 16, 0.5)
def shop_listing(seed: int, chosen: Settings) -> Setup:
    """Order the products of a page, all at once."""
    train, val = split_off(60, *documents(seed + 500, 500, 6))
    w = chosen.width
    model = nn.Sequential(nn.LayerNorm(10), nn.Linear(10, w), nn.ELU(), nn.Linear(w, w), nn.ELU(), nn.Linear(w, 1))
    return Setup(
        "ranking", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, listwise,
        rank_agreement, "rank_agreement",
    )  # fmt: skip


# --- two optimizers -------------------------------------------------------------------------------------


class Items(nn.Module):
    """Bags of items through an embedding, then a small net."""

    def __init__(self, width: int):
        super().__init__()
        self.table = nn.EmbeddingBag(50, 16, mode="mean")
        self.dense = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, bags: Tensor) -> Tensor:
        return self.dense(self.table(bags))


def with_two_optimizers(s: Setup, watch: Callable) -> None:
    """One optimizer for the embedding, one for the rest."""
    sparse, dense = s.optimizer
    with watch(s.model, [sparse, dense], probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for bags, y in s.epoch():
                sparse.zero_grad()
                dense.zero_grad()
                loss = s.loss(s.model(bags), y)
                loss.backward()
                sparse.step()
                dense.step()
                record.step(loss, batch=(bags, y))
            s.validate(record)
            s.end_epoch()


@program(
    "two optimizers", {"adam": (1e-2, 5e-3), "adamw": (1e-2,)}, (32, 48), (32, 48), 12, 0.5, loop=with_two_optimizers
)
def shopping_baskets(seed: int, chosen: Settings) -> Setup:
    """Which kind of customer filled this basket? SGD for the embedding, another optimizer for the net."""
    g = generator(seed)
    y = torch.randint(4, (900,), generator=g)
    habits = torch.rand(4, 50, generator=g).pow(3)
    bags = torch.multinomial(habits[y], 8, replacement=True, generator=g)
    train, val = split_off(180, bags, y)
    model = Items(chosen.width)
    optimizers = [
        optimizer_for(model.table.parameters(), replace(chosen, optimizer="sgd", lr=100 * chosen.lr)),
        optimizer_for(model.dense.parameters(), chosen),
    ]
    return Setup(
        "classes", chosen, seed, model, optimizers, train, val, F.cross_entropy,
        lambda outputs, targets: (outputs.argmax(1) == targets).float().mean().item(), floor=most_frequent(val[-1]),
    )  # fmt: skip


class ActorCritic(nn.Module):
    """A policy over three actions, and a critic that predicts the reward."""

    def __init__(self, width: int):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))
        self.critic = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(state), self.critic(state).squeeze(1)


def policy_loss(outputs: tuple[Tensor, Tensor], best: Tensor) -> Tensor:
    """Draw an action, get a reward of 1 if it is the best one; the critic is the baseline."""
    logits, value = outputs
    policy = torch.distributions.Categorical(logits=logits)
    action = policy.sample()
    reward = (action == best).float()
    advantage = reward - value.detach()
    return -(policy.log_prob(action) * advantage).mean() + F.mse_loss(value, reward) - 0.01 * policy.entropy().mean()


def two_players(s: Setup, watch: Callable) -> None:
    """Actor and critic have an optimizer each, and one loss of two terms."""
    players = s.optimizer
    with watch(s.model, players, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            for state, best in s.epoch():
                loss = s.loss(s.model(state), best)
                for each in players:
                    each.zero_grad()
                loss.backward()
                for each in players:
                    each.step()
                record.step(loss, batch=(state, best))
            s.validate(record)
            s.end_epoch()


@program("two optimizers", {"adam": (2e-2, 1e-2), "rmsprop": (1e-2,)}, (32, 48), (64, 96), 20, 0.5, loop=two_players)
def traffic_lights(seed: int, chosen: Settings) -> Setup:
    """A policy learns from rewards alone, with a critic as the baseline."""
    g = generator(seed)
    states = torch.randn(900, 6, generator=g)
    best = (states @ torch.randn(6, 3, generator=g)).argmax(1)
    train, val = split_off(180, states, best)
    model = ActorCritic(chosen.width)
    optimizers = [optimizer_for(model.actor.parameters(), chosen), optimizer_for(model.critic.parameters(), chosen)]

    def greedy(outputs: tuple[Tensor, Tensor], wanted: Tensor) -> float:
        return (outputs[0].argmax(1) == wanted).float().mean().item()

    return Setup(
        "policy", chosen, seed, model, optimizers, train, val, policy_loss, greedy, "reward",
        floor=most_frequent(val[-1]),
    )  # fmt: skip
