"""The TRL versions this room is written against."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from drivetrain.errors import ConfigError, MissingDependency

#: ForkGRPOTrainer overrides underscore methods of GRPOTrainer, whose contract was measured on this minor version.
TRL_SUPPORTED = "1.16"


def require_trl() -> str:
    """Return the installed TRL version.

    Raises:
        MissingDependency: TRL is not installed.
        ConfigError: another minor version is installed; its private methods may differ.
    """
    try:
        found = version("trl")
    except PackageNotFoundError:
        raise MissingDependency("training needs TRL.", fix="pip install 'drivetrain[trl]'") from None
    if found.split(".")[:2] != TRL_SUPPORTED.split("."):
        raise ConfigError(
            f"TRL {found} is installed; training is written for TRL {TRL_SUPPORTED}.*.",
            fix=f"pip install 'trl>={TRL_SUPPORTED},<1.17'",
        )
    return found


@contextmanager
def known_warnings() -> Iterator[None]:
    """Silence what this combination of versions always says: TRL's experimental notice, transformers' renames."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*rollout_func.*experimental")
        warnings.filterwarnings("ignore", message=".*importing from 'trl.experimental'")
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*deprecated", category=FutureWarning)
        yield
