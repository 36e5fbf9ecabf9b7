"""All base programs and all faults; and which programs develop the diagnosis and which are held out."""

import random
from dataclasses import replace

from labkit.diagnosis.evaluation.foreign.faults import data, model, outputs, training
from labkit.diagnosis.evaluation.foreign.operators import Fault
from labkit.diagnosis.evaluation.foreign.programs import images, others, sequences, tabular
from labkit.diagnosis.evaluation.foreign.setup import Program, Settings

PROGRAMS: dict[str, Program] = {
    each.name: each
    for module in (tabular, sequences, images, others)
    for each in vars(module).values()
    if isinstance(each, Program)
}

FAULTS: dict[str, Fault] = {
    each.name: each
    for module in (training, outputs, model, data)
    for each in vars(module).values()
    if isinstance(each, Fault)
}

# By program and not by case: a signature must hold on programs that it was not developed on. Of each task one program
# is in either split. What the diagnosis says on a held-out program is counted, and never looked at.
SPLITS = {
    "development": (
        "concrete_strength", "customer_churn", "wine_cultivars", "article_tags", "advert_clicks", "power_demand",
        "word_tags", "nursery_rhymes", "heart_beats", "drawn_shapes", "cell_masks", "frozen_features",
        "sensor_autoencoder", "signature_pairs", "search_results", "shopping_baskets",
    ),
    "held-out": (
        "robot_arm", "two_rings", "star_spectra", "sound_events", "film_ratings", "river_level",
        "named_entities", "tiny_gpt", "hand_gestures", "woven_fabrics", "land_cover", "adapter_tuning",
        "shape_vae", "captions", "shop_listing", "traffic_lights",
    ),
}  # fmt: skip


def healthy_variants(split: str, count: int) -> list[tuple[str, int, Settings]]:
    """(program, seed, settings) for `count` healthy runs of a split, program after program, always the same ones."""
    chance = random.Random(f"healthy {split}")
    names = SPLITS[split]
    return [(name, *variant(PROGRAMS[name], chance)) for name in (names[turn % len(names)] for turn in range(count))]


def variant(program: Program, chance: random.Random) -> tuple[int, Settings]:
    """A seed and healthy settings: about the program's own number of steps, whatever the batch size."""
    optimizer = chance.choice(list(program.optimizers))
    size = chance.choice(program.batch_sizes)
    settings = replace(
        program.settings,
        optimizer=optimizer,
        lr=chance.choice(program.optimizers[optimizer]),
        width=chance.choice(program.widths),
        batch_size=size,
        schedule=chance.choice(program.schedules),
        epochs=max(3, round(program.epochs * size / program.batch_sizes[0])),
    )
    return chance.randrange(1000, 10_000), settings
