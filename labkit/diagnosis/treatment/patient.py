"""What a prescription can change: everything within reach when a program calls `watch(model, optimizer, ...)`."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from labkit.diagnosis.watch import LossFunction, bare
from labkit.recording.nested import call, first_tensor, split_batch
from labkit.recording.task import UNKNOWN, task_of
from labkit.recording.undisturbed import evaluating, replaying

Optimizer = torch.optim.Optimizer
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)


class DoesNotApply(Exception):
    """The program has nothing that this prescription could change; the message says what is missing."""


class Patient:
    """A program's model and optimizers, and the moments of its loop at which a prescription can act."""

    def __init__(self, model: nn.Module, optimizer: Any, options: dict[str, Any], steps: int = 0):
        self.called, self.model = model, bare(model)
        self.optimizers: list[Any] = [
            getattr(each, "optimizer", each) if not hasattr(each, "register_step_pre_hook") else each
            for each in (optimizer if isinstance(optimizer, list | tuple) else [optimizer])
        ]
        self.options, self.steps = options, steps  # of the untreated program; 0 where that is not known yet
        self.updates = 0
        self.factors: list[Callable[[int], float]] = []  # of the learning rate, by the number of updates so far
        self.holds_rate = False
        self.rates: list[list[Any]] = []  # as used in the last update
        self.at_each_step: list[Callable[[Any], None]] = []  # called with the batch when the program reports a step
        self.instead: Callable[[Optimizer], None] | None = None  # done in the place of the program's update
        self.minimised: Callable[[Any], Any] | None = None  # the loss that is minimised in the place of the program's
        self.undo = contextlib.ExitStack()  # whatever reaches beyond the model and its optimizers

    # --- what is there ---

    @property
    def loss_fn(self) -> LossFunction | None:
        return self.options.get("loss_fn")

    @property
    def probe(self) -> tuple[Any, Any]:
        """Inputs and targets; None for what the program does not give."""
        return split_batch(self.options.get("probe"))

    def weights(self) -> list[nn.Parameter]:
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    def groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self.optimizers:
            yield from optimizer.param_groups

    def layers(self) -> list[tuple[str, nn.Module]]:
        """Linear and convolutional layers in the order of their calls; without a probe, of their definition."""
        defined: list[tuple[str, nn.Module]] = [
            (name, module) for name, module in self.model.named_modules() if isinstance(module, LAYERS)
        ]
        order: list[nn.Module] = []
        hooks = [module.register_forward_pre_hook(lambda each, _: order.append(each)) for _, module in defined]
        try:
            outputs = self.outputs()
        finally:
            for hook in hooks:
                hook.remove()
        if outputs is None or not order:
            return defined
        return sorted(((name, each) for name, each in defined if each in order), key=lambda pair: order.index(pair[1]))

    def outputs(self) -> Tensor | None:
        """The outputs on the probe, in eval mode and without a trace; None where there is no probe that fits."""
        inputs, _ = self.probe
        if inputs is None:
            return None
        device = next((weight.device for weight in self.model.parameters()), torch.device("cpu"))
        try:
            with replaying(self.model, device), evaluating(self.model):
                return first_tensor(call(self.called, inputs))
        except Exception:  # a probe that the net cannot take: the program itself does not use it for training
            return None

    @property
    def task(self) -> str:
        """What the net predicts, one of `labkit.recording.facts.TASKS`."""
        outputs, (_, targets) = self.outputs(), self.probe
        return UNKNOWN if outputs is None else task_of(outputs, targets)

    # --- what can be done ---

    def hand_over(self, weights: list[nn.Parameter]) -> None:
        """Let the last optimizer update these too; its schedules stay valid, as no group is added."""
        self.optimizers[-1].param_groups[0]["params"].extend(weights)

    def before_update(self, action: Callable[[Optimizer], object]) -> None:
        """Do something when the gradients are ready and the weights not yet changed; `watch` measures afterwards."""
        for optimizer in self.optimizers:
            optimizer.register_step_pre_hook(with_closure(action))

    def after_update(self, action: Callable[[Optimizer], object]) -> None:
        for optimizer in self.optimizers:
            optimizer.register_step_post_hook(lambda each, *_: action(each) and None)

    def before_forward(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change the floating-point inputs of the net."""

        def changed(_: nn.Module, inputs: tuple, named: dict) -> tuple[tuple, dict]:
            return tuple(map(floats, inputs)), {name: floats(each) for name, each in named.items()}

        def floats(each: Any) -> Any:
            return change(each) if torch.is_tensor(each) and each.is_floating_point() else each

        self.called.register_forward_pre_hook(changed, with_kwargs=True)

    def patch(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute until the arm ends."""
        own = name in vars(owner)
        before = getattr(owner, name)
        setattr(owner, name, value)
        self.undo.callback(lambda: setattr(owner, name, before) if own else delattr(owner, name))

    def update_now(self) -> None:
        """The optimizers' own step, also where the program has put something else in its place."""
        for optimizer in self.optimizers:
            type(optimizer).step(optimizer)

    # --- when the loop runs ---

    def attach(self) -> None:
        """Hooks that come behind those of `watch`, which has measured the gradients by then."""
        if self.instead:
            self._replace_update(self.instead)
        self.before_update(self._set_rates)
        self.after_update(self._reset_rates)

    def _set_rates(self, optimizer: Optimizer) -> None:
        if optimizer is self.optimizers[0]:
            self.rates = []
        self.usual = [group["lr"] for group in optimizer.param_groups]
        factor = 1.0
        for each in self.factors:
            factor *= each(self.updates)
        for group in optimizer.param_groups:
            first = group.setdefault("labkit_first_lr", group.get("initial_lr", group["lr"]))
            group["lr"] = factor * (first if self.holds_rate else group["lr"])
        self.rates.append([group["lr"] for group in optimizer.param_groups])

    def _reset_rates(self, optimizer: Optimizer) -> None:
        for group, lr in zip(optimizer.param_groups, self.usual, strict=True):
            group["lr"] = lr  # a schedule goes on from its own value
        if optimizer is self.optimizers[-1]:
            self.updates += 1

    @contextlib.contextmanager
    def showing_rates(self) -> Iterator[None]:
        """Inside, the optimizers have the learning rates of the last update, to be recorded."""
        usual = [[group["lr"] for group in each.param_groups] for each in self.optimizers]
        self._show(self.rates)
        try:
            yield
        finally:
            self._show(usual)

    def _show(self, rates: list[list[Any]]) -> None:
        for optimizer, own in zip(self.optimizers, rates, strict=False):
            for group, lr in zip(optimizer.param_groups, own, strict=False):
                group["lr"] = lr

    def _replace_update(self, instead: Callable[[Optimizer], None]) -> None:
        """Hide the gradients from the program's own step, which then changes nothing, and do something else."""
        hidden: dict[Tensor, Tensor] = {}

        def hide(optimizer: Optimizer) -> None:
            for weight in own(optimizer):
                hidden[weight], weight.grad = weight.grad, None

        def act(optimizer: Optimizer) -> None:
            for weight in own(optimizer):
                if weight in hidden:
                    weight.grad = hidden.pop(weight)
            instead(optimizer)

        def own(optimizer: Optimizer) -> list[Any]:
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            return [weight for weight in weights if weight.grad is not None or weight in hidden]

        self.before_update(hide)
        self.after_update(act)


def with_closure(action: Callable[[Optimizer], object]) -> Callable:
    """A step hook that acts when the gradients are ready: with a closure, at its end."""

    def hook(optimizer: Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            action(optimizer)
            return None

        def then_act() -> Any:
            result = closure()
            action(optimizer)
            return result

        return args[:1], kwargs | {"closure": then_act}

    return hook


# --- activations in the forward pass --------------------------------------------------------------------

F = nn.functional
NAMES = (
    "relu", "sigmoid", "tanh", "softmax", "log_softmax", "leaky_relu", "gelu", "silu", "elu", "softplus", "hardtanh",
    "relu6", "mish", "hardswish", "selu", "celu", "logsigmoid", "softsign", "softmin",
)  # fmt: skip
ACTIVATIONS = {
    function: name
    for name in NAMES
    for home in (torch, F, Tensor)
    for ending in ("", "_")
    if (function := getattr(home, name + ending, None)) is not None
}


class Swapping(TorchFunctionMode):
    """While a net's forward pass runs, replaces calls of activation functions, of modules and of plain functions alike.

    `swap(number, name)` gives what to call instead, or None; `number` counts the calls of this pass.
    """

    def __init__(self, swap: Callable[[int, str], Callable | None]):
        super().__init__()
        self.swap, self.count = swap, 0
        self.latest: tuple[int, str, Any] | None = None  # number, name and result of the latest activation

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = ACTIVATIONS.get(func)
        if name is None:
            return func(*args, **(kwargs or {}))
        number, self.count = self.count, self.count + 1
        instead = self.swap(number, name)
        result = instead(args[0] if args else kwargs["input"]) if instead else func(*args, **(kwargs or {}))  # type: ignore[index]
        self.latest = number, name, result
        return result


def swap_activations(patient: Patient, swap: Callable[[int, str], Callable | None]) -> None:
    """Replace activations in every forward pass of the program from now on."""
    modes: list[Swapping] = []

    def enter(*_: Any) -> None:
        modes.append(Swapping(swap))
        modes[-1].__enter__()

    def leave(*_: Any) -> None:
        modes.pop().__exit__(None, None, None)

    patient.called.register_forward_pre_hook(enter, prepend=True)
    patient.called.register_forward_hook(leave, always_call=True)


def activations_of(patient: Patient) -> tuple[list[str], int | None]:
    """The activations of a forward pass, in order, and the number of the one that the outputs come from, if any."""
    names: list[str] = []
    mode = Swapping(lambda _, name: names.append(name))  # type: ignore[func-returns-value]
    with mode:
        outputs = patient.outputs()
    if outputs is None or mode.latest is None:
        return names, None
    number, _, result = mode.latest
    return names, number if same_numbers(outputs, result) else None


def same_numbers(one: Tensor, other: Any) -> bool:
    """Is it the same tensor, perhaps in another shape?"""
    return torch.is_tensor(other) and one.data_ptr() == other.data_ptr() and one.numel() == other.numel()
