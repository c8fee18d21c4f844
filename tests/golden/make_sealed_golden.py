#!/usr/bin/env python3
"""Prints packets that sessions with keys send, for sealed_packets.h. Needs python3-cryptography.
The format is written here from its description in docs/protocol.md and nic/crypto/README.md."""

import hashlib
import hmac
import struct

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

EXPORTED = bytes(range(48))
SPI = 0x81020304
PIPELINE = 3
TO_BOX, TO_WORKER = 0, 1
ENCRYPTED, KEY_PHASE = 1 << 2, 1 << 6
PAYLOADS = (0, 8, 24, 100)


def expand(secret, info, length):
    """HKDF-Expand (RFC 5869, section 2.3) with SHA-384."""
    block, output = b"", b""
    for number in range(1, 256):
        if len(output) >= length:
            return output[:length]
        block = hmac.new(secret, block + info + bytes([number]), hashlib.sha384).digest()
        output += block
    raise ValueError(length)


def keys(suite, direction, updates):
    secret = expand(EXPORTED, b"pbox v2" + struct.pack("<IBI", PIPELINE, direction, SPI), 48)
    for _ in range(updates):
        secret = expand(secret, b"ku", 48)
    both = expand(secret, suite, 44)
    return both[:32], both[32:]


def sealed(suite, direction, updates, number, length):
    key, initial = keys(suite, direction, updates)
    nonce = initial[:4] + bytes(a ^ b for a, b in zip(initial[4:], struct.pack(">Q", number)))
    payload = bytes(index & 0xff for index in range(length))
    spi = SPI | (0x1000 if direction == TO_WORKER else 0)
    flags = (KEY_PHASE if updates & 1 else 0) | (ENCRYPTED if suite == b"gcm256" else 0)
    header = struct.pack("<BBHIQIIIHHIHH", 0x10 | direction, flags, length, spi, number, 7, 2, 9, 1,
                         64, 1234, 0, 5)
    if suite == b"gcm256":
        text = AESGCM(key).encrypt(nonce, payload, header)
        return header + text
    return header + payload + AESGCM(key).encrypt(nonce, b"", payload + header)


def main():
    print("// Packets of sessions with keys. Written by make_sealed_golden.py; do not edit.\n"
          "#pragma once\n\n#include <cstdint>\n\nnamespace pbox::golden {\n\n"
          "struct SealedPacket {\n  bool encrypts;\n  bool to_worker;\n"
          "  uint64_t updates;  // how often keys were updated before\n  const char* hex;\n};\n\n"
          "// The exported secret is the bytes 0 to 47.\n"
          f"inline constexpr uint32_t kSealedSpi = {SPI:#x};\n"
          f"inline constexpr uint32_t kSealedPipeline = {PIPELINE};\n"
          "// Numbers ascend from 1 for each suite and direction; each key seals four packets.\n\n"
          "// clang-format off\ninline constexpr SealedPacket kSealedPackets[] = {")
    for suite in (b"gmac256", b"gcm256"):
        for direction in (TO_BOX, TO_WORKER):
            for index in range(3 * len(PAYLOADS)):
                updates = index // len(PAYLOADS)
                length = PAYLOADS[index % len(PAYLOADS)]
                text = sealed(suite, direction, updates, index + 1, length).hex()
                lines = [text[at:at + 80] for at in range(0, len(text), 80)]
                body = "\n".join(f'     "{line}"' for line in lines)
                flag = {True: "true", False: "false"}
                kind = f"{flag[suite == b'gcm256']}, {flag[direction == TO_WORKER]}, {updates}"
                print(f"    {{{kind},\n{body}}},")
    print("};\n// clang-format on\n\n}  // namespace pbox::golden")


if __name__ == "__main__":
    main()
