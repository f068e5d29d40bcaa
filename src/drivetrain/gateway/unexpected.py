"""A defect of our own: logged without what the request held, answered without what the inside looks like."""

from __future__ import annotations

import traceback

from drivetrain.gateway.redact import guarded_logger
from drivetrain.gateway.refusal import Refusal

_log = guarded_logger("drivetrain.gateway")


def report(error: Exception, where: str) -> Refusal:
    """Log type and place of an unexpected exception, not its text (it may quote a prompt); what the caller is told."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    _log.error("unexpected %s in %s\n%s", type(error).__name__, where, frames)
    return Refusal("internal_error", "the gateway failed unexpectedly; see its log.")
