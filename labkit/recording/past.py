"""The past of a long run: the traces of earlier steps, of which ever fewer are kept, so that memory is bounded."""

import numpy as np

BUDGET = 48 * 2**20  # bytes of traces of the past, and as many again of the steps since: 8,192 steps of a small net
FEWEST, MOST = 512, 8192  # steps in a chapter, whatever the net


def chapter_length(columns: int) -> int:
    """How many steps are recorded before they become the past, for traces with so many columns: a power of two."""
    length = MOST
    while length > FEWEST and 8 * columns * length > BUDGET:
        length //= 2
    return length


class Past:
    """The steps before the current chapter: one in `stride`, and those at which something happened."""

    def __init__(self, most: int):
        self.most = most  # steps that are kept
        self.stride = 1
        self.traces: dict[str, np.ndarray] = {}
        self.notable: list[int] = []  # steps that are kept as long as there is room: jumps and non-finite values

    def add(self, traces: dict[str, np.ndarray]) -> None:
        """Traces with one row per step, among them `step`. An instrument that was switched off since has no past."""
        traces = self.before(traces)
        room = self.most // 4  # for notable steps: the first ones, and the last ones
        if len(self.notable) > 2 * room:
            self.notable = [*self.notable[:room], *self.notable[-room:]]
        steps = traces["step"]
        special = np.isin(steps, self.notable)
        keep = special | (steps % self.stride == 0)
        while keep.sum() > self.most:
            self.stride *= 2
            keep = special | (steps % self.stride == 0)
        self.traces = {name: values[keep] for name, values in traces.items()}

    def before(self, traces: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The whole run: the past, and the traces since."""
        if not self.traces:
            return traces
        both = {name: (self.traces[name], traces[name]) for name in self.traces.keys() & traces.keys()}
        alike = {
            name: pair for name, pair in both.items() if pair[0].shape[1:] == pair[1].shape[1:]
        }  # or layers were added
        return {name: np.concatenate(pair) for name, pair in alike.items()}

    def facts(self) -> dict[str, dict[str, int]]:
        if self.stride == 1:
            return {}
        return {"thinned": {"stride": self.stride, "until": int(self.traces["step"][-1])}}
