"""The parent's side of the zygote: what is left of a start that fails, and of one that ends before its session."""

import os
import signal
import socket
import subprocess
import sys

import pytest
from sandboxed import SMALL, program, works

from kvcourse.course.grading.sandbox import Sandbox, Stopped, kernel, launcher


@pytest.fixture
def sockets(monkeypatch):
    """All sockets that the launcher makes."""
    made, real = [], socket.socketpair

    def pair():
        made.extend(real())
        return made[-2:]

    monkeypatch.setattr(launcher.socket, "socketpair", pair)
    return made


def open_ones(sockets):
    return [end for end in sockets if end.fileno() != -1]


def test_a_first_try_leaves_no_socket(sockets, monkeypatch):
    """As on systems that allow no namespaces."""
    commands, real = [], subprocess.Popen

    def first_fails(command, **options):
        commands.append(command)
        return real(command if commands[1:] else [sys.executable, "-c", "raise SystemExit('no')"], **options)

    monkeypatch.setattr(kernel, "IS_LINUX", True)
    monkeypatch.setattr(launcher.subprocess, "Popen", first_fails)
    with Sandbox() as box:
        assert works(box)
        assert len(commands) == 2
        assert len(sockets) == 4
        assert len(open_ones(sockets)) == 1
    assert open_ones(sockets) == []


def test_a_process_that_cannot_start_leaves_no_socket_and_no_folder(sockets, monkeypatch, tmp_path):
    def fail(*arguments, **options):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(launcher.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(launcher.subprocess, "Popen", fail)
    with Sandbox() as box, pytest.raises(BlockingIOError):
        _ = box.confinement
    assert len(sockets) == 2
    assert open_ones(sockets) == []
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not kernel.IS_LINUX, reason="a process of Linux is dumpable or not")
@pytest.mark.parametrize("first", [0, 1])
def test_the_parent_stays_unreadable_until_the_last_sandbox_closes(monkeypatch, first):
    monkeypatch.setattr(launcher.os, "geteuid", lambda: 1000)  # root gives its children another user instead
    before = kernel.control_process(kernel.PR_GET_DUMPABLE)
    boxes = [Sandbox(without=("namespaces",)) for _ in range(2)]
    seen = []
    try:
        for box in boxes:
            _ = box.confinement
            seen.append(kernel.control_process(kernel.PR_GET_DUMPABLE))
        for box in (boxes[first], boxes[first], boxes[1 - first]):
            box.close()
            seen.append(kernel.control_process(kernel.PR_GET_DUMPABLE))
    finally:
        for box in boxes:
            box.close()
    assert seen == [0, 0, 0, 0, before]


def die(zygote):
    os.kill(zygote.pid, signal.SIGKILL)
    zygote._process.wait()


def test_asking_for_the_confinement_leaves_an_open_session_its_zygote():
    with Sandbox() as box:
        with box.session(program("def attempt(): return 1"), SMALL) as session:
            words, zygote = box.confinement, box._zygote
            die(zygote)
            assert box.confinement == words
            assert box._zygote is zygote
            with pytest.raises(Stopped):
                session.names.attempt()
        assert box.confinement == words
        assert box._zygote is not zygote
        assert works(box)


def test_a_session_can_be_closed_after_its_zygote():
    with Sandbox() as box:
        session = box.session(program("def attempt(): return 1"), SMALL)
        assert session.names.attempt() == 1
        box._zygote.close()
        assert box._zygote.exit() == (9, 0.0)
        session.close()
        assert works(box)
