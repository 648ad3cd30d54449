"""How configurations are checked."""

from ..errors import ConfigError


def insist(config, rules):
    """Raise ConfigError for the first of (whether it holds, text) that does not."""
    for good, text in rules:
        if not good:
            raise ConfigError(f"{type(config).__name__}: {text}", config=config)
