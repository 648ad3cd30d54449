"""The card that all ranks of a process share, if they share one."""

from ..errors import ConfigError


class Card:
    """How many blocks run at once.

    Args:
        sms: that all ranks share, a block on each; None: every rank has a card of its own.
        alone: whether no rank is in another process.

    Attributes: ``occupied``: how many blocks run now.
    """

    def __init__(self, sms, alone=True):
        if sms is not None and (type(sms) is not int or sms < 1 or not alone):
            raise ConfigError(f"session: card_sms = {sms!r}. It is how many SMs the ranks of one process share, at least 1. Use "
                              "World.local.", card_sms=sms)
        self.sms, self.occupied = sms, 0

    def room(self, blocks):
        """Whether so many more may run."""
        return self.sms is None or self.occupied + blocks <= self.sms

    def take(self, blocks):
        """So many more run."""
        self.occupied += blocks

    def left(self, launch, session):
        """Blocks of a launch have ended: others may start, on a card that is shared those of any rank, in an order that is drawn."""
        self.occupied -= launch.cluster
        waiting = [launch]
        if self.sms is not None:
            waiting = [each for each in session.launches.values() if each.queued]
            session.rng.shuffle(waiting)
        for each in waiting:
            each.admit()

    @property
    def told(self):
        """How a session says so in the line that reproduces it."""
        return "" if self.sms is None else f", card_sms={self.sms}"
