"""Exercises and predictions of lesson 13, small language models; and its sealed patients."""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from labkit.course.grading import Student, build, expect, expect_close, explain, number, short
from labkit.course.loops import KNOWN, Batches, Outcome, Setting, loop
from labkit.course.predictions import prediction
from labkit.failures.catalogue import FAILURES
from labkit.recording import token_tests
from labkit.recording.undisturbed import evaluating
from labkit.tools.language import shift_scan
from labkit.training import tokens
from labkit.training.data import Split, load
from labkit.training.gpt import GPT, causal_mask
from labkit.training.language import LanguageRecipe, next_token_loss
from labkit.training.loop import Training

# --- the sealed patients of 13.5 ---

SEALED = {
    "A": "mask_one_ahead",
    "B": "targets_not_shifted",
    "C": "causal_mask_missing",
    "D": "mask_after_softmax",
    "E": "heads_split_by_view",
}
SEQUENCES = 64  # of each patient: what its loss asks for is the same in all of them


@dataclass(frozen=True)
class Patient:
    """What is known of a net before its first step."""

    replaced: list[float]  # change of the logits at each earlier position when later tokens are replaced
    cut_off: list[float]  # and when they are cut off
    loss_of: dict[str, float]  # of perfect predictions of the same token, the next one and the one after it


def patients(seed: int = 5) -> dict[str, Patient]:
    """Five nets before training. The student finds which failure each one has."""
    return {letter: examined(name, seed) for letter, name in SEALED.items()}


def examined(name: str, seed: int) -> Patient:
    """The probe of causality, and what the loss asks for."""
    case = Training(FAILURES[name].sick.but(seed=seed))
    x, y = (part[:SEQUENCES] for part in case.data.train)
    with evaluating(case.model), torch.no_grad():
        outputs = case.model(x)
        found = token_tests.looks_ahead(case.model, x, outputs)
    asks = token_tests.what_the_loss_asks(case.recipe.loss, x, y, outputs)
    losses = {word: asks[f"asks_{shift}"] for shift, word in enumerate(("same", "next", "after it"))}
    changes = (found[f"leak_{kind}_by_position"].tolist() for kind in ("changed", "cut"))
    return Patient(*changes, losses)


# --- 13.1 ---


def judge_shifted_loss(mine: Student) -> str:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(3, 7, 5, generator=generator)
    ids = torch.randint(0, 5, (3, 7), generator=generator)

    def loss(outputs: Tensor, targets: Tensor, **options) -> float:
        return float(cross_entropy(outputs.flatten(0, 1), targets.flatten(), **options))

    seen = mine(logits, ids)
    if torch.is_tensor(seen):
        expect(seen.ndim == 0, f"Expected one number, the mean; you returned the shape {tuple(seen.shape)}.")
    size, right = number(seen, "the loss"), loss(logits[:, :-1], ids[:, 1:])
    slips = {
        loss(logits, ids): "The targets are not shifted: each token is compared with itself.",
        loss(logits[:, 1:], ids[:, :-1]): "Shifted the wrong way: that asks for the token before.",
        loss(logits[:, :-2], ids[:, 2:]): "Shifted by two: that asks for the token after the next one.",
        loss(logits[:, :-1], ids[:, 1:], reduction="sum"): "That is the sum. Take the mean over all tokens.",
        loss(logits[:, :-1].softmax(-1), ids[:, 1:]): "Cross-entropy applies the softmax itself: give it the logits.",
        loss(logits, ids.roll(-1, 1)): "The last position is compared with the first token. It has no next token.",
    }
    mixed = logits[:, :-1].transpose(1, 2).reshape(-1, 5)
    slips[loss(mixed.view(3, 6, 5), ids[:, 1:])] = "The words and positions are mixed: flatten(0, 1), no transpose."
    for wrong, words in slips.items():
        expect(not math.isclose(size, wrong, rel_tol=1e-4), words)
    expect_close(size, right, "The mean cross-entropy in nats of 3 sequences of 7 tokens", 1e-4)
    with_slope = mine.in_place(logits.clone().requires_grad_(), ids)
    expect(
        torch.is_tensor(with_slope) and with_slope.requires_grad, "Return a tensor that .backward() can be called on."
    )
    return "Each position is asked for the token after it, and the last one for nothing."


# --- 13.2 ---


def judge_causal_mask(mine: Student) -> str:
    def right(queries: int, keys: int) -> Tensor:
        return causal_mask(queries, keys, torch.device("cpu"))

    seen = mine(4, 4)
    expect(torch.is_tensor(seen) and seen.shape == (4, 4), f"Expected a tensor of shape (4, 4), got {short(seen)}.")
    expect(seen.dtype == torch.bool, f"Expected True and False (torch.bool), got {seen.dtype}.")
    expect(not torch.equal(seen, ~right(4, 4)), "True and False are exchanged: True is where a query may look.")
    expect(not torch.equal(seen, right(4, 4).T), "Queries are the rows. Yours let a token see the later ones.")
    ahead = torch.ones(4, 4, dtype=torch.bool).tril(1)
    expect(not torch.equal(seen, ahead), "One too far: each token sees the next one, which it should predict.")
    behind = torch.ones(4, 4, dtype=torch.bool).tril(-1)
    expect(
        not torch.equal(seen, behind),
        "A token has to see itself. The first one of yours sees nothing, and its softmax is NaN.",
    )
    expect(torch.equal(seen, right(4, 4)), f"For 4 queries and 4 keys: expected a lower triangle, got {seen.tolist()}.")
    for queries, keys in ((1, 5), (2, 5)):
        seen = mine(queries, keys)
        expect(
            torch.is_tensor(seen) and torch.equal(seen.bool(), right(queries, keys)),
            f"{queries} query and {keys} keys: the queries are the last tokens, so the last one sees all {keys}.",
        )
    return "Itself and what came before, also when the earlier tokens are in a cache."


# --- 13.3 ---

LENGTH, KINDS, AT = 12, 11, 6


def small_net(name: str | None = None, **changes) -> nn.Module:
    """A small untrained GPT, healthy or with the part of a failure."""
    recipe = FAILURES[name].sick if name else LanguageRecipe()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return GPT(recipe.but(width=16, heads=2, depth=1, **changes), words=KINDS, length=LENGTH).eval()


def judge_probe(mine: Student) -> str:
    generator = torch.Generator().manual_seed(2)
    ids, others = (torch.randint(0, KINDS, (4, LENGTH), generator=generator) for _ in range(2))

    @torch.no_grad()
    def right(net: nn.Module) -> tuple[float, float]:
        with evaluating(net):
            before, replaced = net(ids)[:, :AT], net(torch.cat([ids[:, :AT], others[:, AT:]], dim=1))[:, :AT]
            return float((replaced - before).abs().max()), float((net(ids[:, :AT]) - before).abs().max())

    def seen(net: nn.Module) -> tuple[float, float]:
        found = mine.in_place(net, ids.clone(), others.clone(), AT)
        pair = isinstance(found, tuple | list) and len(found) == 2
        expect(pair, f"Expected two numbers, the change when replaced and when cut off, got {short(found)}.")
        return number(found[0], "the first change"), number(found[1], "the second change")

    changed, cut = seen(small_net())
    expect(
        changed < 1e-4 and cut < 1e-4,
        f"Got {changed:.2g} and {cut:.2g} for a causal net, expected 0. Compare the logits before `at` alone: those "
        "of replaced tokens may change.",
    )
    net = small_net(dropout=0.3).train()
    changed, cut = seen(net)
    expect(changed < 1e-4 and cut < 1e-4, "A causal net with dropout: expected 0. Compare in eval mode.")
    expect(net.training, "The net was in train mode, and you left it in eval mode. Restore its mode.")
    for name, what in (
        ("mask_one_ahead", "A mask that is one token too far (compare position at - 1, too)"),
        ("causal_mask_missing", "No mask at all"),
        ("heads_split_by_view", "A net whose logits depend on the length: only cutting off shows it"),
    ):
        net = small_net(name)
        for found, wanted, way in zip(seen(net), right(net), ("replaced", "cut off"), strict=True):
            expect_close(found, wanted, f"{what}; later tokens {way}", 1e-3)
    return "Zero twice for a causal net; three different leaks are found."


# --- 13.4 ---


class TokenSetting(Setting):
    """A net that predicts tokens: accuracy is that of the next token."""

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        with evaluating(self.model):
            outputs = self.model(self.held_out.x)
        right = (outputs.argmax(-1) == self.held_out.y).float().mean()
        return {"loss": self.loss(outputs, self.held_out.y).item(), "accuracy": right.item()}


TRAINED_ON, HELD_OUT, BATCH = 1_920, 200, 32  # sequences; one pass has 60 steps


@functools.cache
def held_out() -> Split:
    split = tokens.mnist_tokens(LanguageRecipe(device="cpu", samples=64)).val
    return Split(split.x[:HELD_OUT], split.y[:HELD_OUT])


def token_loop(seed: int) -> Setting:
    """A fresh GPT, its optimizer, and a loader of (inputs, targets): the targets are shifted already."""
    images = load("mnist", "train", inputs="unit", samples=2 * KNOWN)
    chosen = KNOWN + torch.randperm(KNOWN, generator=torch.Generator().manual_seed(seed))[:TRAINED_ON]
    pairs = tokens.next_tokens(tokens.sequences(Split(images.x[chosen], images.y[chosen]), tokens.patch_tokens))
    torch.manual_seed(seed)
    net = GPT(LanguageRecipe(), words=tokens.WORDS, length=tokens.PATCHES)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, betas=(0.9, 0.95))
    order = torch.Generator().manual_seed(seed)
    loader = Batches(TensorDataset(*pairs), batch_size=BATCH, shuffle=True, generator=order)
    return TokenSetting((net, optimizer, loader), held_out(), next_token_loss)


def shifted_once(model: nn.Module, optimizer: Optimizer, loader: DataLoader) -> None:
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


# Nats per token of the next token on held-out sequences after one pass: shifted once 0.78 to 0.83, twice 1.21 to 1.23
# (seeds 1, 2, 3 and 11).
LEARNED = 1.0


def predicts_the_next(outcome: Outcome) -> None:
    setting = outcome.setting
    scan = shift_scan(setting.model, torch.cat([setting.held_out.x, setting.held_out.y[:, -1:]], dim=1)[:, :-1])
    asked = {"same": "the token that it has just read", "second_next": "the token after the next one"}
    if scan.predicts != "next":
        expect(False, f"Your net has learned to predict {asked[scan.predicts]}: {scan}.")
    passes = len(outcome.run) / len(setting.loader)
    expect(passes < 1.5, f"One pass through the loader, please; yours took {passes:.1f}.")
    expect(scan.next < LEARNED, f"It predicts the next token at {scan.next:.2f} nats; expected below {LEARNED}.")


# --- 13.6 ---


def judge_cached_attention(mine: Student) -> str:
    generator = torch.Generator().manual_seed(4)
    query, key, value = (torch.randn(2, 3, 8, 5, generator=generator, dtype=torch.float64) for _ in range(3))

    def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        mask = causal_mask(query.shape[2], key.shape[2], query.device)
        return scores.masked_fill(~mask, -math.inf).softmax(-1) @ value

    right = attended(query, key, value)

    def seen(lengths: tuple[int, ...]) -> Tensor:
        cache, outputs = None, []
        for parts in zip(*(each.split(lengths, dim=2) for each in (query, key, value)), strict=True):
            found = mine(*parts, cache)
            expect(isinstance(found, tuple) and len(found) == 2, f"Expected (outputs, cache), got {short(found)}.")
            out, cache = found
            expect(
                torch.is_tensor(out) and out.shape == parts[0].shape,
                f"Expected outputs of shape {tuple(parts[0].shape)}, those of the new tokens, got {short(out)}.",
            )
            outputs.append(out)
        return torch.cat(outputs, dim=2)

    def same(one: Tensor, other: Tensor) -> bool:
        return torch.allclose(one, other, atol=1e-6)

    whole = seen((8,))
    expect(not whole.isnan().any(), "The outputs contain NaN: some query sees no key. Each one sees itself.")
    unscaled = attended(query * math.sqrt(5), key, value)
    expect(not same(whole, unscaled), "The scores are not divided by the root of the size of a head, sqrt(5) here.")
    unmasked = (query @ key.transpose(-2, -1) / math.sqrt(5)).softmax(-1) @ value
    expect(not same(whole, unmasked), "Read at once, a token sees later ones: the new tokens need a causal mask.")
    expect(same(whole, right), "All 8 tokens read at once, with an empty cache: not what causal attention gives.")
    single = seen((1,) * 8)
    expect(
        not same(single, value), "Each token sees itself alone: put the new keys and values behind the earlier ones."
    )
    expect(same(single, right), "Read one by one, the outputs differ from those read at once.")
    expect(
        same(seen((3, 1, 4)), right),
        "Read in pieces of 3, 1 and 4, the outputs differ. The queries are the last ones of all keys: shift the mask.",
    )
    return "Read at once, one by one, or in pieces: the same outputs."


NO_CHANGE = "nothing that is later reaches the logits here: both changes are 0. What does its loss ask for?"
LOSS_IS_FINE = "its loss is lowest for the next token, as it should be. Look at the probe."

exercises = (
    build(
        "13.1",
        "The loss, shifted by one",
        judge_shifted_loss,
        example="shifted_loss(logits, tokens)",
        points=2,
        modes=("targets_not_shifted",),
        hints=(
            "Which token should the logits at position 0 predict? And those at the last position?",
            "Drop the last position of the logits and the first token.",
            "cross_entropy wants (n, words) and (n,): use .flatten(0, 1) and .flatten().",
        ),
    ),
    build(
        "13.2",
        "A causal mask",
        judge_causal_mask,
        example="causal_mask(queries, keys)",
        points=2,
        modes=("mask_one_ahead",),
        hints=(
            "torch.ones(queries, keys, dtype=torch.bool), and then keep a triangle of it.",
            "tril() keeps the lower triangle and its diagonal. tril(1) keeps one diagonal more.",
            "With one query and five keys that one is the fifth token: its diagonal begins at keys - queries.",
        ),
    ),
    build(
        "13.3",
        "A probe for causality",
        judge_probe,
        example="leaks(net, tokens, others, at)",
        points=3,
        modes=("causal_mask_missing", "heads_split_by_view"),
        hints=(
            "Three forward passes: the tokens, the tokens with another end, the tokens without an end.",
            "torch.cat([tokens[:, :at], others[:, at:]], dim=1) has another end.",
            "Compare the logits at positions before `at` in all three, in eval mode.",
            "Keep net.training in a variable, and restore it by net.train(that variable).",
        ),
    ),
    loop(
        "13.4",
        "Predict the next token",
        token_loop,
        shifted_once,
        free_of=("targets_shifted_twice", "targets_not_shifted"),
        margin=0.3,  # the scan judges, and says what the net has learned instead
        also=predicts_the_next,
        points=3,
        hints=(
            "Take one batch, and print x[0, :5] beside y[0, :5]. Who shifts here?",
            "The loader has shifted the targets already: y[:, t] is the token after x[:, t].",
            "Compare model(x) with y as they are.",
        ),
    ),
    explain(
        "13.5",
        "Which leak?",
        modes=tuple(SEALED.values()),
        points=2,
        right=SEALED,
        because="A changes at its last positions alone, one for each block. B's logits are causal, and its loss asks "
        "for the token that was just read. C sees the later tokens themselves: replacing them changes as much as "
        "cutting them off. D depends on how many tokens there are far more than on which. E changes only when the "
        "sequence is cut.",
        wrong={
            "A": {
                "causal_mask_missing": "then every position would change, not the last two.",
                "mask_after_softmax": "then every position would change, not the last two.",
                "heads_split_by_view": "then replacing later tokens would change nothing.",
                "targets_not_shifted": LOSS_IS_FINE,
                "targets_shifted_twice": LOSS_IS_FINE,
            },
            "B": {
                "causal_mask_missing": NO_CHANGE,
                "mask_one_ahead": NO_CHANGE,
                "mask_after_softmax": NO_CHANGE,
                "heads_split_by_view": NO_CHANGE,
                "targets_shifted_twice": "its loss is lowest for the token just read, not for the one after the next.",
            },
            "C": {
                "mask_one_ahead": "then only the last positions would change, one for each block.",
                "mask_after_softmax": "there, the number of tokens matters far more than which they are. Here?",
                "heads_split_by_view": "then replacing later tokens would change nothing.",
                "targets_not_shifted": LOSS_IS_FINE,
                "targets_shifted_twice": LOSS_IS_FINE,
            },
            "D": {
                "causal_mask_missing": "compare its two curves: without a mask they are of similar size.",
                "mask_one_ahead": "then only the last positions would change, one for each block.",
                "heads_split_by_view": "then replacing later tokens would change nothing.",
                "targets_not_shifted": LOSS_IS_FINE,
                "targets_shifted_twice": LOSS_IS_FINE,
            },
            "E": {
                "causal_mask_missing": "replacing later tokens changes nothing, so it does not see them.",
                "mask_one_ahead": "replacing later tokens changes nothing, so it does not see the next one.",
                "mask_after_softmax": "there, replacing later tokens changes a little. Here it changes nothing at all.",
                "targets_not_shifted": LOSS_IS_FINE,
                "targets_shifted_twice": LOSS_IS_FINE,
            },
        },
        hints=(
            "First the right-hand figure: one of them asks for the wrong token.",
            "Then the number of positions that change when tokens are replaced: none, the last few, or all.",
            "If all change: is the change much larger when the tokens are cut off? Then their number is what matters.",
        ),
    ),
    build(
        "13.6",
        "Optional: attention with a cache",
        judge_cached_attention,
        example="attend_next(query, key, value, cache)",
        points=0,
        modes=("cache_position_stuck",),
        hints=(
            "The cache is a pair of tensors: all keys and all values so far.",
            "torch.cat([earlier, new], dim=2) puts the new ones behind the earlier ones.",
            "The mask has one row per new query and one column per key: tril(keys - queries).",
        ),
    ),
)

predictions = (
    prediction(
        "13.0",
        correct=2,
        why="The net copies the next token from its own input instead of predicting it. When it writes, there is no "
        "next token to copy.",
        wrong={
            1: "A low loss is a promise only if the net did not see what it was asked for.",
            3: "It has memorised nothing: validation images are copied as easily as training images.",
        },
    ),
    prediction(
        "13.0b",
        correct=3,
        why="Training and validation read whole sequences at once, where the positions are right. The bug is in the "
        "code that only writing uses.",
        wrong={
            1: "The training loop never uses the cache.",
            2: "Validation reads whole sequences too, without a cache.",
        },
    ),
)
