"""SIGTERM: from torchrun when another rank has failed, from Slurm and Kubernetes when time is up.

A rank has some seconds left then, and mostly waits in a call that never looks at signals. So a
thread listens: it lets the rank find out by itself who is gone, and ends it when that takes long.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

PATIENCE = 15.0  # torchrun, Slurm and Kubernetes kill 30 s after SIGTERM [s]
ENDED = 128 + signal.SIGTERM  # exit code of a process that SIGTERM has ended


@contextmanager
def ended_in_time(last: Callable[[], None]) -> Iterator[None]:
    """After SIGTERM this process has ``PATIENCE`` seconds; then ``last`` is called, and it ends.

    Only in the main thread, as Python has it; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hears, told = socket.socketpair()
    told.setblocking(False)
    over = threading.Event()

    def listen() -> None:
        while (heard := hears.recv(1)) and heard[0] != signal.SIGTERM:
            pass
        if heard and not over.wait(PATIENCE):
            with suppress(Exception):
                last()
            os._exit(ENDED)

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    wakes = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=listen, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(wakes)
        signal.signal(signal.SIGTERM, before)
        told.close()
