"""Which prescriptions are tried for a diagnosis, and in which order."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from treated_programs import STEPS, data, frozen_behind_sigmoids, slow

from labkit.diagnosis.diagnose import UNSURE, diagnose
from labkit.diagnosis.treatment.arms import REFUSED, Arm, Here, Order
from labkit.diagnosis.treatment.prescriptions.catalogue import MOST_IN_WAVE, USUAL, answers_to, candidates, in_order
from labkit.diagnosis.treatment.treat import treat


def diagnosed(program):
    return diagnose(Here(program)(Order(Arm())).run)


def test_what_is_too_much_for_a_diagnosis_is_tried_after_the_usual_ones():
    found = diagnosed(slow)[:1]
    answers, waves = answers_to(found[0]), candidates(found)
    assert len(answers) > MOST_IN_WAVE >= max(map(len, waves))
    tried = [name for wave in waves for name in wave]
    assert waves[0] == answers[:MOST_IN_WAVE] and set(answers) | set(USUAL) <= set(tried)
    assert len(tried) == len(set(tried))


def test_beside_what_has_helped_only_what_is_called_for_is_tried():
    found = diagnosed(slow)[:1]
    (wave,) = candidates(found, ("adam",))
    assert "adam" not in wave and set(wave) <= set(answers_to(found[0]))


def test_every_candidate_of_an_unsure_diagnosis_has_its_own_prescription_tried():
    """Sixteen candidates have far more prescriptions than are tried at once: the first would fill all places."""
    (found,) = diagnosed(frozen_behind_sigmoids)
    assert found.name == UNSURE and "vanishing_gradients" in found.candidates
    tried = [name for wave in candidates([found]) for name in wave]
    own = {name: [each.name for each in in_order(name) if each.answers[0] == name] for name in found.candidates}
    assert not [name for name, each in own.items() if each and each[0] not in tried]
    assert {"relu_between", "fitting_init", "faster_adam"} <= set(candidates([found])[0])  # of the last ones too


def test_a_net_of_frozen_layers_and_sigmoids_is_cured():
    answer = treat(frozen_behind_sigmoids, progress=False)
    assert answer.cured and "relu_between" in answer.names, str(answer)


def softmax_by_hand(watch, seed):
    x, y = data(seed)
    torch.manual_seed(seed)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))

        def forward(self, x):
            powers = torch.exp(self.layers(x))
            return powers / powers.sum(1, keepdim=True)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model, optimizer, probe=(x[:64], y[:64])) as record:
        for _ in range(STEPS):
            optimizer.zero_grad()
            outputs = model(x)
            loss = cross_entropy(outputs, y)
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y))


def test_probabilities_of_any_origin_become_logits():
    """Cross-entropy of two probabilities cannot fall below 0.31; that of logits can."""
    untreated, treated = (Here(softmax_by_hand)(Order(Arm(names))).run["loss"] for names in ((), ("logits",)))
    assert min(untreated) > 0.31 and min(treated) < 0.31
    assert Here(slow)(Order(Arm(("logits",)))).status == REFUSED
