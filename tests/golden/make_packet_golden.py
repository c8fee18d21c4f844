#!/usr/bin/env python3
"""Writes packets.h: packets as they are on the wire, made without the product's code.

  tests/golden/make_packet_golden.py > tests/golden/packets.h
"""
import struct

HEADER = "<BBHIQIIIHHIHH"
FIELDS = ("version_type", "flags", "payload_bytes", "spi", "packet_number", "epoch", "chunk",
          "round", "fragment", "credit", "timestamp_us", "dtype_scale", "generation")
TYPES = ("PUSH", "RESULT", "STATUS", "PULL", "GRANT", "MOVED", "RECOVER", "STATE", "BARRIER",
         "CLOSE", "ZEROS")
PLAIN = {"version_type": 0x10, "flags": 0, "payload_bytes": 0, "spi": 0x5a000001,
         "packet_number": 1, "epoch": 1, "chunk": 0, "round": 0, "fragment": 0, "credit": 0,
         "timestamp_us": 0, "dtype_scale": 0, "generation": 1}
# Every byte of the header differs from every other: a field at a wrong place shows.
DISTINCT = {"version_type": 0x12, "flags": 0x3f, "payload_bytes": 8, "spi": 0x07060504,
            "packet_number": 0x0f0e0d0c0b0a0908, "epoch": 0x83828180, "chunk": 0x87868584,
            "round": 0x8b8a8988, "fragment": 0x8d8c, "credit": 0x8f8e,
            "timestamp_us": 0x93929190, "dtype_scale": 0x9594, "generation": 0x9796}


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def packet(fields, payload, payload_crc, tag_xor=0):
    header = struct.pack(HEADER, *(fields[name] for name in FIELDS))
    crc = crc32c(header + payload if payload_crc else header) ^ tag_xor
    return header + payload + struct.pack("<I12x", crc)


def rows():
    payload = bytes(range(0xf0, 0xf8))
    for value, name in enumerate(TYPES):
        fields = dict(PLAIN, version_type=0x10 | value, payload_bytes=8)
        yield name, "kNone", True, fields, packet(fields, payload, True)
    plain = dict(PLAIN, payload_bytes=8)
    empty = dict(PLAIN)
    yield "every byte of the header distinct", "kNone", True, DISTINCT, \
        packet(DISTINCT, payload, True)
    yield "zero payload", "kNone", True, empty, packet(empty, b"", True)
    yield "zero payload, payload_crc off", "kNone", False, empty, packet(empty, b"", False)
    yield "payload_crc off", "kNone", False, plain, packet(plain, payload, False)
    damaged = bytearray(packet(plain, payload, False))
    damaged[40] ^= 0x80
    yield "payload_crc off lets a flipped payload bit pass", "kNone", False, plain, bytes(damaged)
    damaged = bytearray(packet(plain, payload, True))
    damaged[40] ^= 0x80
    yield "payload_crc on sees a flipped payload bit", "kTag", True, plain, bytes(damaged)
    yield "tag without the payload where payload_crc is on", "kTag", True, plain, \
        packet(plain, payload, False)
    yield "tag with the payload where payload_crc is off", "kTag", False, plain, \
        packet(plain, payload, True)
    yield "one bit of the tag wrong", "kTag", True, plain, packet(plain, payload, True, 1)
    damaged = bytearray(packet(plain, payload, True))
    damaged[-1] = 1
    yield "padding of the tag not zero", "kTag", True, plain, bytes(damaged)
    damaged = bytearray(packet(plain, payload, False))
    damaged[8] ^= 1
    yield "one bit of the packet number flipped", "kTag", False, dict(plain, packet_number=0), \
        bytes(damaged)
    for version in (0, 2, 15):
        fields = dict(PLAIN, version_type=version << 4)
        yield f"version {version}", "kVersion", True, fields, packet(fields, b"", True)
    for value in (11, 15):
        fields = dict(PLAIN, version_type=0x10 | value)
        yield f"type {value}", "kType", True, fields, packet(fields, b"", True)
    for bit in (0x80,):
        fields = dict(PLAIN, flags=bit)
        yield f"reserved flag {bit:#x}", "kReserved", True, fields, packet(fields, b"", True)
    for length in (7, 9, 0, 0xffff):
        fields = dict(PLAIN, payload_bytes=length)
        yield f"length field {length} of 8", "kLength", True, fields, \
            packet(fields, payload, True)
    whole = packet(empty, b"", True)
    for length in (0, 1, 39, 40, 55):
        yield f"{length} bytes in all", "kTooShort", True, empty, whole[:length]


def main():
    print("// Packets as they are on the wire. Written by make_packet_golden.py; do not edit.\n"
          "#pragma once\n\n#include \"nic/wire/header.h\"\n\nnamespace pbox::golden {\n\n"
          "struct GoldenPacket {\n  const char* description;\n  const char* hex;\n"
          "  bool payload_crc;     // the policy it is checked under\n"
          "  wire::Reject reject;  // result of parse, or kTag of verify_tag\n"
          "  wire::Header header;  // meaningless if reject is kTooShort\n};\n\n"
          "// clang-format off\ninline constexpr GoldenPacket kPackets[] = {")
    for description, reject, payload_crc, fields, data in rows():
        print(f"    {{\"{description}\",")
        text = data.hex()
        lines = [text[at:at + 80] for at in range(0, len(text), 80)] or [""]
        print("\n".join(f"     \"{line}\"" for line in lines) + ",")
        print(f"     {'true' if payload_crc else 'false'}, wire::Reject::{reject},")
        values = [f".{name} = {fields[name]:#x}" for name in FIELDS]
        print("     {" + ",\n      ".join(", ".join(values[at:at + 3])
                                          for at in range(0, len(values), 3)) + "}},")
    print("};\n// clang-format on\n\n}  // namespace pbox::golden")


if __name__ == "__main__":
    main()
