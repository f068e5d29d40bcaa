"""A defect of our own: logged without what the request held, answered without what the inside looks like."""

from __future__ import annotations

import logging
import traceback

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from drivetrain.gateway.redact import guarded_logger
from drivetrain.gateway.refusal import Refusal

_CLIENT_FAULTS = (web.RequestPayloadError, HttpProcessingError)

_log = guarded_logger("drivetrain.gateway")


def report(error: Exception, where: str) -> Refusal:
    """Log type and place of an unexpected exception, not its text (it may quote a prompt); what the caller is told."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    _log.error("unexpected %s in %s\n%s", type(error).__name__, where, frames)
    return Refusal("internal_error", "the gateway failed unexpectedly; see its log.")


class _ClientFaults(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], _CLIENT_FAULTS))


def leave_out_client_faults(logger: logging.Logger) -> None:
    """Keep out of a log what a client does wrong: aiohttp reports a request that is no HTTP, or a body that breaks
    off behind a refusal, as an unhandled exception, and anybody without a key could write the log full with them."""
    if not any(isinstance(one, _ClientFaults) for one in logger.filters):
        logger.filters.insert(0, _ClientFaults())  # before the traceback becomes text
