"""Exercises: an answer is compared with its definition in NumPy, a kernel in many schedules, and a right one gets a score."""

import inspect

import numpy as np

from .meter import Meter, Score
from ..checking import check as look
from ..checking.play import play
from ..errors import PknumbaError
from ..runtime import World, arrays, driver
from ..runtime.making import ranks_as_threads

__all__ = ["check", "run", "Mark"]


class Mark:
    """Outcome of a check: true if the answer is right. A notebook shows its text."""

    def __init__(self, right, text, score=None):
        self.right, self.text, self.score = right, text, score

    def __bool__(self):
        return self.right

    def __repr__(self):
        return ("right: " if self.right else "not yet: ") + self.text


def check(answer, definition=None, *inputs, **options):
    """The Mark of an answer.

    Args:
        answer: a function, compared with ``definition`` on the inputs; or a kernel class with a ``definition`` of its own (or one of the
            library's, extended), which is run in many schedules. ``...`` or a function that returns it is no answer yet.
        definition: what the answer means, in NumPy. inputs: tuples of arguments, one for each comparison.
        options: of a kernel: ranks, seeds, calls, and fields of its configuration.
    """
    if answer is ...:
        return Mark(False, "replace the dots")
    if inspect.isclass(answer):
        return _check_kernel(answer, **options)
    for given in inputs:
        given = given if isinstance(given, tuple) else (given,)
        try:
            said = answer(*given)
        except Exception as error:              # noqa: B902 - an answer may go wrong in any way
            return Mark(False, "replace the dots" if "ellipsis" in str(error) else f"{type(error).__name__}: {error}")
        if said is ... or said is None:
            return Mark(False, "replace the dots")
        wanted = definition(*given)
        if not _equal(said, wanted):
            return Mark(False, f"for {_short(given)} it is {_short(said)} and should be {_short(wanted)}")
    return Mark(True, f"{len(inputs)} {'case' if len(inputs) == 1 else 'cases'} as defined")


def _equal(said, wanted):
    try:
        said, wanted = np.asarray(said), np.asarray(wanted)
        if said.shape != wanted.shape:
            return False
        return bool(np.allclose(said, wanted, rtol=1e-5, atol=1e-6)) if wanted.dtype.kind in "fc" else bool((said == wanted).all())
    except (TypeError, ValueError):
        return said == wanted


def _short(value):
    text = repr(value[0] if isinstance(value, tuple) and len(value) == 1 else value).replace("\n", " ")
    return text if len(text) < 90 else text[:87] + "..."


def _check_kernel(kernel, ranks=1, seeds=12, calls=2, **changes):
    verdict = look(kernel, worlds=(ranks,), seeds=seeds, calls=calls, changes=changes, shrink_s=0, progress=lambda line: None)
    if not verdict:
        error = verdict.failure.error
        return Mark(False, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    if not hasattr(kernel, "toy"):
        return Mark(True, f"{verdict.done} schedules, exact results")
    score = measure(kernel, ranks, **changes)
    return Mark(True, f"{verdict.done} schedules, exact results; {score}", score)


def measure(kernel, ranks=1, **changes):
    """The Score of one call of a kernel with a toy: predicted time, counted bytes, timeline."""
    time, kept = Meter(), []
    problem = kernel.toy(ranks, np.random.default_rng(0), **changes)
    play(kernel, problem, ranks, 1, keep=kept.append, time=time, trace=True, races=False)
    return Score(time.now, time.moved, events=kept[0].events)


def run(main, ranks=1, sms=4, gpu=None, **options):
    """The Score of a program ``main(world)`` that every rank runs, with what it returned.

    It runs on the interpreter, in virtual time. Where there is a GPU it runs there too, and the results must be the same.

    Args:
        sms: SMs of each rank. gpu: whether to; None: where there is one. options: of ``World.local``.
    """
    time, sessions = Meter(), []

    def traced(world):
        sessions.append(world.session)
        return _numpy(main(world))
    with World.local(ranks, executor="interpreter", num_sms=sms, time=time, trace=True, races=False, **options) as world:
        values = world.run(traced) if ranks > 1 else [traced(world)]
    ranks_as_threads()                          # a notebook's first program may have one rank, its next ones four
    if gpu or gpu is None and driver.available()[0]:
        _same_on_gpu(main, ranks, values)
    return Score(time.now, time.moved, values, sessions[0].events)


def _same_on_gpu(main, ranks, values):
    with World.local(ranks, executor="gpu") as world:
        def there(world):
            result = main(world)
            world.synchronize()
            return _numpy(result)
        found = world.run(there) if ranks > 1 else [there(world)]
    for rank, (a, b) in enumerate(zip(values, found)):
        if not _near(a, b):
            raise PknumbaError(f"run: rank {rank} has another result on the GPU. Both executors run one source. Report it.")
    print(f"the same on {driver.device_info(0).name}")


def _near(a, b):
    """Whether results of both executors agree, each of several by itself."""
    if isinstance(a, list):
        return len(a) == len(b) and all(_near(x, y) for x, y in zip(a, b))
    return a is None or np.allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=2e-2, atol=2e-2)


def _numpy(value):
    """An array of any library, or whatever else a program returns."""
    if isinstance(value, (list, tuple)):
        return [_numpy(v) for v in value]
    value = getattr(value, "local", value)
    if hasattr(value, "get") and arrays.library_of(value) in ("cupy", "pknumba"):
        return value.get()
    if arrays.library_of(value) == "torch":
        return value.float().cpu().numpy()
    return value
