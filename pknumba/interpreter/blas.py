"""One BLAS thread while a session runs: with two and a busy neighbour a run takes 5 to 70 times longer."""

from contextlib import contextmanager, nullcontext

_blas = None


@contextmanager
def one_blas_thread():
    """Context in which NumPy multiplies with one thread."""
    global _blas
    if _blas is None:
        try:
            from threadpoolctl import ThreadpoolController
            _blas = ThreadpoolController()          # looks through all loaded libraries: once is enough
        except ImportError:
            _blas = False
    with _blas.limit(limits=1, user_api="blas") if _blas else nullcontext():
        yield
