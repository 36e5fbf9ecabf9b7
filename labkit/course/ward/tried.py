"""For instructors: let labkit try. Each patient of a ward is treated by `labkit.treat`, blind, as a foreign program."""

from labkit.course.ward.cases import draw
from labkit.diagnosis.treatment.recipes import as_program
from labkit.diagnosis.treatment.treat import treat

BUDGET = 30  # runs for each patient


def tried(seed: int, patients: int, budget: int = BUDGET, jobs: int = 1) -> list[dict]:
    """What labkit finds and prescribes for each patient, beside the failure that it really has."""
    rows = []
    for number, case in enumerate(draw(seed, patients), start=1):
        if case.recipes["sick"].processes > 1:
            rows.append({"patient": number, "failure": case.name, "verdict": "several processes: not tried"})
            continue
        answer = treat(as_program(case.recipes["sick"]), budget=budget, measure="accuracy", jobs=jobs, progress=False)
        rows.append(
            {
                "patient": number,
                "failure": case.name,
                "diagnosed": [each.name for each in answer.diagnoses],
                "verdict": answer.verdict,
                "prescribed": answer.words if answer.names else "",
                "effect": str(answer.effect) if answer.effect else "",
                "runs": answer.spent,
                "code": answer.code,
            }
        )
    return rows


def in_words(rows: list[dict]) -> str:
    """Three lines per patient."""
    lines = []
    for row in rows:
        lines.append(f"{row['patient']:>3}  {row['failure']}: {row['verdict']}")
        if "diagnosed" in row:
            lines.append(f"{'':5}diagnosed: {', '.join(row['diagnosed']) or 'nothing'}")
            lines.append(f"{'':5}tried: {row['prescribed'] or 'nothing helped'} {row['effect']}".rstrip())
    return "\n".join(lines)
