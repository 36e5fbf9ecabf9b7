"""Claims about language models, tried on a GPT of two blocks that reads MNIST as tokens."""

import math

import torch
from torch import nn

from labkit.diagnosis.evaluation.folklore import measures
from labkit.diagnosis.evaluation.folklore.claim import Claim, Setting, at_least, at_most, within
from labkit.training import gpt
from labkit.training.language import LanguageRecipe, next_token_loss

# A third of the standard run's steps, with a schedule as long as the run: five seconds of one core each.
GPT = LanguageRecipe(steps=100, evaluate_every=100)
# Nats per token. Healthy seeds of the standard run differ by 0.03; with three seeds and 100 steps an interval can reach
# 0.07 to either side, so smaller effects stay unclear.
NOTICEABLE = 0.02
HURTS, NO_HARM, NO_DIFFERENCE = at_least(NOTICEABLE), at_most(NOTICEABLE), within(NOTICEABLE)


def adamw_on_everything(model: nn.Module, recipe) -> torch.optim.Optimizer:
    """Weight decay on norms and biases too."""
    return _adamw(model.parameters(), recipe)


def adamw_with_long_memory(model: nn.Module, recipe) -> torch.optim.Optimizer:
    """beta2 of 0.999, PyTorch's default, instead of 0.95."""
    matrices = [weight for weight in model.parameters() if weight.ndim >= 2]
    others = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    return _adamw(groups, recipe, beta2=0.999)


def _adamw(parameters, recipe, beta2: float = 0.95) -> torch.optim.Optimizer:
    options = {"lr": recipe.lr, "eps": recipe.adam_eps, "weight_decay": recipe.weight_decay}
    return torch.optim.AdamW(parameters, betas=(0.9, beta2), **options)


def softmax_in_bf16(scores, mask):
    """Attention weights computed in 16 bits."""
    return gpt.masked_softmax(scores.bfloat16(), mask).to(scores.dtype)


def softmax_with_finite_mask(scores, mask):
    """What a token may not see gets a score lower by 10, instead of minus infinity."""
    return scores.masked_fill(~mask, -10.0).softmax(dim=-1)


def softmax_without_scale(scores, mask):
    """Scores that are not divided by the square root of the head's size: the net's own division is undone."""
    size = 16  # features of a head of the baseline: width 64, 4 heads
    return gpt.masked_softmax(scores * math.sqrt(size), mask)


def loss_with_z_term(outputs, targets):
    """The usual loss and 0.0001 of the squared log of the softmax's denominator."""
    return next_token_loss(outputs, targets) + 1e-4 * outputs.logsumexp(-1).square().mean()


def sixteen_times_the_loss(outputs, targets):
    """As when 16 micro-batches are accumulated and nobody divides by 16."""
    return 16 * next_token_loss(outputs, targets)


def gpt_with_small_head(recipe, data) -> nn.Module:
    """An output layer that begins so small that the first loss is ln V."""
    net = gpt.gpt(recipe, data)
    with torch.no_grad():
        net.head.weight.mul_(0.2)
    return net


def claim(name: str, says: str, *settings: Setting, **fields) -> Claim:
    """Three seeds, because a run takes five times as long as that of a perceptron."""
    return Claim(name, says, settings=settings, measure=measures.NATS, seeds=3, **fields)


claims = (
    claim(
        "gpt_no_decay_on_norms",
        "Weight decay on layer norms and biases hurts a transformer.",
        Setting("decay 0.1", GPT.but(optimizer=adamw_on_everything), GPT),
        predicts=HURTS,
    ),
    claim(
        "gpt_beta2_0_95",
        "A transformer needs a beta2 of 0.95: with 0.999 it is worse.",
        Setting("0.999 instead of 0.95", GPT.but(optimizer=adamw_with_long_memory), GPT),
        predicts=HURTS,
    ),
    claim(
        "gpt_softmax_needs_float32",
        "Attention needs its softmax in float32.",
        Setting("bf16 softmax", GPT.but(attend=softmax_in_bf16), GPT),
        predicts=HURTS,
    ),
    claim(
        "gpt_finite_mask_leaks",
        "A mask of -10 instead of minus infinity ruins a causal model.",
        Setting("-10", GPT.but(attend=softmax_with_finite_mask), GPT),
        predicts=HURTS,
    ),
    claim(
        "gpt_scale_by_root_of_d",
        "Without the division by the square root of d, attention does not train.",
        Setting("heads of 16 features", GPT.but(attend=softmax_without_scale), GPT),
        source="Vaswani et al., Attention Is All You Need (2017), section 3.2.1",
        predicts=HURTS,
    ),
    claim(
        "gpt_z_loss",
        "A z-loss makes the training of a language model better.",
        Setting("0.0001", GPT.but(loss=loss_with_z_term), GPT),
        source="Chowdhery et al., PaLM: Scaling Language Modeling with Pathways (2022)",
        predicts=at_most(-NOTICEABLE),
    ),
    claim(
        "gpt_accumulation_must_divide",
        "Accumulated gradients must be divided by their number, or training breaks.",
        Setting("AdamW and clipping, 16 times the gradient", GPT.but(loss=sixteen_times_the_loss), GPT),
        Setting(
            "SGD at 0.3 without clipping, 16 times the gradient",
            GPT.but(optimizer="sgd", lr=0.3, weight_decay=0.0, clip=None, loss=sixteen_times_the_loss),
            GPT.but(optimizer="sgd", lr=0.3, weight_decay=0.0, clip=None),
        ),
        predicts=HURTS,
    ),
    claim(
        "gpt_needs_warmup",
        "A transformer needs a warm-up.",
        Setting("0.006, the healthy rate", GPT.but(warmup=0), GPT),
        Setting("0.03, five times that", GPT.but(warmup=0, lr=0.03), GPT.but(lr=0.03)),
        source="Xiong et al., On Layer Normalization in the Transformer Architecture (2020)",
        predicts=HURTS,
    ),
    claim(
        "gpt_qk_norm",
        "QK-norm makes training better.",
        Setting("0.006, the healthy rate", GPT.but(qk_norm=True), GPT),
        Setting("0.1", GPT.but(qk_norm=True, lr=0.1), GPT.but(lr=0.1)),
        source="Wortsman et al., Small-scale proxies for large-scale Transformer training instabilities (2023)",
        predicts=at_most(-NOTICEABLE),
    ),
    claim(
        "gpt_first_loss_is_ln_v",
        "The first loss must be ln V: an output layer that starts there ends better.",
        Setting("head of 0.02 instead of 0.1", GPT.but(model=gpt_with_small_head), GPT),
        source="Karpathy, A Recipe for Training Neural Networks (2019), as it is usually read",
        predicts=at_most(-NOTICEABLE),
    ),
    claim(
        "gpt_needs_no_positions",
        "A causal model needs no position embeddings.",
        Setting("none", GPT.but(positions="none"), GPT),
        source="Haviv et al., Transformer Language Models without Positional Encodings Still Learn Positional "
        "Information (2022)",
        predicts=NO_HARM,
    ),
    claim(
        "gpt_adam_epsilon",
        "Adam's epsilon does not matter to a transformer.",
        Setting("0.001 instead of 1e-8", GPT.but(adam_eps=1e-3), GPT),
        predicts=NO_DIFFERENCE,
    ),
    claim(
        "gpt_tie_the_embeddings",
        "Tie the input and output embeddings: it costs nothing.",
        Setting("embeddings of 0.1, as the head", GPT.but(tied=True, embedding_scale=0.1), GPT),
        source="Press and Wolf, Using the Output Embedding to Improve Language Models (2017)",
        predicts=NO_HARM,
    ),
    claim(
        "gpt_init_of_0_02",
        "An init of 0.02 suits every GPT.",
        Setting("width 64", GPT.but(init_scale=0.02, embedding_scale=0.02), GPT),
        source="Radford et al., Language Models are Unsupervised Multitask Learners (2019), as it is usually copied",
        predicts=NO_HARM,
    ),
)
