# Sourced by the other scripts: where the project is, and an environment in which its MPI and BLAS behave.
# Sets ROOT and puts the project's own Python and mpirun first on PATH.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH="$ROOT/.venv/bin:$PATH"

# Open MPI and pip do not start without a home directory.
export HOME="${HOME:-/tmp}"

# Open MPI: allow root (containers), allow more ranks than cores, and use a one-sided component that works without UCX devices.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_MCA_osc=^ucx

# One BLAS thread per rank: N ranks with a thread per core each run many times slower than with one.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}"

# Progress appears when it happens, also in a pipe.
export PYTHONUNBUFFERED=1

# Compiled Python is kept: else every rank, and every program that the tests start, compiles all of it again.
unset PYTHONDONTWRITEBYTECODE
