"""How long things take: a model of it, and a tuner that measures what the model proposes."""

from .hardware import H100_PAPER, H200, Figure, Hardware
from .model import Prediction, best_comm_sms, explain, hiding_depth, predict, prefer
from .moves import OPERATORS
from .simulate import Simulation, simulate

__all__ = ["Hardware", "Figure", "H100_PAPER", "H200", "predict", "Prediction", "best_comm_sms", "prefer", "hiding_depth", "explain",
           "OPERATORS", "simulate", "Simulation"]
