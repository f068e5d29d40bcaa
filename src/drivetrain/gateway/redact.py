"""Keep secrets out of logs, error texts and what is recorded.

A session's key is known in full while one of its requests is served, so it is taken out of the request's body by
value: agents print their environment, and what they print comes back in the next prompt. Logs are written where no
key is at hand; there the forms are recognised in which a key travels.
"""

from __future__ import annotations

import logging
import re
import traceback

MASK = "dt-redacted"

_FORMS = (
    (re.compile(r"dt-(?:agent|trainer|admin)-[A-Za-z0-9_-]{16,}"), MASK),
    (re.compile(r"([?&]key=)[^&\s'\"<>]+"), rf"\1{MASK}"),
    (re.compile(r"(?i)(bearer\s+)[^\s'\",]+"), rf"\1{MASK}"),
    (re.compile(r"(?i)(x-(?:goog-)?api-key['\"]?\s*[:=,]\s*b?['\"]?)[^\s'\",]+"), rf"\1{MASK}"),
)


def redact(text: str) -> str:
    """A text without keys: minted ones anywhere, any other as bearer token, key header or ``?key=``."""
    for form, replacement in _FORMS:
        text = form.sub(replacement, text)
    return text


def redact_body(body: bytes, key: str) -> bytes:
    """A request body without the key that came with it. A key has no character that JSON escapes."""
    secret = key.encode()
    return body.replace(secret, MASK.encode()) if len(secret) >= len(MASK) and secret in body else body


class RedactFilter(logging.Filter):
    """Redacts the message, its arguments and the traceback of every record of a logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite the record; always lets it through."""
        record.msg, record.args = redact(record.getMessage()), ()
        if record.exc_info:
            error = record.exc_info[1]
            text = "".join(traceback.format_exception(error)) if error is not None else ""
            record.exc_text, record.exc_info = redact(text.rstrip()), None
        return True


def guarded_logger(name: str) -> logging.Logger:
    """The logger of this name, behind a :class:`RedactFilter`."""
    logger = logging.getLogger(name)
    if not any(isinstance(one, RedactFilter) for one in logger.filters):
        logger.addFilter(RedactFilter())
    return logger
