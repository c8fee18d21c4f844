#!/usr/bin/env python3
"""Writes the seeds of tests/fuzz/corpus anew: the same bytes each time. It does not touch inputs
that a fuzzer found. Run it from anywhere, after an input format has changed."""
import pathlib
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"
CONFIG = CORPUS.parents[2] / "config" / "pboxd.conf.example"


def crc32c(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def write(target: str, name: str, data: bytes) -> None:
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed-{name}").write_bytes(data)


def packet(kind: int, payload: bytes, flags: int = 0, with_payload: bool = False,
           credit: int = 8, dtype_scale: int = 0) -> bytes:
    header = struct.pack("<BBHIQIIIHHIHH", 1 << 4 | kind, flags, len(payload), 0x5A006001, 7, 5, 3,
                         9, 2, credit, 4711, dtype_scale, 6)
    crc = crc32c(header + payload if with_payload else header)
    return header + payload + struct.pack("<I12x", crc)


def packets() -> None:
    for kind in range(10):
        write("fuzz_packet", f"type-{kind}", b"\0" + packet(kind, bytes(range(16))))
    write("fuzz_packet", "zeros", b"\0" + packet(10, struct.pack("<Q", 0x8000000000000014)))
    write("fuzz_packet", "payload-crc", b"\1" + packet(0, bytes(64), with_payload=True))
    write("fuzz_packet", "all-flags", b"\0" + packet(1, b"", flags=0x3F))
    write("fuzz_packet", "reserved-flag", b"\0" + packet(1, b"", flags=0x80))
    # A round of a slot: bf16, mean, 33 fragments, without data, for all ranks but 5.
    write("fuzz_packet", "shape", b"\0" + packet(0, b"", credit=2 << 14 | 5,
                                                dtype_scale=2 | 1 << 4 | 32 << 7 | 1 << 13))
    write("fuzz_packet", "layout", b"\2" + struct.pack("<HI", 896, 32255))
    write("fuzz_packet", "too-short", b"\0" + bytes(55))


# Frames of fuzz_ethernet: to the host 10.0.0.1, fd00::1 with MAC 02:00:00:00:00:01, from a peer
# whose addresses end with 2 instead. The target fills in the checksums.
OWN_MAC, PEER_MAC = (b"\2\0\0\0\0" + bytes([number]) for number in (1, 2))
OWN_IPV4, PEER_IPV4 = (b"\x0a\0\0" + bytes([number]) for number in (1, 2))
OWN_IPV6, PEER_IPV6 = (b"\xfd" + bytes(14) + bytes([number]) for number in (1, 2))


def ipv4(protocol: int, carried: bytes) -> bytes:
    return (struct.pack(">HHHHHBBH", 0x0800, 0x4500, 20 + len(carried), 0, 0x4000, 64, protocol, 0)
            + PEER_IPV4 + OWN_IPV4 + carried)


def ipv6(protocol: int, carried: bytes, destination: bytes = OWN_IPV6) -> bytes:
    return (struct.pack(">HIHBB", 0x86DD, 6 << 28, len(carried), protocol, 255)
            + PEER_IPV6 + destination + carried)


def ethernets() -> None:
    def arp(operation: int, sender: bytes, target: bytes) -> bytes:
        return (struct.pack(">HHHBBH", 0x0806, 1, 0x0800, 6, 4, operation) + PEER_MAC + sender
                + OWN_MAC + target)

    def frame(packet: bytes, options: int = 4, tag: bytes = b"",
              destination: bytes = OWN_MAC) -> bytes:
        data = destination + PEER_MAC + tag + packet
        return struct.pack("<BH", options, len(data)) + data

    udp = struct.pack(">HHHH", 4000, 9542, 17, 0) + bytes(9)
    solicitation = b"\x87" + bytes(7) + OWN_IPV6 + b"\1\1" + PEER_MAC
    advertisement = b"\x88\0\0\0\x60\0\0\0" + PEER_IPV6 + b"\2\1" + PEER_MAC
    group = b"\xff\2" + bytes(9) + b"\1\xff\0\0\1"
    own_ipv4 = ipv4(17, udp)[2:14] + OWN_IPV4 + PEER_IPV4 + b"\x25\x46\x0f\xa0" + bytes(4)
    own_ipv6 = ipv6(17, udp)[2:10] + OWN_IPV6 + PEER_IPV6 + b"\x25\x46\x0f\xa0" + bytes(4)
    frames = {
        "arp-request": frame(arp(1, PEER_IPV4, OWN_IPV4), destination=b"\xff" * 6),
        "arp-probe": frame(arp(1, bytes(4), OWN_IPV4), destination=b"\xff" * 6),
        "arp-reply": frame(arp(2, PEER_IPV4, OWN_IPV4)),
        "arp-announcement": frame(arp(1, PEER_IPV4, PEER_IPV4), destination=b"\xff" * 6),
        "solicitation": frame(ipv6(58, solicitation, group), destination=b"33\xff\0\0\1"),
        "advertisement": frame(ipv6(58, advertisement)),
        "echo": frame(ipv4(1, b"\x08" + bytes(40))),
        "echo-ipv6": frame(ipv6(58, b"\x80" + bytes(40))),
        "udp": frame(ipv4(17, udp)) + frame(ipv4(17, udp), options=1),
        "udp-ipv6": frame(ipv6(17, udp)) + frame(ipv6(17, udp), options=1),
        "fragmentation-needed": frame(ipv4(1, b"\3\4\0\0\0\0\x05\x78" + own_ipv4)),
        "packet-too-big": frame(ipv6(58, b"\2\0\0\0\0\0\x05\x78" + own_ipv6)),
    }
    for name, data in frames.items():
        write("fuzz_ethernet", name, b"\0" + data)
    write("fuzz_ethernet", "tagged", b"\1" + frame(ipv4(17, udp), tag=b"\x81\0\0\5")
          + frame(arp(1, PEER_IPV4, OWN_IPV4), tag=b"\x81\0\xe0\5"))
    write("fuzz_ethernet", "ageing", b"\0" + frame(arp(1, PEER_IPV4, OWN_IPV4))
          + frame(arp(2, PEER_IPV4, OWN_IPV4), options=0x18) * 3
          + frame(ipv6(58, solicitation), options=12) + frame(ipv6(58, advertisement), options=12))


# Operations of fuzz_control_frame: the low hexadecimal digit is the kind, the high one the
# connection.
def join(connection: int, rank: int, mode: int = 0, tensors: int = 1) -> bytes:
    optimizer = bytes([4, 16, 0, 200]) if mode else b""
    return (bytes([connection << 4 | 1, 0, 0, rank, mode, 0]) + optimizer + bytes([tensors])
            + bytes([0, 99, 0]) * tensors)


def control_frames() -> None:
    job = b"\1" + join(0, 0) + join(1, 1)
    barrier = b"\x02\x02\x05\x12\x02\x05"
    leave = b"\x02\x00\x12\x00"
    write("fuzz_control_frame", "job", job + barrier + leave)
    write("fuzz_control_frame", "optimize", b"\0" + join(0, 0, 1, 3) + join(1, 1, 1, 3)
          + b"\x02\x03\x00\x01" + leave)
    write("fuzz_control_frame", "left-and-back", job + b"\x02\x00" + join(2, 0))
    wide = [bytes([connection << 4 | 1, 48, 0, connection, 0, 0]) + struct.pack("<IH", 1 << 20, 700)
            + b"\1\0\x63\0" for connection in range(2)]
    write("fuzz_control_frame", "chunks-too-wide-for-the-path", b"\1" + wide[0] + wide[1])
    alive = b"\x02\x01\x05\x12\x01\x05\x04\x50"  # two heartbeats, then eight seconds pass
    write("fuzz_control_frame", "worker-lost", job + b"\x03" + alive * 3)
    write("fuzz_control_frame", "nobody-else-joins", b"\1" + join(0, 0) + alive * 9)
    write("fuzz_control_frame", "raw-join-and-nonsense",
          b"\3" + b"\x00\x0b" + struct.pack("<I", 7) + b"\x0a\x05\x08\x01\x12\x01\x61"
          + b"\x10\x08\xff\xff\xff\xff\0\0\0\0" + b"\x20\x02\x04\x00")
    write("fuzz_control_frame", "unframed-body", job + b"\x07\x02\x22\x00\x17\x03\xff\xff\xff")
    # A QueuePair: pipeline 1, number 300, first packet 77, an IPv4 GID, no LID, MTU 4096.
    pair = (b"\x08" + b"\x08\x01\x10\xac\x02\x18\x4d\x22\x10" + b"\0" * 10
            + b"\xff\xff\x0a\x09\x00\x01\x30\x80\x20")
    write("fuzz_control_frame", "queue-pair", pair)
    # A QueuePair that asks for 241 landing slots, and has a ring of 241 slots of 32832 bytes.
    write("fuzz_control_frame", "queue-pair-with-a-ring",
          pair + b"\x38\xf1\x01\x42\x15\x09" + struct.pack("<Q", 0x7f0012340000) + b"\x15"
          + struct.pack("<I", 0xfedcba98) + b"\x18\xf1\x01\x20\xc0\x80\x02")

    def returning(connection: int, rank: int, how: int) -> bytes:
        plain = join(connection, rank)
        return bytes([connection << 4 | 5]) + plain[1:] + bytes([how, 3, 1, 2])

    def rounds(connection: int, round_number: int) -> bytes:
        return bytes([connection << 4 | 6, 1 << 2 | 2, round_number])

    recovered = b"\1" + b"".join(returning(rank, rank, 0x21 + 0x20 * rank) + rounds(rank, 1 + rank)
                                 for rank in range(2))
    write("fuzz_control_frame", "recovered", recovered + barrier + leave)
    write("fuzz_control_frame", "copy-owed-by-a-lost-rank",
          recovered + b"\x13" + returning(2, 1, 2) + returning(0, 0, 0x21) + rounds(0, 1))
    write("fuzz_control_frame", "excluded", b"\1" + b"".join(
        returning(rank, rank, 4) for rank in range(2)) + b"\x13" + b"\x04\xc8" * 2
          + returning(2, 1, 6))

    def session(fragment_bytes: int, chunk_bytes: int, chunks: bytes) -> bytes:
        def field(number: int, value: int) -> bytes:
            data = bytes([number << 3])
            while value > 127:
                data += bytes([value & 127 | 128])
                value >>= 7
            return data + bytes([value])
        return (b"\4" + field(1, 1) + field(3, 5) + field(4, 6) + field(5, fragment_bytes)
                + field(6, chunk_bytes) + b"\x42\x04\x08\x01\x10\x08" + b"\x4a"
                + bytes([len(chunks)]) + chunks)

    write("fuzz_control_frame", "session", session(1408, 8192, bytes(4)))
    write("fuzz_control_frame", "session-too-wide", session(1408, 0xFFFFFFFF, bytes(2)))


def configurations() -> None:
    example = CONFIG.read_text()
    # In the example a key has no blank after its '#', but prose has one.
    keys = "\n".join(line.lstrip("#") for line in example.splitlines()
                     if line.startswith("[") or (line.startswith("#") and line[1:2].strip()))
    write("fuzz_config", "every-key", keys.encode() + b"\n")
    write("fuzz_config", "empty", b"")
    write("fuzz_config", "errors", b"[control]\nport = 70000\nprot = 1\nnonsense\n[data]\n"
          b"port_first = 65535\nmtu = 100\n[jobs]\nchunk_bytes = 1025\n[pipeline]\ncores = 4-2,\n")
    write("fuzz_config", "off-loopback", b"[box]\nlisten = ::\n[security]\ninsecure = true\n"
          b"insecure_off_loopback = true\n[log]\nlevel = debug\nformat = json\n")
    write("fuzz_config", "dpdk", b"[data]\nport = dpdk\n[security]\ninsecure = true\n"
          b"insecure_off_loopback = true\n[dpdk]\nno_huge = true\nmemory_mib = 64\ndevices = "
          b"3B:00.0 10.0.0.1/24 gateway=10.0.0.254; net_af_packet0,iface=a fd00::1/64 vlan=9\n")
    write("fuzz_config", "twice", b"[box]\nname = a # b\nname = c\n[memory]\njob_share = 1e-1\n")


def boxes() -> None:
    rounds = b"".join(bytes([operation, 0, 100 + value, 110, 120, 130])
                      for value, operation in enumerate([3, 10, 3, 10, 3]))
    shapes = {"f32-sum": 1, "f16-mean": 69, "bf16-four": 11, "one-worker": 0, "sgd": 128 + 15,
              "adam": 128 + 3, "adamw-f16": 128 + 4, "nesterov-mean": 192 + 2}
    for name, kind in shapes.items():
        data = bytes([kind, 60, 0, 5])
        for value in range(4):  # all ranks push, all is sent, some results are requested again
            data += bytes([3, 0]) + bytes([90 + value] * (1 + kind % 4)) + b"\x0a\x0a"
            data += b"\x05\x40\x01\x00\x40\x07\x0b\x03\x14\x0a"
        write("fuzz_box", name, data)
    syncs = {"asp": 0, "ssp": 0x11, "ssp-lazy": 0x91, "ssp-cached": 0x51, "essp": 0x12,
             "pssp": 3, "pssp-lazy": 0x83, "dpssp": 0x14, "drop": 5, "drop-two": 0x15,
             "ssp-answered": 0xd1, "essp-answered": 0x92}
    for index, (name, choice) in enumerate(syncs.items()):
        kind = 128 + 2 + 4 * (index % 6) if name != "drop-two" else 128 + 64 + 3
        kind |= 64 if index % 3 == 2 else 0
        data = bytes([kind, 255 if index % 2 else 248, choice, 0, 5, 3, 0])
        data += b"\x64" * (1 + kind % 4) + b"\x0a"
        for value in range(6):  # rank 0 is the fastest, the last rank is late
            data += b"".join(bytes([15, rank, 90 + value]) + (b"\x0a" if rank % 2 else b"\x08\1")
                             for rank in (0, 1, 0, 2, 1, 3, 0)[:5 + value % 3])
            data += b"\x05\x40\x00\x05\x41\x05\x0b\x03\x14\x05\x40\xff\x0a"
        # A part of a push has arrived when the others catch up, and no rank sends a PULL.
        others = b"".join(bytes([15, rank, 70 + rank]) for rank in (1, 2) * 9) + b"\x0a" * 9
        data += others + b"\x0f\0\x51" * 16 + b"\x0a" * 9 + b"\0\x10\x54" + others * 2
        write("fuzz_box", f"sync-{name}", data)
    for name, choice in {"drop-late": 0x45, "drop-grace": 0x85, "drop-grace-late": 0xd5}.items():
        data = bytes([130, 240, choice, 0, 5, 3, 0]) + b"\x64" * 3 + b"\x0a"
        for value in range(6):  # ranks 0 and 1 push, time passes, ranks 2 and 1 push that round
            data += bytes([15, 0, 90 + value, 15, 1, 80 + value, 11, 3 * value, 23])
            data += bytes([15, 0x42, 70 + value, 15, 0x41, 60 + value, 10])
        write("fuzz_box", f"sync-{name}", data)
    write("fuzz_box", "two-jobs", b"\1\x3c\2\x21" + rounds + rounds.replace(b"\3", b"\x83"))
    write("fuzz_box", "commands", b"\1\x3c\0\5\x0c\x08\x0c\x07\x03\0\x64\x65\x0a\x8e\x0e\x0a")
    write("fuzz_box", "removed-with-replies", b"\1\x3c\0\5" + b"\x05\x00\x00" * 3 + b"\x0e\x0a")
    write("fuzz_box", "flood", b"\1\x3c\0\5\x03\0\x64\x65\x0a\x0d\x40\x00\xff\x0d\x41\x00\xff\x0a")
    write("fuzz_box", "pull-of-any-length", b"\0\x10\0\5" + b"".join(
        bytes([6, 64, 0, 0, length, 8, 9]) for length in range(17)))
    write("fuzz_box", "damage", b"\0\x10\0\5" + b"".join(
        bytes([6, 1, 0, 100, at, 255]) for at in range(40)))


# Jobs of collectives: a size of 3 selects them, then follow the seed of their rounds and the slots'
# size.
def collectives() -> None:
    def round_of(chunk: int, values: bytes) -> bytes:
        return bytes([3, chunk << 2]) + values

    for seed in range(6):
        data = bytes([1 + seed % 3, 3, seed * 37, 24 + seed + 32 * (seed % 3), 0, 5])
        for value in range(24):
            values = bytes(90 + value * 7 % 90 + rank for rank in range(2 + seed % 3))
            data += round_of(value % 3, values) + (b"\x0a" if value % 2 else b"\x08\2\x0a")
            data += b"\x05\x40\x00\x05\x45\x01"
        write("fuzz_box", f"collective-{seed}", data)
    job = b"\1\3\7\x1f\0\5"
    # Rank 1 states a different digest, owner or type. Nothing counts from then on.
    for name, at in {"digest": 32, "owner": 30, "type": 36}.items():
        write("fuzz_box", f"collective-mismatch-{name}", job + b"\x0f\0\x64\x06\1\1\x65"
              + bytes([at, 0x15]) + b"\x0f\1\x65\x0a\x05\0\0\x0a")
    # Rank 1 gives back the result of slot 0, and is then admitted again with a new session.
    given = b"\1\3\x2a\x9f\0\5" + b"".join(bytes([0x20, 1 | fragment << 4, 0x64])
                                        for fragment in range(4))
    write("fuzz_box", "collective-copy", given + b"\x0a\x1c\5" + round_of(0, b"\x64\x65")
          + b"\x0a" + round_of(1, b"\x64\x65") + b"\x0a")


def workers() -> None:
    begin = b"\0\x00\x07\x00"
    answer = b"\x07\x00\x07\x01\x07\x02\x07\x03"
    write("fuzz_worker", "rounds", b"\0\0\xff\x10" + (begin + b"\x03\x83\x03\x83" + answer) * 3)
    write("fuzz_worker", "three-tensors", b"\0\2\x05\x90\xfe\x04" + begin
          + b"\0\1\x08\x01\0\2\x09\x00\x0e\x0e" + answer)
    write("fuzz_worker", "loss", b"\0\0\x30\x10" + begin + b"\x0e\x0c\x0c\x0e\x08\x00\x05\x00\x0e"
          + b"\x08\x00\xff\x02\x0c\x0e" + answer)
    write("fuzz_worker", "partial-sends", b"\0\1\x30\x31\x01" + begin + b"\x01\x01\x81\x01\x05\x00"
          + b"\x01\x01\x0d\xff\x14" + answer)
    write("fuzz_worker", "damage", b"\0\0\x30\x10" + begin + b"\x0e" + b"".join(
        bytes([10, 0x11, 0, at, 255]) for at in range(40)))
    for kinds in (1, 7):  # with a shadow; in place or not
        write("fuzz_worker", f"recovery-{kinds}", bytes([kinds]) + b"\0\xff\x10"
              + (begin + b"\x03\x83" + answer + b"\x1f\1\3\3\3\0\3\x83" + answer) * 2
              + begin + b"\x03\x05\x00\x1f\1\0\2\1\3\x83" + b"\x0f" + answer)
    # Slots: an operation reads a value, the kind of its round, its size, and a priority.
    for kinds in (0, 1, 2, 7):
        data = bytes([kinds, 0x42, 0, 0, 0, 0x10])
        for choice in (0, 1, 2, 3, 4, 5, 6, 7, 0x45, 0x46, 0x40, 0x18, 0x3c):
            calls = b"".join(bytes([0, slot, 7 + slot, choice, 31 + slot * 99, 0])
                             for slot in range(3))
            told = b"".join(bytes([8, slot, 15, 4]) for slot in range(3))
            answers = b"".join(bytes([7, slot]) for slot in range(3))
            data += calls + b"\x03\x83\x03\x83" + answers + told
            data += b"\x1f\3\3\3\3\0\3\x83" + answers + told if choice % 3 == 0 else b""
        write("fuzz_worker", f"collective-{kinds}", data)
    for model in range(1, 8):  # consistency models: results of any age, in place, acknowledgements
        aged = b"\x07\x00\0\x05\x01\x07\x00\x05\0\0\0"
        acknowledged = b"".join(bytes([8, place, 15, 0]) for place in range(4))
        write("fuzz_worker", f"model-{model}", bytes([model << 4 | 2]) + b"\0\xff\x10"
              + begin + b"\x03\x83" + answer
              + (begin + b"\x03\x83" + aged + acknowledged + b"\x0c\x0e" + answer) * 4)


for make in (packets, ethernets, control_frames, configurations, boxes, collectives, workers):
    make()
