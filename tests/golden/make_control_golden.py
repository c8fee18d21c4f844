#!/usr/bin/env python3
"""Writes control_frames_v2.h: messages as peers of control protocol 2 send them.

They are encoded with the kept definitions, control/v2/control.proto, never with those of the tree.

  tests/golden/make_control_golden.py > tests/golden/control_frames_v2.h
"""

import pathlib
import subprocess

FOLDER = pathlib.Path(__file__).parent / "control" / "v2"

JOIN = """join { protocol_version: 2 job: "train" rank: %d world_size: 2 path_mtu: 1500
  chunk_bytes: 32768 software: "libpbox 0.1.0" incarnation: %d %s
  tensors { name: "weight" elements: 20000 lr_scale: 1 }
  tensors { name: "bias" elements: 7 lr_scale: 1 } }"""
ADAM = """mode: 1 optimizer { kind: 4 learning_rate: 0.5 beta1: 0.9 beta2: 0.99 epsilon: 1e-8 }"""
RESUMES = 'resumes: true epoch: 1 generation: 0 box: ""'

WORKER = {
    "ask_data_addresses": "ask_data_addresses {}",
    "ask_part_map": """ask_part_map { protocol_version: 2 software: "libpbox 0.1.0" job: "train"
        bytes: 80028 may_move: true }""",
    "ask_part_map_of_lost_box": """ask_part_map { protocol_version: 2 software: "libpbox 0.1.0"
        job: "train" lost_box: "b" lost_for_ms: 1700 }""",
    "join_rank_0": JOIN % (0, 1000, ""),
    "join_rank_1": JOIN % (1, 1001, ""),
    "join_adam_rank_0": JOIN % (0, 1000, ADAM),
    "join_adam_rank_1": JOIN % (1, 1001, ADAM),
    "join_resumes_rank_0": JOIN % (0, 1000, RESUMES),
    "join_resumes_rank_1": JOIN % (1, 1001, RESUMES),
    "rounds": "rounds { rounds: [3, 3, 3, 3] last: true }",
    "heartbeat": """heartbeat { sequence: 7 reads_by_staleness: 3
        finished { rounds: 2 at_ns: 5000000 busy_ns: 1000000 } }""",
    "barrier": "barrier { sequence: 1 }",
    "set_learning_rate": "set_learning_rate { learning_rate: 0.25 sequence: 1 }",
    "set_priorities": "set_priorities { policy: 0 by_tensor: [1, 2] }",
    "leave": "leave {}",
    "ask_state": "ask_state { protocol_version: 2 job: \"train\" part: 0 epoch: 1 }",
    "ask_cut": "ask_cut { protocol_version: 2 job: \"train\" part: 0 }",
}

BOX = {
    "data_addresses": 'data_addresses { addresses: "" addresses: "10.0.1.1" up_for_ms: 90000 }',
    "part_map": """part_map { chunk_bytes: 32768
        parts { box: "a" } parts { box: "b" address: "10.0.0.2:9541" }
        boxes: "10.0.0.1:9541" boxes: "10.0.0.2:9541" }""",
    "session": r"""session { protocol_version: 2 box: "a" epoch: 3 generation: 4
        fragment_bytes: 1024 chunk_bytes: 4096 payload_crc: true
        pipelines { spi: 4097 credit_bytes: 65536 udp_port: 9542 }
        pipelines { spi: 8194 credit_bytes: 65536 udp_port: 9543 }
        chunk_pipeline: "\000\001\000" heartbeat_interval_ms: 200 dead_after_ms: 5000 }""",
    "rounds": "rounds { rounds: [3, 3, 3] last: true }",
    "membership": "membership { generation: 5 absent_ranks: 1 }",
    "barrier_released": "barrier_released { sequence: 1 }",
    "learning_rate_set": "learning_rate_set { learning_rate: 0.25 sequence: 1 }",
    "set_priorities": "set_priorities { policy: 0 by_tensor: [1, 2] }",
    "peer_left": "peer_left { rank: 1 }",
    "heartbeat": "heartbeat { sequence: 7 }",
    "moved": 'moved { box: "b" address: "10.0.0.2:9541" }',
    "version_refused": """failure { code: 10 message: "this worker (libpbox) speaks control \
protocol 3, the box speaks 2; use the libpbox of the box's release" }""",
    "join_first": 'failure { code: 1 message: "the first message must be JOIN" }',
    "part_state": r"""part_state { epoch: 1 learning_rate: 0.5 last: true
        pieces { chunk: 0 rounds: 1 steps: 1 fragment_bytes: 1024 values: "\000\000\200\077" } }""",
    "cut_progress": "cut_progress { state: CUTTING newest_round: 5 chunks: 4 chunks_copied: 2 }",
}


def encode(message, text):
    done = subprocess.run(
        ["protoc", f"--encode=pbox.proto.{message}", "-I", str(FOLDER), "control.proto"],
        input=text.encode(), stdout=subprocess.PIPE, check=True)
    return done.stdout.hex()


def table(name, message, frames):
    print(f"inline constexpr ControlFrame {name}[] = {{")
    for frame, text in frames.items():
        hexadecimal = encode(message, text)
        lines = [hexadecimal[at:at + 80] for at in range(0, len(hexadecimal), 80)]
        print(f'    {{"{frame}",\n     ' + "\n     ".join(f'"{line}"' for line in lines) + "},")
    print("};\n")


print("// Messages of control protocol 2. Written by make_control_golden.py; do not edit.")
print("#pragma once\n\nnamespace pbox::golden {\n")
print("// A message without its length, in hexadecimal.")
print("struct ControlFrame {\n  const char* name;\n  const char* bytes;\n};\n")
print("// clang-format off")
table("kWorkerFramesV2", "WorkerMessage", WORKER)
table("kBoxFramesV2", "BoxMessage", BOX)
print("// clang-format on\n\n}  // namespace pbox::golden")
