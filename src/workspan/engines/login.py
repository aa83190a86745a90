"""How two processes that know the same secret prove it to each other before a word is said about a run.

========  ==========================================================
client    magic, version, its nonce
driver    magic, version, its nonce
client    its proof
driver    its proof, or the end of the connection
========  ==========================================================

A proof is the HMAC-SHA256, under the run's secret, of who proves, both nonces, the run's id and the version. It cannot
be made without the secret, nor used again, nor turned round, nor taken to another run. The frames after it are keyed
with a secret that comes from the same values, so each connection has its own. Whoever does not know the secret learns
the version, and nothing else.
"""

from __future__ import annotations

from hmac import compare_digest
from hmac import digest as hmac_digest
from os import urandom

from workspan.engines.wire import VERSION
from workspan.errors import WireError

MAGIC = b"WSPN"
NONCE_BYTES = 32
PROOF_BYTES = 32
HELLO_BYTES = len(MAGIC) + 1 + NONCE_BYTES

CLIENT = b"client"
DRIVER = b"driver"
_KEYS = b"frames"


class Login:
    """One side of the handshake.

    Parameters
    ----------
    secret
        The run's secret.
    run_id
        The run.
    side
        ``CLIENT`` or ``DRIVER``.
    """

    def __init__(self, secret: bytes, run_id: str, side: bytes) -> None:
        self._secret = secret
        self._run_id = run_id.encode()
        self._side = side
        self._nonce = urandom(NONCE_BYTES)
        self._peer_nonce = b""

    def hello(self) -> bytes:
        """Return what this side says first."""
        return MAGIC + bytes([VERSION]) + self._nonce

    def take_hello(self, data: bytes) -> None:
        """Read the other side's first words.

        Raises
        ------
        WireError
            It does not speak this protocol, or another version of it.
        """
        if not MAGIC.startswith(data[: len(MAGIC)]):
            raise WireError("the peer does not speak Workspan's protocol")
        if len(data) > len(MAGIC) and data[len(MAGIC)] != VERSION:
            raise WireError(
                f"the peer speaks version {data[len(MAGIC)]} of the protocol, this process version {VERSION}: install "
                "the same version of Workspan for the run and for its workers"
            )
        self._peer_nonce = data[len(MAGIC) + 1 : HELLO_BYTES]

    def proof(self) -> bytes:
        """Return the proof that this side knows the secret."""
        return self._digest(self._side)

    def check_proof(self, data: bytes) -> None:
        """Check the other side's proof.

        Raises
        ------
        WireError
            It does not know the secret, or means another run.
        """
        if not compare_digest(data, self._digest(DRIVER if self._side == CLIENT else CLIENT)):
            raise WireError("the peer does not know this run's secret")

    def frame_secret(self) -> bytes:
        """Return the secret of this connection's frames."""
        return self._digest(_KEYS)

    def _digest(self, purpose: bytes) -> bytes:
        nonces = (self._nonce, self._peer_nonce) if self._side == CLIENT else (self._peer_nonce, self._nonce)
        parts = (purpose, *nonces, bytes([VERSION]), self._run_id)  # all but the last have one length a purpose
        return hmac_digest(self._secret, b"\0".join(parts), "sha256")
