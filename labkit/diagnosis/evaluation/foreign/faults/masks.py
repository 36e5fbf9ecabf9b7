"""Faults in masks: of the loss, of attention, and of tokens that are to be filled in."""

import torch
from torch import Tensor

from labkit.diagnosis.evaluation.foreign.operators import DoesNotApply, fault, need
from labkit.diagnosis.evaluation.foreign.setup import Setup

IGNORED = -100  # the label of places that do not count
PADDING = 0  # the token of padding

# Left out, because they did not hurt: padding that counts in the loss (scores of 0.99 and more, with 15 times as much
# padding as text 0.79 in one program of three), visible tokens that do (0.69, healthy 0.70), and attention with an
# inverted padding mask (0.80, healthy 1.00).


def ignored_places(s: Setup) -> Tensor:
    """Where the training labels do not count; such labels are needed."""
    need(s.kind == "tokens" and s.train[0].shape == s.train[-1].shape and (s.train[-1] == IGNORED).any())
    return s.train[-1] == IGNORED


def padding_of(s: Setup) -> Tensor:
    """Where sequences are padded; such places are needed."""
    ignored = ignored_places(s)
    need((s.train[0][ignored] == PADDING).all())
    return ignored


def filled_in(s: Setup) -> Tensor:
    """Which tokens were masked in the inputs and are to be filled in; such places are needed."""
    places = ~ignored_places(s)
    need(s.train[0][places].unique().numel() == 1)
    return places


@fault("masks", "single_class", "class_imbalance")
def loss_mask_inverted(s: Setup) -> None:
    """The mask of the loss is the wrong way round: only padding counts, which has the label of the first class."""
    padding = padding_of(s)
    s.train[-1] = torch.where(padding, 0, IGNORED)


@fault("masks", "target_in_inputs")
def tokens_not_masked(s: Setup) -> None:
    """The tokens that are to be filled in are not masked in the training inputs: there is nothing to fill in."""
    s.train[0] = torch.where(filled_in(s), s.train[-1], s.train[0])


@fault("masks", "target_in_inputs")
def no_causal_mask(s: Setup) -> None:
    """A language model sees the tokens that it is to predict, in training and in validation, but not in use."""
    masks = [each for each in s.model.buffers() if blocks_the_future(each)]
    if s.kind != "tokens" or not masks:
        raise DoesNotApply
    usual = [each.clone() for each in masks]
    for each in masks:
        each.copy_(each[-1:].expand_as(each))  # the last token sees all of them

    def in_use() -> float:
        for mask, before in zip(masks, usual, strict=True):
            mask.copy_(before)
        return s.measured_on(s.val)

    s.in_use = in_use


def blocks_the_future(mask: Tensor) -> bool:
    """Is it a square mask that treats all places up to one's own alike, and all later ones otherwise?"""
    if mask.ndim != 2 or len(mask) < 2 or mask.shape[0] != mask.shape[1]:
        return False
    future = torch.ones(mask.shape, dtype=torch.bool).triu(1)
    return len(mask[~future].unique()) == len(mask[future].unique()) == 1 and mask[0, 0].item() != mask[0, 1].item()
