"""Interrupts a role that runs on without calling a primitive: in plain Python it could never be switched away from."""

import ctypes
import threading
import time

from ..errors import HangError


class Watchdog:
    """Raises HangError in the thread that entered it when the same task has been running for `seconds`."""

    def __init__(self, seconds):
        self.seconds, self.since, self.name = seconds, None, None
        self._stop, self._target = threading.Event(), threading.get_ident()

    def beat(self, task):
        """`task` begins to run now."""
        self.since, self.name = time.monotonic(), task.name

    def __enter__(self):
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        self._thread.join()

    def _watch(self):
        while not self._stop.wait(self.seconds / 4):
            if self.since is not None and time.monotonic() - self.since > self.seconds:
                class RoleHang(HangError):
                    """HangError with a message: an asynchronous exception is a class."""

                    def __init__(self, name=self.name, seconds=self.seconds):
                        super().__init__(f"{name}: ran for {seconds} s without calling a primitive. A kernel waits through "
                                         "primitives only: a loop in plain Python keeps all others from running.")
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._target), ctypes.py_object(RoleHang))
                return
