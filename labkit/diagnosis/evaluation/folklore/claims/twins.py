"""The healthy runs that most claims are compared with. They are validated three times: a claim reads the end."""

from labkit.training.recipe import Recipe

BASE = Recipe(evaluate_every=200)  # 784-128-10 ReLU, SGD at 0.1, 400 steps
ADAM = BASE.but(optimizer="adam", lr=0.003)
FEW = ADAM.but(samples=1000)  # it fits them all in 400 steps
DEEP = BASE.but(depth=10, width=64, init="he")
NORMED = BASE.but(depth=3, normalisation="batch")
CURVE = {"evaluate_every": 10}  # for claims about the validation curve
