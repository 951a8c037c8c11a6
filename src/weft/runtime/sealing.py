"""The bytes of cached files: content with its keys and a checksum, and signed when it travels.

Place in the pipeline: below `disk_cache.py`, `remote_cache.py` and `cache_archive.py`::

    data = sealed(content, [key])                 # a file of the cache
    unsealed(data, key)                           # the content, or None
    signed("cpp", key, data)                      # what is sent elsewhere
    received("cpp", key, frame)                   # the data, or raises NotReceived

Who knows the secret in WEFT_CACHE_KEY signs what it sends (HMAC-SHA256 over kind, key and data),
and uses nothing else. Without a secret signatures are not looked at.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

SECRET: Final = "WEFT_CACHE_KEY"
"""The environment variable of the secret. It is no setting: settings are printed."""

_KEY_SIZE: Final = 32
_COUNT_SIZE: Final = 4
_DIGEST_SIZE: Final = 32

_MAGIC: Final = b"weft\0\0\0\1"
_UNSIGNED: Final = bytes(_DIGEST_SIZE)
_HEAD: Final = len(_MAGIC) + _DIGEST_SIZE + 1
_DATA: Final = b"d"
_REFERENCE: Final = b"r"


# -- files -----------------------------------------------------------------------------------------


def sealed(content: bytes, keys: Iterable[str]) -> bytes:
    """The bytes of a file: the content, the keys, their number, and a checksum of all of it."""
    raw = [bytes.fromhex(key) for key in keys]
    named = b"".join(raw) + len(raw).to_bytes(_COUNT_SIZE, "little")
    digest = hashlib.sha256(content)
    digest.update(named)
    return b"".join((content, named, digest.digest()))


def parts(data: bytes) -> tuple[bytes, list[str]] | None:
    """Content and keys, or None if the bytes are not those that were written."""
    body, digest = memoryview(data)[:-_DIGEST_SIZE], data[-_DIGEST_SIZE:]
    if hashlib.sha256(body).digest() != digest:
        return None
    count = int.from_bytes(body[-_COUNT_SIZE:], "little")
    start = len(body) - _COUNT_SIZE - count * _KEY_SIZE
    if count == 0 or start < 0:
        return None
    named = bytes(body[start:len(body) - _COUNT_SIZE])
    keys = [named[at:at + _KEY_SIZE].hex() for at in range(0, len(named), _KEY_SIZE)]
    return bytes(body[:start]), keys


def unsealed(data: bytes, key: str) -> bytes | None:
    """The content, or None if the bytes are not those that were written under `key`."""
    both = parts(data)
    return both[0] if both is not None and key in both[1] else None


# -- what travels ----------------------------------------------------------------------------------


@final
class NotReceived(Exception):
    """What arrived is not what was sent."""


@final
class BadSignature(Exception):
    """What arrived was not signed with the secret of this process."""


@final
@dataclass(frozen=True, slots=True)
class Received:
    """A file's bytes, or the key under which they are."""

    data: bytes = b""
    refers_to: str = ""


def signs() -> bool:
    """Whether this process has a secret."""
    return bool(_secret())


def _secret() -> bytes:
    return os.environb.get(SECRET.encode(), b"")


def _signature(kind: str, key: str, body: bytes) -> bytes:
    secret = _secret()
    if not secret:
        return _UNSIGNED
    message = b"\0".join((_MAGIC, kind.encode(), key.encode(), body))
    return hmac.new(secret, message, hashlib.sha256).digest()


def signed(kind: str, key: str, data: bytes) -> bytes:
    """What is sent under that key for the bytes of a file."""
    return _framed(kind, key, _DATA + data)


def reference(kind: str, key: str, target: str) -> bytes:
    """What is sent under a key if the file was sent under another one."""
    return _framed(kind, key, _REFERENCE + bytes.fromhex(target))


def _framed(kind: str, key: str, body: bytes) -> bytes:
    return b"".join((_MAGIC, _signature(kind, key, body), body))


def received(kind: str, key: str, frame: bytes) -> Received:
    """What was sent under that key; raises NotReceived and BadSignature."""
    if not frame.startswith(_MAGIC) or len(frame) < _HEAD:
        raise NotReceived("it is of another version, or no file of a cache")
    body = frame[_HEAD - 1:]
    signature = frame[len(_MAGIC):_HEAD - 1]
    if signs() and not hmac.compare_digest(signature, _signature(kind, key, body)):
        raise BadSignature("it is not signed" if signature == _UNSIGNED else
                           "it is signed with another secret, or was changed")
    if body.startswith(_REFERENCE) and len(body) == 1 + _KEY_SIZE:
        return Received(refers_to=body[1:].hex())
    if not body.startswith(_DATA) or unsealed(body[1:], key) is None:
        raise NotReceived("it is damaged")
    return Received(data=body[1:])
