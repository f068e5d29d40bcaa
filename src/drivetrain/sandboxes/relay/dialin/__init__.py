"""The dial-in relay: how a cloud sandbox reaches a gateway that has no public address (design section 6, Reach).

The host dials *into* a port of the sandbox and carries the harness's requests back over that one connection. Use::

    secret = new_secret()
    await sandbox.write(SCRIPT, inside_script(), mode=0o700)
    await sandbox.write(SECRET, secret.encode(), mode=0o600)  # the script removes the file when it has read it
    job = await sandbox.start(inside_argv(SCRIPT, secret_file=SECRET, relay_port=8399, dial_port=8398))
    dial = DialIn(await sandbox.reach(8398), secret, gateway_socket)
    await dial.start()  # raises when the sandbox cannot be reached
    ...                 # the harness uses http://127.0.0.1:8399
    await dial.close()

The inside needs ``python3`` 3.9 or later and nothing else. It prints one line of JSON (``{"relay_port": ...,
"dial_port": ...}``) to stdout when it listens; port 0 picks a free one. A script that is started again needs a new copy
of the secret file, with the same secret; :class:`DialIn` finds it by itself. The protocol is in :mod:`.wire`.
"""

from drivetrain.sandboxes.relay.dialin.host import (
    DialIn,
    DialInError,
    DialInLost,
    DialInOptions,
    DialInProtocolError,
    DialInRefused,
    DialInReplaced,
    DialInState,
    DialInStats,
)
from drivetrain.sandboxes.relay.dialin.package import inside_argv, inside_script, new_secret

__all__ = [
    "DialIn",
    "DialInError",
    "DialInLost",
    "DialInOptions",
    "DialInProtocolError",
    "DialInRefused",
    "DialInReplaced",
    "DialInState",
    "DialInStats",
    "inside_argv",
    "inside_script",
    "new_secret",
]
