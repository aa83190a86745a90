"""The handshake: who knows the secret is let in, and who does not learns nothing."""

from __future__ import annotations

import hmac

import pytest

from workspan.engines import login as login_module
from workspan.engines.login import CLIENT, DRIVER, HELLO_BYTES, MAGIC, Login
from workspan.engines.wire import VERSION
from workspan.errors import WireError

SECRET = bytes(range(32))
OTHER = bytes(range(1, 33))


def met(secret=SECRET, run_id="run", *, driver_secret=SECRET, driver_run="run"):
    """Return client and driver after their first words."""
    client, driver = Login(secret, run_id, CLIENT), Login(driver_secret, driver_run, DRIVER)
    driver.take_hello(client.hello())
    client.take_hello(driver.hello())
    return client, driver


def test_both_sides_prove_themselves_and_share_a_key():
    """Each side accepts the other's proof, and the frames of the connection get one secret (R40, R41)."""
    client, driver = met()
    driver.check_proof(client.proof())
    client.check_proof(driver.proof())
    assert client.frame_secret() == driver.frame_secret()
    assert len(client.frame_secret()) == 32


def test_each_connection_has_its_own_key():
    """Frames of one connection are of no use in another one of the same run (R41)."""
    first, second = met()[0], met()[0]
    assert first.frame_secret() != second.frame_secret()
    assert first.frame_secret() not in (first.proof(), SECRET)


@pytest.mark.parametrize(
    ("secret", "run_id"),
    [(OTHER, "run"), (b"", "run"), (SECRET[:-1], "run"), (SECRET, "other run"), (SECRET, "")],
    ids=["wrong key", "no key", "short key", "wrong run", "no run"],
)
def test_a_stranger_is_refused_by_both_sides(secret, run_id):
    """Neither side takes a proof that was made with another secret or for another run (R40)."""
    client, driver = met(secret, run_id)
    with pytest.raises(WireError, match="does not know this run's secret"):
        driver.check_proof(client.proof())
    with pytest.raises(WireError, match="does not know this run's secret"):
        client.check_proof(driver.proof())


@pytest.mark.parametrize("side", [CLIENT, DRIVER])
def test_another_version_is_named(side, monkeypatch):
    """Whoever meets another version says both numbers and what to do (R40, B101)."""
    monkeypatch.setattr(login_module, "VERSION", VERSION + 6)
    hello = Login(SECRET, "run", DRIVER if side == CLIENT else CLIENT).hello()
    monkeypatch.undo()
    with pytest.raises(WireError, match=f"version {VERSION + 6} of the protocol, this process version {VERSION}: inst"):
        Login(SECRET, "run", side).take_hello(hello)


@pytest.mark.parametrize(
    "words", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00", b"\xff\xff\xff\xff", b"x", b"WSPM"], ids=repr
)
def test_another_protocol_is_seen_at_its_first_bytes(words):
    """Four bytes are enough to know a stranger (R38)."""
    with pytest.raises(WireError, match="does not speak Workspan's protocol"):
        Login(SECRET, "run", DRIVER).take_hello(words)


def test_a_proof_cannot_be_turned_round():
    """A driver does not take its own words for a client's, nor a client for a driver's (R41)."""
    for side in (CLIENT, DRIVER):
        login = Login(SECRET, "run", side)
        login.take_hello(login.hello())
        with pytest.raises(WireError):
            login.check_proof(login.proof())
    client, driver = met()
    with pytest.raises(WireError):
        driver.check_proof(driver.proof())
    with pytest.raises(WireError):
        client.check_proof(client.proof())


def test_a_recorded_login_opens_nothing():
    """The same words from the same client are refused by another connection (R41)."""
    client, driver = met()
    recorded = client.hello(), client.proof()
    driver.check_proof(recorded[1])
    again = Login(SECRET, "run", DRIVER)
    again.take_hello(recorded[0])
    with pytest.raises(WireError):
        again.check_proof(recorded[1])


def test_every_bit_of_the_words_counts():
    """A flipped bit of the nonces or of the proof is refused (R41)."""
    client, driver = met()
    proof = client.proof()
    for bit in range(8 * len(proof)):
        wrong = bytearray(proof)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            driver.check_proof(bytes(wrong))
    for wrong in (b"", proof[:-1], proof + b"\0"):
        with pytest.raises(WireError):
            driver.check_proof(wrong)
    hello = client.hello()
    for bit in range(8 * (len(MAGIC) + 1), 8 * HELLO_BYTES):
        wrong = bytearray(hello)
        wrong[bit // 8] ^= 1 << bit % 8
        driver.take_hello(bytes(wrong))
        with pytest.raises(WireError):
            driver.check_proof(proof)


def test_the_first_words_tell_a_version_and_nothing_else():
    """What a stranger hears is magic, version and 32 random bytes (R40)."""
    first, second = (Login(SECRET, "the run", DRIVER).hello() for _ in range(2))
    assert first[: len(MAGIC) + 1] == MAGIC + bytes([VERSION])
    assert len(first) == HELLO_BYTES == len(MAGIC) + 1 + 32
    assert first != second
    assert b"run" not in first


def test_proofs_are_compared_in_constant_time(monkeypatch):
    """The comparison is hmac.compare_digest, and its answer counts (R40)."""
    assert login_module.compare_digest is hmac.compare_digest
    client, driver = met()
    compared = []

    def compare(a, b):
        compared.append((a, b))
        return answer

    monkeypatch.setattr(login_module, "compare_digest", compare)
    answer = True
    driver.check_proof(b"anything")
    answer = False
    with pytest.raises(WireError):
        driver.check_proof(client.proof())
    assert compared == [(b"anything", client.proof()), (client.proof(), client.proof())]
