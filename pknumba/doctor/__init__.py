"""The doctor: looks at a machine and says what pknumba would do on it, what is missing, and what to do about that.

``examine`` returns a Report; ``python -m pknumba doctor`` prints it, under mpirun one for all ranks. Nothing is changed on the
machine; what it tries is one allocation of 2 MiB, shown to the neighbour rank.
"""

from .examination import examine
from .report import Finding, Report

__all__ = ["examine", "Report", "Finding"]
