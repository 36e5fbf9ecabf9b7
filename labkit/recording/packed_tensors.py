"""Many tensors in one buffer, so that one operation measures them all."""

import torch

ROW = 256  # entries per row: short enough to waste little on biases, long enough for fast row sums


class PackedTensors:
    """Copies of a fixed list of tensors, each in whole rows of one float32 buffer, padded with zeros.

    A per-tensor sum is a sum over rows and one small matrix product, whatever the number of tensors:
    `.norm()` per parameter costs 20 calls on a 10-layer net, this costs two.
    `copies` lists of tensors of the same shapes (gradients, weights, ...) are stored side by side.
    """

    def __init__(self, shapes: list[torch.Size], device: torch.device, copies: int = 1):
        self.shapes = list(shapes)
        counts = [shape.numel() for shape in self.shapes]
        self.rows_each = rows = [-(-count // ROW) for count in counts]
        self.buffer = torch.zeros(copies, sum(rows), ROW, device=device)
        self.starts = starts = [ROW * sum(rows[:index]) for index in range(len(rows))]
        flat = self.buffer.view(copies, -1)
        self.views = [
            [
                line[start : start + count].view(shape)
                for start, count, shape in zip(starts, counts, self.shapes, strict=True)
            ]
            for line in flat
        ]
        # The tables are made on the CPU, and copied to the device: there it would have to wait for them.
        owner = torch.arange(len(rows)).repeat_interleave(torch.tensor(rows, dtype=torch.long))
        real = torch.zeros(sum(rows), ROW)
        for start, count in zip(starts, counts, strict=True):
            real.view(-1)[start : start + count] = 1
        self.real = real.to(device)
        self.counts = torch.tensor(counts, dtype=torch.float32).to(device)
        self.owner = owner.to(device)
        self._member = torch.nn.functional.one_hot(owner, len(rows)).float().to(device)

    def fill(self, copy: int, tensors) -> None:
        """Copy the tensors in; other precisions become float32."""
        torch._foreach_copy_(self.views[copy], tensors)

    def sums(self, rows: torch.Tensor, apart: bool = False) -> torch.Tensor:
        """Sums per tensor of values given per row: (..., rows) -> (..., tensors).

        One matrix product, in which an infinity of one tensor becomes NaN in all of them (inf x 0 is NaN).
        `apart` adds up the rows of each tensor separately.
        """
        if apart:
            return torch.stack([part.sum(-1) for part in rows.split(self.rows_each, -1)], -1)
        return rows @ self._member.to(rows.dtype)

    def wide(self, values: torch.Tensor) -> torch.Tensor:
        """In float64, where the device has it."""
        return values if values.device.type == "mps" else values.double()

    def part(self, values: torch.Tensor, index: int) -> torch.Tensor:
        """The entries of one tensor, without padding, of values in rows like these: (..., entries)."""
        return values.flatten(-2).narrow(-1, self.starts[index], self.shapes[index].numel())
