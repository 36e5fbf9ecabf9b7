"""All claims, and how to choose among them."""

from labkit.diagnosis.evaluation.folklore.claim import Claim
from labkit.diagnosis.evaluation.folklore.claims import first_aid, generalisation, gradients, language, learning_rate
from labkit.errors import RecipeError, near

TOPICS = (learning_rate, gradients, generalisation, language, first_aid)
CLAIMS: dict[str, Claim] = {claim.name: claim for topic in TOPICS for claim in topic.claims}


def chosen(names: str | None) -> list[Claim]:
    """The claims of these names, with commas between them; all of them for None."""
    asked = names.split(",") if names else list(CLAIMS)
    if unknown := next((name for name in asked if name not in CLAIMS), None):
        raise RecipeError(f"there is no claim {unknown!r}. {near(unknown, CLAIMS)}")
    return [claim for name, claim in CLAIMS.items() if name in asked]
