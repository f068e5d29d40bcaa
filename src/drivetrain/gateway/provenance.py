"""Record once per session what does not change from turn to turn (:mod:`drivetrain.trace.provenance`)."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

import drivetrain
from drivetrain.errors import ConfigError
from drivetrain.gateway.redact import redact
from drivetrain.journal.writer import Journal
from drivetrain.trace.provenance import CONFIG_EVENT, PROVENANCE_EVENT, Provenance, SessionProvenance

_MAX_RECORDS = 32
_MAX_CHARS = 200
_PRODUCT = re.compile(r"([^\s/()]+)/([^\s/()]+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ProvenanceBook:
    """Writes the provenance of all sessions of a gateway.

    Args:
        journal: where records go, each before the first turn that refers to it.
        engine, template_sha256, tokenizer_sha256: of this gateway.
    """

    def __init__(self, journal: Journal, *, engine: str, template_sha256: str, tokenizer_sha256: str) -> None:
        self._journal = journal
        self._base = Provenance(
            drivetrain=drivetrain.__version__,
            engine=engine,
            template_sha256=template_sha256,
            tokenizer_sha256=tokenizer_sha256,
        )

    async def number(
        self, session_id: str, known: SessionProvenance, *, model: str, labels: Mapping[str, str], user_agent: str
    ) -> int:
        """The 1-based number of a call's record in its session; a new record is in the journal when this returns.

        A session has at most 32 records: a client that names itself anew in every request is then recorded without
        its name.

        Raises:
            JournalError: the record could not be committed.
        """
        record = self._record(model, labels, user_agent)
        if record not in known.records and len(known.records) >= _MAX_RECORDS - 1:
            record = self._record(model, labels, "")
        if record not in known.records:
            await self._journal.add_event(session_id, PROVENANCE_EVENT, **msgspec.to_builtins(record))
            known.records.append(record)
        return known.records.index(record) + 1

    async def note_config(self, session_id: str, known: SessionProvenance, hashes: Mapping[str, str]) -> None:
        """Add digests of configuration files to a session.

        Raises:
            ConfigError: a value is no SHA-256 digest in hex: contents, which may hold a key, are never recorded.
            JournalError: they could not be committed.
        """
        for name, value in hashes.items():
            if not _SHA256.fullmatch(value):
                raise ConfigError(
                    f"the hash of {redact(name)[:_MAX_CHARS]!r} is no SHA-256 digest.",
                    fix="Give 64 lower-case hex digits.",
                )
        clean = {redact(name)[:_MAX_CHARS]: value for name, value in hashes.items()}
        await self._journal.add_event(session_id, CONFIG_EVENT, sha256=clean)
        known.config_sha256 |= clean

    def _record(self, model: str, labels: Mapping[str, str], user_agent: str) -> Provenance:
        product = _PRODUCT.match(user_agent)
        name, version = product.groups() if product else ("", "")
        if "agent" in labels:  # the runner knows better than an SDK's own name
            name, version = labels["agent"], labels.get("agent_version", "")
        return msgspec.structs.replace(
            self._base, model=model, harness=name, harness_version=version, user_agent=user_agent
        )


def read_user_agent(headers: Mapping[str, str], *, secret: str = "") -> str:
    """The User-Agent of a request, at most 200 characters; empty when it holds a key, whole or in a known form."""
    value = headers.get("User-Agent", "")
    if (secret and secret in value) or redact(value) != value:
        return ""
    return value[:_MAX_CHARS]
