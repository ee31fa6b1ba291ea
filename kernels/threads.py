"""Runs a compiled worker on several threads: torch's own, so that two thread pools never fight for the cores."""

import ctypes
import functools
import os
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import torch


def run_workers(worker, address, num_threads):
    """Calls `worker(address)` once on each of at most `num_threads` threads and waits for all of them.

    The worker takes tasks from a counter of its own, so it does not matter how many threads start. On Linux they are
    the OpenMP threads that torch just used, still awake; elsewhere Python threads (ctypes releases the GIL). Safe to
    call from several Python threads at once.

    worker: ctypes function pointer, `void (*)(void *)`. address: integer, passed to it. num_threads: at least 1.
    """
    if num_threads == 1:
        worker(address)
    elif (parallel := _openmp()) is not None:
        parallel(worker, address, num_threads, 0)
    else:
        _share(_pool(num_threads - 1), worker, address, num_threads - 1)


def _share(pool, worker, address, num_others):
    """Calls the worker here and on `num_others` threads of the pool.

    The caller frees the memory at the address next, so whatever is raised here, every call has ended by then.
    """
    others = []
    try:
        for _ in range(num_others):
            others.append(pool.submit(worker, address))
    except BaseException:
        # A submit that could not start a thread has left its call in the queue, with no future to wait for: a running
        # thread would take it later. The end of the pool waits for the queue; the next call makes a new pool.
        _pool.cache_clear()
        _until_done(pool.shutdown)
        raise
    try:
        worker(address)
    finally:
        _until_done(wait, others)
    for other in others:
        other.result()


def _until_done(wait_for, *arguments):
    """Calls a function that waits, again after each Ctrl-C, which is raised once it has returned."""
    try:
        wait_for(*arguments)
    except KeyboardInterrupt:
        _until_done(wait_for, *arguments)
        raise


@functools.cache
def _openmp():
    """GOMP_parallel of the OpenMP library that came with torch, or None."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        parallel = ctypes.CDLL(str(path)).GOMP_parallel
        parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        parallel.restype = None
        return parallel
    return None


@functools.cache
def _pool(size):
    return ThreadPoolExecutor(size, thread_name_prefix="kvcourse_kernel")


if hasattr(os, "register_at_fork"):  # a child of fork has the pool but none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
