"""The pictures of the GPT panel as SVG and HTML: tokens, attention, loss per patch, and samples."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from labkit.recording.undisturbed import captured, evaluating, replaying
from labkit.training.gpt import MaskedWeights
from labkit.training.tokens import KINDS, PATCH, PATCHES, SIDE, WORDS, pictures

GRID = SIDE // PATCH  # patches in a row: 7
MOST_LOSS = 3.0  # nats at which a patch has the full colour; guessing among all 26 tokens costs 3.26
GUESSES = 4  # next patches that are shown
AHEAD = 0.005  # the share of attention on later tokens from which it is said
INK = "fill='currentColor'"
STYLE = """<style>
.labkit-gpt {--labkit-now: #E69F00; --labkit-attention: #0072B2; --labkit-loss: #D55E00; line-height: 1.4}
.labkit-gpt svg {display: block; width: 100%; height: auto; border-radius: 3px; background: rgba(128, 128, 128, .13)}
.labkit-gpt .labkit-gpt-nets {display: grid; gap: 6px 24px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 290px), 1fr))}
.labkit-gpt h4 {margin: 4px 0 2px; font-size: 14px; border-bottom: 2px solid currentColor}
.labkit-gpt h5 {margin: 8px 0 2px; font-size: 13px; font-weight: 600}
.labkit-gpt p {margin: 2px 0; font-size: 12px}
.labkit-gpt .labkit-gpt-heads {display: grid; gap: 6px; max-width: 400px;
  grid-template-columns: repeat(var(--labkit-heads), minmax(0, 1fr))}
.labkit-gpt .labkit-gpt-samples {display: grid; gap: 6px; max-width: 780px;
  grid-template-columns: repeat(10, minmax(0, 1fr))}
@media (max-width: 600px) {.labkit-gpt .labkit-gpt-samples {grid-template-columns: repeat(5, minmax(0, 1fr))}}
.labkit-gpt .labkit-gpt-pair {display: flex; gap: 14px; align-items: flex-start}
.labkit-gpt .labkit-gpt-pair > svg, .labkit-gpt .labkit-gpt-square {width: 128px; flex: none}
.labkit-gpt .labkit-gpt-guesses {display: flex; flex-wrap: wrap; gap: 4px 12px; font-size: 12px}
.labkit-gpt .labkit-gpt-guess {display: flex; gap: 5px; align-items: center; font-variant-numeric: tabular-nums}
.labkit-gpt .labkit-gpt-guess svg {width: 20px}
.labkit-gpt .labkit-gpt-right {font-weight: 700; box-shadow: 0 2px 0 var(--labkit-now)}
</style>""".replace("\n", "")


@dataclass(frozen=True)
class Look:
    """What a net makes of one sequence: the label, and then the patches."""

    tokens: Tensor  # (50,)
    attention: np.ndarray  # (head, query, key), the heads of all blocks one after the other
    names: tuple[str, ...]  # of the heads
    losses: np.ndarray  # (49,) nats of each patch, whatever the net was asked for in training
    guesses: np.ndarray  # (49, word) probabilities of the next token

    @property
    def ahead(self) -> np.ndarray:
        """(query,): the share of attention on tokens that come later, in the head where it is largest."""
        return np.triu(self.attention, 1).sum(-1).max(0)


def look(model: nn.Module, tokens: Tensor) -> Look:
    """Read the sequence (50,) once, and leave the net as it is."""
    heads = {name: each for name, each in model.named_modules() if isinstance(each, MaskedWeights)}
    device = next(model.parameters()).device
    with replaying(model, device), evaluating(model), captured(heads) as weights:
        outputs = model(tokens[None, :-1].to(device))[0].float().cpu()
    attention = torch.cat([weights[name][0] for name in heads]).float().cpu().numpy()
    each = len(attention) // len(heads)
    names = tuple(f"block {block + 1}, head {head + 1}" for block in range(len(heads)) for head in range(each))
    losses = torch.nn.functional.cross_entropy(outputs, tokens[1:], reduction="none").numpy()
    return Look(tokens, attention, names, losses, outputs.softmax(-1).numpy())


# --- one picture ----------------------------------------------------------------------------------


def svg(width: float, height: float, inside: str, says: str, css: str = "") -> str:
    """A picture with a name for screen readers."""
    about = f"role='img' aria-label='{html.escape(says, quote=True)}' class='{css}'"
    return f"<svg viewBox='0 0 {width:g} {height:g}' {about}>{inside}</svg>"


def ink(tokens: Sequence[int] | Tensor, left: float = 0.0, opacity: float = 1.0) -> str:
    """The black pixels of some patches, the first of a picture."""
    ids = torch.zeros(1, PATCHES, dtype=torch.long)
    ids[0, : len(tokens)] = torch.as_tensor(tokens)
    rows, columns = np.nonzero(pictures(ids)[0].numpy())
    path = "".join(f"M{left + column:g} {row}h1v1h-1z" for row, column in zip(rows, columns, strict=True))
    return f"<path d='{path}' {INK} opacity='{opacity:g}'/>" if path else ""


def corner(patch: int) -> tuple[int, int]:
    """The upper left pixel of a patch, as (x, y)."""
    return patch % GRID * PATCH, patch // GRID * PATCH


def outline(patch: int) -> str:
    x, y = corner(patch)
    return f"<rect x='{x}' y='{y}' width='2' height='2' fill='none' stroke='var(--labkit-now)' stroke-width='.5'/>"


def cells(values: np.ndarray, colour: str) -> str:
    """A coloured square for each patch; 1 has the full colour."""
    found = []
    for patch, value in enumerate(np.nan_to_num(np.clip(values, 0, 1))):
        if value > 0.004:
            x, y = corner(patch)
            found.append(f"<rect x='{x}' y='{y}' width='2' height='2' fill='var({colour})' opacity='{value:.2f}'/>")
    return "".join(found)


def digit(tokens: Tensor, patch: int) -> str:
    """The image as the net reads it: what it has read is black, the next patch is framed, and the rest is pale."""
    read = ink(tokens[1 : 1 + patch])
    says = f"The digit {int(tokens[0]) - KINDS} in {PATCHES} patches, {patch} of them read"
    return svg(SIDE, SIDE, ink(tokens[1:], opacity=0.18) + read + outline(patch), says, "labkit-gpt-square")


def attended(one: Look, head: int, patch: int) -> str:
    """Where this head looks before it predicts a patch: the label is the bar on top, and below it are the patches.

    The colour is that of the square root: attention that is spread over many patches is seen too.
    """
    weights = one.attention[head, patch]
    label, patches = float(weights[0]), weights[1:]
    top = f"<rect x='0' y='0' width='{SIDE}' height='1.4' fill='var(--labkit-attention)' opacity='{label**0.5:.2f}'/>"
    largest = int(weights.argmax())
    where = "the label" if largest == 0 else f"patch {largest}"
    says = f"{one.names[head]}: most attention, {weights.max():.0%}, on {where}"
    below = cells(np.sqrt(patches), "--labkit-attention") + ink(one.tokens[1:], opacity=0.16) + outline(patch)
    return svg(SIDE, SIDE + 2, f"{top}<g transform='translate(0 2)'>{below}</g>", says)


def surprises(one: Look, patch: int) -> str:
    """The loss of each patch."""
    worst = int(one.losses.argmax())
    says = (
        f"Loss per patch: {one.losses.mean():.2f} nats on average, most at patch {worst + 1}: {one.losses[worst]:.2f}"
    )
    inside = cells(one.losses / MOST_LOSS, "--labkit-loss") + ink(one.tokens[1:], opacity=0.2) + outline(patch)
    return svg(SIDE, SIDE, inside, says)


def glyph(token: int) -> str:
    """A patch of four pixels, or the digit of a label."""
    if token >= KINDS:
        name = str(token - KINDS) if token < WORDS else "?"
        return svg(2, 2, f"<text x='.55' y='1.65' font-size='1.8' {INK}>{name}</text>", f"label {name}")
    first = pictures(torch.tensor([[token] + [0] * (PATCHES - 1)]))[0, :PATCH, :PATCH].numpy()
    path = "".join(f"M{x} {y}h1v1h-1z" for y, x in zip(*np.nonzero(first), strict=True))
    return svg(2, 2, f"<path d='{path}' {INK}/>", f"patch token {token}")


def guessed(one: Look, patch: int) -> str:
    """The likeliest next tokens, and the right one if it is not among them."""
    chances, right = one.guesses[patch], int(one.tokens[1 + patch])
    best = [int(word) for word in np.argsort(-chances)[:GUESSES]]
    rows = []
    for word in best if right in best else [*best[:-1], right]:
        css = "labkit-gpt-guess labkit-gpt-right" if word == right else "labkit-gpt-guess"
        rows.append(f"<span class='{css}'>{glyph(word)}{chances[word]:.0%}</span>")
    return f"<div class='labkit-gpt-guesses'>{''.join(rows)}</div>"


def samples(written: Tensor, label: str) -> str:
    """(samples, tokens so far): the digits 0 to 9 as they are written."""
    so_far = f"{written.shape[1]} of {PATCHES} patches written"
    shown = [
        svg(SIDE, SIDE, ink(each), f"{label}: sample of a {digit}, {so_far}") for digit, each in enumerate(written)
    ]
    return f"<div class='labkit-gpt-samples'>{''.join(shown)}</div>"


# --- all of them ----------------------------------------------------------------------------------


def board(looks: dict[str, Look], patch: int) -> str:
    """Tokens in, and for each net what it predicts, where it looks, and its loss per patch."""
    first = next(iter(looks.values()))
    return f"{STYLE}<div class='labkit-gpt'>{reading(first, patch)}<div class='labkit-gpt-nets'>" + (
        "".join(f"<section>{net(label, one, patch)}</section>" for label, one in looks.items()) + "</div></div>"
    )


def reading(one: Look, patch: int) -> str:
    read = " ".join(str(int(each)) for each in one.tokens[max(0, patch - 11) : patch + 1])
    words = (
        f"<p>The net has read the label {int(one.tokens[0]) - KINDS} and {patch} of {PATCHES} patches, row by row. It "
        f"predicts the framed one: token {int(one.tokens[patch + 1])}.</p><p>Tokens in: {'... ' if patch > 11 else ''}"
        f"{read}</p>"
    )
    return f"<h5>Tokens in</h5><div class='labkit-gpt-pair'>{digit(one.tokens, patch)}<div>{words}</div></div>"


def net(label: str, one: Look, patch: int) -> str:
    """What one net predicts, where it looks, and its loss."""
    ahead = float(one.ahead[patch])
    tag = "b" if ahead > AHEAD else "span"
    loss = (
        f"<p>{one.losses.mean():.2f} nats per patch for this digit; framed: {one.losses[patch]:.2f}. Full colour: "
        f"{MOST_LOSS:g} or more.</p>"
    )
    return (
        f"<h4>{html.escape(label)}</h4><h5>Next patch (underlined: the right one)</h5>{guessed(one, patch)}"
        f"<h5>Attention of each head</h5><p>On top: the label. <{tag}>On later tokens: {ahead:.0%}.</{tag}></p>"
        f"{heads(one, patch)}<h5>Loss per patch</h5><div class='labkit-gpt-pair'>{surprises(one, patch)}"
        f"<div>{loss}</div></div>"
    )


def heads(one: Look, patch: int) -> str:
    """A row for each block."""
    blocks: dict[str, list[str]] = {}
    for head, name in enumerate(one.names):
        blocks.setdefault(name.split(",")[0], []).append(attended(one, head, patch))
    return "".join(
        f"<p>{block}</p><div class='labkit-gpt-heads' style='--labkit-heads: {len(each)}'>{''.join(each)}</div>"
        for block, each in blocks.items()
    )


def written(rows: dict[str, Tensor]) -> str:
    """The samples of each net, under its name."""
    parts = "".join(f"<h5>Samples, {html.escape(label)}</h5>{samples(each, label)}" for label, each in rows.items())
    return f"{STYLE}<div class='labkit-gpt'>{parts}</div>"
