"""The usual error messages of PyTorch: what each means, what to do, and the mode that explains it.

Where a few lines on any machine raise it, they stand beside it, and a test runs them.
"""

from dataclasses import dataclass

from labkit.site.text import slug


@dataclass(frozen=True)
class Message:
    """An error or warning as PyTorch words it; `modes` are explained on a page of their own."""

    message: str  # the part that does not change
    means: str
    todo: str
    modes: tuple[str, ...] = ()
    code: str = ""  # raises it, or warns with it

    @property
    def name(self) -> str:
        return "message-" + slug(self.message)[:48].strip("-")


MESSAGES = (
    Message(
        "one of the variables needed for gradient computation has been modified by an inplace operation",
        "The backward pass needs a tensor that was overwritten after the forward pass: `x += y`, `relu_`, `x[mask] "
        "= 0`.",
        "Replace the in-place operation by one that makes a new tensor. `torch.autograd.set_detect_anomaly(True)` "
        "shows "
        "the line of the forward pass.",
        ("in_place_edit",),
        "x = torch.ones(3, requires_grad=True)\ny = x.exp()\ny += 1\ny.sum().backward()",
    ),
    Message(
        "a leaf Variable that requires grad is being used in an in-place operation",
        "A parameter is changed by `+=`, `fill_` or an assignment to its entries, where autograd records.",
        "Change parameters under `torch.no_grad()`; to initialise them use `torch.nn.init`, which does so itself.",
        ("in_place_edit",),
        "w = torch.ones(2, requires_grad=True)\nw += 1",
    ),
    Message(
        "element 0 of tensors does not require grad and does not have a grad_fn",
        "The loss has no graph behind it: a `detach()`, `.item()`, `.data`, NumPy or `torch.no_grad()` cut it off.",
        "Follow the loss back to the parameters and find where `requires_grad` becomes False. A loss that is only "
        "partly "
        "cut off raises nothing, and trains nothing.",
        ("detached_loss", "silently_detached_loss"),
        "loss = torch.nn.Linear(2, 1)(torch.ones(1, 2)).detach().sum()\nloss.backward()",
    ),
    Message(
        "Trying to backward through the graph a second time",
        "`backward()` was called twice on one graph, often because a hidden state or a summed loss still holds the "
        "graph of "
        "the batch before.",
        "Call `detach()` on what is carried to the next step, and log `loss.item()` instead of the loss. "
        "`retain_graph=True` hides it and fills the memory.",
        (),
        "x = torch.ones(2, requires_grad=True)\nloss = (x * x).sum()\nloss.backward()\nloss.backward()",
    ),
    Message(
        "grad can be implicitly created only for scalar outputs",
        "The loss has one number per sample, because its `reduction` is 'none'.",
        "Take the mean. A sum instead scales the learning rate with the batch.",
        ("summed_loss",),
        "loss = torch.ones(4, requires_grad=True) * 2\nloss.backward()",
    ),
    Message(
        "Using a target size",
        "A warning of `mse_loss` that the shapes differ: (n, 1) against (n). They are broadcast to n × n, and the "
        "net learns "
        "to predict the mean.",
        "Make the shapes equal: `outputs.squeeze(1)` or `targets.unsqueeze(1)`.",
        ("loss_broadcast", "metric_broadcast"),
        "torch.nn.functional.mse_loss(torch.ones(4, 1), torch.ones(4))",
    ),
    Message(
        "Expected more than 1 value per channel when training",
        "Batch norm got a batch of one sample: it cannot compute a variance. It is usually the last batch of an epoch.",
        "`drop_last=True` in the DataLoader. Batches of two or three do not raise, and are nearly as bad.",
        ("tiny_batch_norm",),
        "torch.nn.BatchNorm1d(3)(torch.ones(1, 3))",
    ),
    Message(
        "mat1 and mat2 shapes cannot be multiplied",
        "A linear layer expects another number of inputs; after convolutions it is often the image size that changed.",
        "Print the shape before the layer: its last dimension must be `in_features`.",
        (),
        "torch.nn.Linear(5, 1)(torch.ones(2, 4))",
    ),
    Message(
        "Expected input batch_size",
        "Outputs and targets have different numbers of samples: something was flattened, transposed or sliced on "
        "one side "
        "only.",
        "Print both shapes. Outputs are (n, classes), targets are (n).",
        ("labels_detached",),
        "torch.nn.functional.cross_entropy(torch.ones(3, 2), torch.zeros(4, dtype=torch.long))",
    ),
    Message(
        "is out of bounds",
        "A label is not below the number of outputs: labels that count from 1, or a class that was forgotten. On a "
        "GPU the "
        "same is a device-side assert.",
        "Compare `targets.min()` and `targets.max()` with the number of outputs.",
        (),
        "torch.nn.functional.cross_entropy(torch.ones(1, 3), torch.tensor([3]))",
    ),
    Message(
        "CUDA error: device-side assert triggered",
        "An index was out of range in a GPU kernel, mostly a label or a token that is too large. The line in the "
        "traceback is "
        "a later one, because kernels run behind.",
        "Run the same batch on the CPU, which names the true line, or set CUDA_LAUNCH_BLOCKING=1. Then check labels "
        "and "
        "token numbers. Start the process again: after an assert the GPU state is lost.",
    ),
    Message(
        "CUDA out of memory",
        "Activations for the backward pass take most of the memory; they grow with the batch and the length of a "
        "sequence. If "
        "it fails only in validation, gradients are recorded there too.",
        "Validate under `torch.no_grad()`; log `loss.item()`; then a smaller batch with accumulation, or "
        "checkpointing.",
        ("validation_with_gradients",),
    ),
    Message(
        "Expected all tensors to be on the same device",
        "Model and batch, or two parts of a model, are on different devices. A layer in a plain Python list does "
        "not move with "
        "`model.to(device)`.",
        "Use `nn.ModuleList` and `register_buffer`; move each batch.",
        ("unregistered_layers",),
    ),
    Message(
        "must have the same dtype",
        "Inputs and weights have different precisions: NumPy gives float64, and `model.half()` without autocast wants "
        "float16 inputs.",
        "`x.float()` for data from NumPy; for 16 bits use `torch.autocast` and leave the weights in float32.",
        ("half_precision_adam",),
        "torch.nn.Linear(2, 1)(torch.ones(1, 2, dtype=torch.float64))",
    ),
    Message(
        "Attempting to unscale FP16 gradients",
        "GradScaler got a model whose weights are in float16 themselves: their gradients are too, and unscaling them "
        "would underflow.",
        "Leave the weights in float32 and run the forward pass under `torch.autocast`.",
        ("half_precision_adam", "fp16_underflow"),
    ),
    Message(
        "expected target dtype to be Long",
        "Cross-entropy got class numbers as floats. Older versions say: expected scalar type Long but found Float.",
        "`targets.long()` for classes; probabilities need the shape of the outputs.",
        (),
        "torch.nn.functional.nll_loss(torch.ones(2, 3), torch.ones(2))",
    ),
    Message(
        "Detected call of `lr_scheduler.step()` before `optimizer.step()`",
        "A warning: the first learning rate of the schedule is skipped. It often comes with a scheduler that is "
        "called per "
        "batch although it counts epochs.",
        "`optimizer.step()` first; then decide whether the schedule counts steps or epochs.",
        ("scheduler_stepped_per_batch",),
        "optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1)\n"
        "torch.optim.lr_scheduler.StepLR(optimizer, 1).step()",
    ),
    Message(
        "returned nan values in its 0th output",
        "Anomaly detection found the first NaN of the backward pass. The forward value may have been finite: the "
        "derivatives "
        "of sqrt and log are infinite at 0.",
        "Add a small number inside the root or the logarithm; `torch.where` alone does not keep NaN out of the "
        "gradient.",
        ("sqrt_at_zero", "log_of_zero", "zero_by_zero"),
        "x = torch.zeros(1, requires_grad=True)\nwith torch.autograd.detect_anomaly(check_nan=True):\n"
        "    (torch.sqrt(x) * 0).sum().backward()",
    ),
    Message(
        "Error(s) in loading state_dict",
        "The names of a checkpoint and of the model differ: a wrapper added `module.`, a layer was renamed, or the "
        "model is "
        "another one.",
        "Compare the names. `strict=False` loads what fits and leaves the rest as it was initialised, silently.",
        (),
        "torch.nn.Linear(2, 2).load_state_dict({'module.weight': torch.ones(2, 2)})",
    ),
    Message(
        "optimizer got an empty parameter list",
        "The model has no registered parameters: its layers are in a plain list or dictionary.",
        "`nn.ModuleList`, `nn.ModuleDict`. If only some layers are hidden there is no error, and they never train.",
        ("unregistered_layers", "stale_optimizer"),
        "torch.optim.SGD([], lr=0.1)",
    ),
    Message(
        "Can't call numpy() on Tensor that requires grad",
        "A tensor with a graph behind it is converted for logging or a metric.",
        "`x.detach().cpu().numpy()`, and only for what is not part of the loss.",
        ("detached_loss",),
        "torch.ones(1, requires_grad=True).numpy()",
    ),
)
