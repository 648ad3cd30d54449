"""Every exception that pknumba raises, and what each means.

::

    PknumbaError                 anything below
    ├── ShapeError               (ValueError)    an array's shape, or shapes that do not fit together or across ranks
    ├── LayoutError              (ValueError)    strides or alignment that the bulk copy engine cannot move
    ├── DTypeError               (TypeError)     a dtype the operator does not take
    ├── ConfigError              (ValueError)    a configuration that no device of this kind can run
    ├── WorldError               (RuntimeError)  a closed, broken or unsuitable world; ranks that disagree on the call
    ├── ContractError            (TypeError)     a kernel that breaks a rule of its template or of a primitive
    ├── ProtocolError            (RuntimeError)  a kernel that misuses a semaphore, a tile or a bulk copy while it runs
    ├── RaceError                (RuntimeError)  two accesses that nothing orders (interpreter)
    ├── DeadlockError            (RuntimeError)  every role waits and nothing is in flight (interpreter)
    ├── HangError                (RuntimeError)  a bounded wait expired on the device, or a rank did not answer
    ├── UnsupportedError         (RuntimeError)  this machine lacks something: no GPU, no MPI, no peer access
    ├── CompileError             (RuntimeError)  a kernel that does not compile, or compiles to slow code
    └── DriverError              (RuntimeError)  the CUDA driver refused a call

Messages read *subject: fact. Rule. Remedy.* What a program may want to know is an attribute of the exception, so that
nobody has to take a message apart.
"""

__all__ = ["PknumbaError", "ShapeError", "LayoutError", "DTypeError", "ConfigError", "WorldError", "ContractError",
           "ProtocolError", "RaceError", "DeadlockError", "HangError", "UnsupportedError", "CompileError", "DriverError"]


class PknumbaError(Exception):
    """Base of every exception of pknumba. Keyword arguments become attributes.

    Args:
        message: *subject: fact. Rule. Remedy.*
        **data: what the message was made from, for programs.
    """

    def __init__(self, message, **data):
        super().__init__(message)
        self.data = data
        self.__dict__.update(data)

    def __reduce__(self):
        return _rebuild, (type(self), str(self), self.data)


def _rebuild(cls, message, data):
    return cls(message, **data)


class ShapeError(PknumbaError, ValueError):
    """An array's shape is wrong, or the shapes of a call do not fit together."""


class LayoutError(PknumbaError, ValueError):
    """An array's strides or address are none that the bulk copy engine can move."""


class DTypeError(PknumbaError, TypeError):
    """An operator does not take arrays of this dtype."""


class ConfigError(PknumbaError, ValueError):
    """A configuration breaks a limit of the device or a rule of the kernel."""


class WorldError(PknumbaError, RuntimeError):
    """The world is closed, broken or too small, or its ranks disagree on a call."""


class ContractError(PknumbaError, TypeError):
    """A kernel breaks a rule of its template or of a primitive, found before it runs."""


class ProtocolError(PknumbaError, RuntimeError):
    """A running kernel misuses a semaphore, a shared tile or a bulk copy (interpreter; on GPUs where PKNUMBA_DEBUG=1)."""


class RaceError(PknumbaError, RuntimeError):
    """Two accesses to the same memory, one of them a write, that nothing orders (interpreter)."""


class DeadlockError(PknumbaError, RuntimeError):
    """Every role waits and no asynchronous operation is in flight (interpreter)."""


class HangError(PknumbaError, RuntimeError):
    """A wait outlasted its limit: on the device, or for another rank. ``report`` holds who waited for what."""


class UnsupportedError(PknumbaError, RuntimeError):
    """This machine cannot do it: no GPU, no MPI, no peer access, a compute capability too low."""


class CompileError(PknumbaError, RuntimeError):
    """A kernel does not compile, or the assembler serializes it or spills its registers."""


class DriverError(PknumbaError, RuntimeError):
    """The CUDA driver refused a call; ``code`` is its CUresult."""
