"""Workers on Python threads: none may outlive the call, whose caller frees the memory that they write."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvcourse.kernels import threads


class Pool(ThreadPoolExecutor):
    """Its second submit finds no thread to start; like the real one, it has put the call into the queue by then."""

    def __init__(self):
        super().__init__(1)
        self.submits = 0

    def submit(self, *arguments):
        self.submits += 1
        future = super().submit(*arguments)
        if self.submits == 2:
            raise RuntimeError("can't start new thread")
        return future


class Worker:
    """Counts the calls that run until they are let go."""

    def __init__(self):
        self.entered, self.go, self.begun, self.ended = threading.Event(), threading.Event(), 0, 0

    def __call__(self, address):
        self.begun += 1
        self.entered.set()
        assert self.go.wait(10)
        self.ended += 1


@pytest.fixture(autouse=True)
def _python_threads(monkeypatch):
    """As on macOS and Windows, where torch brings no OpenMP library that can be called."""
    monkeypatch.setattr(threads, "_openmp", lambda: None)


def let_go_later(worker):
    timer = threading.Timer(0.2, worker.go.set)
    timer.start()
    return timer


def test_a_submit_that_fails_leaves_no_worker_behind(monkeypatch):
    pool, worker = Pool(), Worker()
    made = [pool]

    def make(size):
        return made[0]

    make.cache_clear = made.clear
    monkeypatch.setattr(threads, "_pool", make)
    let_go_later(worker)
    with pytest.raises(RuntimeError, match="start new thread"):
        threads.run_workers(worker, 0, 3)
    assert worker.begun == worker.ended == 2  # the one that started, and the one in the queue
    assert not made  # the next call makes another pool


def test_ctrl_c_is_raised_when_all_workers_have_ended(monkeypatch):
    worker, waits = Worker(), []

    def interrupted(futures):
        waits.append(worker.ended)
        if len(waits) < 3:  # Ctrl-C, and another while the first is being handled
            raise KeyboardInterrupt
        return wait(futures)

    wait = threads.wait
    monkeypatch.setattr(threads, "wait", interrupted)
    let_go_later(worker)
    with pytest.raises(KeyboardInterrupt):
        threads.run_workers(worker, 0, 3)
    assert len(waits) == 3
    assert worker.ended == 3


def test_an_interrupted_caller_waits_for_the_others():
    worker = Worker()
    caller = threading.get_ident()

    def work(address):
        if threading.get_ident() == caller:
            assert worker.entered.wait(10)
            let_go_later(worker)
            raise KeyboardInterrupt
        worker(address)

    with pytest.raises(KeyboardInterrupt):
        threads.run_workers(work, 0, 3)
    assert worker.begun == worker.ended == 2
