"""Rows of other data sets -> rows in SWE-rebench V2's schema.

An adapter is a pure function from a row to the columns of V2, one module per family. Which one applies is decided by
the row's columns (:func:`detect`), or named by the caller. What can never be a task here is refused with a reason.
"""

from __future__ import annotations

from swe_rl_env.tasks.adapters.base import Adapter, Format, Unusable
from swe_rl_env.tasks.adapters.choose import EVALUATION_SETS, FORMATS, adapt, detect, is_evaluation_set

__all__ = ["EVALUATION_SETS", "FORMATS", "Adapter", "Format", "Unusable", "adapt", "detect", "is_evaluation_set"]
