"""Data-parallel training: two or more processes train one net, over gloo on the loopback interface."""

import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import threading
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.utils.data import DistributedSampler

from labkit.recording.run import Run

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
PATIENCE = timedelta(seconds=120)  # timeout of each collective operation


GOODBYE = 10  # seconds for a process to exit by itself after its result has arrived


class WorkerDied(RuntimeError):
    """One of the processes of a run ended without a result."""


# --- parts of a recipe ----------------------------------------------------------------------------


def averaging_step(training, x, y) -> None:
    """One step with gradients averaged over all processes, as in DistributedDataParallel."""
    training.optimizer.zero_grad()
    loss = training.loss(x, y)
    training.backward(loss)
    for weight in training.weights():
        distributed.all_reduce(weight.grad)
        weight.grad /= distributed.get_world_size()
    training.look(loss, x, y)
    training.clip()
    training.update()


def dealt(split, recipe, generator):
    """Each process gets its own share of every epoch, in a new order each epoch."""
    return dealt_by(sampler(split, recipe), split, recipe, each_epoch=DistributedSampler.set_epoch)


def sampler(split, recipe) -> DistributedSampler:
    """torch's DistributedSampler: all processes shuffle alike, and each takes its own part."""
    images: Any = range(len(split.y))  # the sampler only needs a length
    world, rank = distributed.get_world_size(), distributed.get_rank()
    return DistributedSampler(images, world, rank, seed=recipe.seed, drop_last=True)


def dealt_by(sampler, split, recipe, each_epoch):
    """Endless batches in the sampler's order; `each_epoch(sampler, number)` is called before each epoch."""
    for epoch in itertools.count():
        each_epoch(sampler, epoch)
        for batch in torch.tensor(list(sampler), device=split.y.device).split(recipe.batch_size):
            yield split.x.index_select(0, batch), split.y.index_select(0, batch)


# --- the processes --------------------------------------------------------------------------------


def train_together(recipe, **options) -> Run:
    """Train one recipe in `recipe.processes` processes; the run of the first, with the samples of the others as facts.

    The processes end with this one, however it ends: each reads from a pipe that closes when this process is gone.
    """
    context: Any = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
    if hasattr(context, "set_forkserver_preload"):
        # One import of torch for all the processes; torch's optimizers import torch._dynamo when the first is made.
        context.set_forkserver_preload([__name__, "labkit.training.loop", "torch._dynamo"])
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    workers, pipes = [], []
    try:
        for rank in range(recipe.processes):
            pipe, far_end = context.Pipe()
            arguments = (rank, recipe, store.port, far_end, options)
            worker = context.Process(target=work, args=arguments, daemon=True)
            pipes.append(pipe)
            with uninterrupted(), usual_start_method(context):
                worker.start()
            workers.append(worker)
            far_end.close()
        results = [receive(pipe, rank) for rank, pipe in enumerate(pipes)]
        for worker in workers:
            worker.join(GOODBYE)  # a process that is killed leaves its semaphores behind
        return joined(results)
    finally:
        for pipe in pipes:
            pipe.close()
        for worker in workers:
            worker.terminate()
            worker.join(GOODBYE)
            worker.kill()  # one that does not react to SIGTERM


@contextlib.contextmanager
def uninterrupted():
    """Ctrl-C waits until a process has started: nobody would end one that is half started."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def usual_start_method(context):
    """A joblib process has its own start method, which its children would inherit and do not know."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method(context.get_start_method(), force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


def receive(pipe, rank: int) -> tuple[Run, np.ndarray]:
    try:
        result = pipe.recv()
    except EOFError:
        message = f"process {rank} of the run ended without a result; see its own message above"
        raise WorkerDied(message) from None
    if isinstance(result, Exception):
        raise result
    return result


def work(rank: int, recipe, port: int, pipe, options: dict) -> None:
    """One process: join the group, train, send back the run and the fingerprints of its samples."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    threading.Thread(target=end_with_parent, args=(pipe,), daemon=True).start()
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    from labkit.training.loop import Training

    store = distributed.TCPStore("127.0.0.1", port, timeout=PATIENCE)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=recipe.processes, timeout=PATIENCE)
    try:
        training = Training(recipe)
        run = training.run(**options)
        recorder: Any = training.recorder  # it has recorded the fingerprints of the samples
        result: Any = run, recorder.samples.trained.read()[0]
    except Exception as error:
        result = error
    with contextlib.suppress(OSError):  # the parent is gone
        pipe.send(result)
    distributed.destroy_process_group()


def end_with_parent(pipe) -> None:
    """Nothing is ever sent through this pipe: when `recv` returns, the parent has gone."""
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    os._exit(1)


def joined(results: list[tuple[Run, np.ndarray]]) -> Run:
    """The first process's run, with the share of its first epoch that another process trained on in that epoch too."""
    (run, own), *others = results
    epoch = first_repeat(own)
    seen = np.concatenate([prints[:epoch] for _, prints in others])
    run.facts["rank_overlap"] = float(np.isin(own[:epoch], seen).mean()) if epoch else 0.0
    run.facts["processes"] = len(results)
    return run


def first_repeat(prints: np.ndarray) -> int:
    """How many samples come before the first one that repeats."""
    _, first = np.unique(prints, return_index=True)
    again = np.setdiff1d(np.arange(len(prints)), first, assume_unique=True)
    return int(again[0]) if len(again) else len(prints)
