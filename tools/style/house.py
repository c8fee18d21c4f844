"""The bounds and names that the rules use."""
import re

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
LINE_COLUMNS_MAX = 100
ROOT_README_LINES_MAX = 120
FOLDER_README_WORDS_MAX = 450
MARKDOWN_COLUMNS_MAX = 100
CLASS_METHODS_MAX = 60
# Largest number of files directly in a folder, README and CMakeLists included.
LOOSE_FILES_MAX = {"appliance": 12, "worker": 14}
# Largest number of lines of all files of a class together, by the pattern of their names.
CLASS_LINES_MAX = {"appliance/control/job_registry*": 1300}
# At least one PBOX_CHECK or PBOX_DCHECK per this many lines of C++.
ASSERTED_FOLDERS = ("base", "nic", "pipeline", "appliance", "worker", "config")
LINES_PER_ASSERTION = 60
LINES_PER_ASSERTION_DATA_PATH = 25

TOP_FOLDERS = {"appliance", "nic", "pipeline", "config", "systemd", "tools", "tests", "perf",
               "base", "worker", "docs", ".ci", ".github"}

# The folders that each folder may include. A folder that is absent here (tests, perf, tools) may
# include anything, and no other folder includes it.
ARROWS = {
    "base": {"base"},
    "nic": {"base", "nic"},
    "pipeline": {"base", "nic", "pipeline"},
    "config": {"base", "config"},
    "appliance": {"base", "nic", "pipeline", "config", "appliance"},
    "worker": {"base", "nic", "worker"},
}
PUBLIC_INCLUDE = "worker/include/"  # the C ABI: included as "pbox/pbox.h", with a C include guard
# A box may be another box's worker, so it uses that ABI as any program does.
MAY_USE_ABI = ("appliance/relay/",)

CODE = (".h", ".cc")
TEXT = CODE + (".c", ".py", ".sh", ".cmake", ".txt", ".md", ".proto", ".json", ".yaml", ".yml",
               ".conf", ".service", ".html", ".js", ".css", ".toml", ".cfg", ".in",
               ".rules", ".sysctl", ".sysusers", ".tmpfiles", ".default", "/changelog")
LINE_LENGTH_FREE = (".conf", ".md", ".json", ".yaml", ".yml", ".html", ".txt", ".css", ".svg")
SKIPPED = re.compile(r"^(build|\.git|\.cache)(/|$)|__pycache__|^tests/fuzz/corpus/|\.egg-info/")

# Pairs (pattern, remedy). No C++ code may match a pattern.
BANNED = [
    (r"\bs?rand\s*\(", "use base/rng.h: seeded, the same on every machine"),
    (r"\bv?sprintf\s*\(", "use snprintf or fmt::format: it knows the size"),
    (r"\bstr(cpy|cat)\s*\(", "use std::string or memcpy with a checked size"),
    (r"\bgets\s*\(", "use std::getline"),
    (r"(?<!\.)\bsystem\s*\(", "use posix_spawn with an argument list"),
    (r"\bstd::regex\b", "parse by hand: std::regex is slow and recurses on input"),
    (r"#\s*define\s+(private|protected)\b", "test through the public contract"),
    (r"\busing Catch::Matchers::", "write Catch::Contains: Catch2 3 has another one in Matchers"),
]
# Only the folders of GETENV_FOLDERS may read the environment.
GETENV = (r"\bgetenv\s*\(", "pass it in as an option: only worker/, config/ and tools read it")
GETENV_FOLDERS = {"worker", "config", "tools", "tests", "perf"}
# Files that run per packet: no allocation, no exception, no formatting. Patterns of fnmatch.
DATA_PATH = (
    "pipeline/*",
    "nic/*_datapath.*", "nic/shm/ring.h", "nic/shm/lane.*", "nic/wire/*", "nic/loopback/port.*",
    "nic/ethernet/checksum.*", "nic/ethernet/receive.*", "nic/ethernet/transmit.*",
    "nic/ethernet/neighbours.*",
    "nic/port.h", "nic/coalescing.h", "nic/payload_memory.h", "nic/socket/send_bound.h",
    "nic/rdma/held_packets.h", "nic/rdma/queue_pair_table.h", "nic/rdma/queue_state.h",
    "nic/seal/*", "nic/crypto/cipher.h", "nic/crypto/*_cipher.cc", "nic/quantize/quantize.*",
    "nic/quantize/rounding.h",
    "base/spsc_ring.h", "base/counter.h",
    "worker/protocol/*", "worker/*_datapath.*",
    "worker/transport/transport.h", "worker/transport/socket_transport.*",
)
# Files among them that run at set-up or for control messages only, and why.
DATA_PATH_SET_UP = {
    "nic/seal/session_keys.h": "derives keys when a session begins",
    "nic/seal/session_keys.cc": "derives keys when a session begins",
    "nic/wire/control_frame.h": "frames messages of the control connection",
    "nic/wire/control_frame.cc": "frames messages of the control connection",
    "nic/wire/control_versions.h": "compares versions of the control protocol",
    "nic/wire/control_versions.cc": "compares versions of the control protocol",
    "nic/wire/queue_pair.h": "describes queue pairs to the other side of a control connection",
    "nic/wire/sync.cc": "reads and writes the text of consistency models",
    "nic/wire/sync_message.h": "describes consistency models on a control connection",
    "nic/wire/queue_pair.cc": "describes queue pairs to the other side of a control connection",
    "pipeline/observe/flight_image.h": "copies the recorder's ring for a control thread",
    "pipeline/observe/flight_image.cc": "copies the recorder's ring for a control thread",
}
# Single uses in files that otherwise run per packet: path -> {use: why}.
DATA_PATH_EXCEPTIONS = {
    "nic/crypto/ipsec_mb_cipher.cc": {"std::make_unique": "a cipher is made with its keys"},
    "nic/crypto/openssl_cipher.cc": {"std::make_unique": "a cipher is made with its keys"},
    "nic/ethernet/neighbours.cc": {"std::make_unique": "the table takes its memory at start"},
    "nic/rdma/queue_pair_table.h": {"std::make_unique": "the table takes its memory at start"},
    "nic/seal/session_seal.cc": {"std::make_unique": "a seal is made with its session"},
    "nic/seal/session_seal.h": {"std::make_shared": "a seal is made with its session"},
    "nic/wire/sync.h": {"std::string": "the text of a consistency model is for people"},
    "pipeline/job_shard.cc": {"std::make_unique": "JobShard::create runs at admission"},
    "pipeline/job_shard.h": {"std::string": "the job's name is set at admission, for people"},
    "pipeline/state/state_cut.cc": {"std::make_unique": "a cut begins with one allocation"},
    "worker/protocol/lane.cc": {"std::make_shared": "a lane takes its path when it opens"},
    "worker/protocol/send_path.cc": {"std::make_shared": "a lane takes its path when it opens"},
    "worker/protocol/session_spec.h": {"std::string": "a tensor's name is set at registration"},
    "worker/transport/socket_transport.cc": {"std::string": "errors of set-up have a text"},
}
DATA_PATH_BANNED = [
    (r"\bthrow\b", "count and drop"),
    (r"(?<!<)\bnew\b(?!\s*\()", "take memory at admission"),
    (r"\b(malloc|calloc|realloc)\s*\(", "take memory at admission"),
    (r"\bstd::(make_unique|make_shared)\b", "take memory at admission"),
    (r"\bstd::string\b", "format in the control thread"),
    (r"\bspdlog\b", "count; the control thread logs"),
    (r"\bf?printf\s*\(", "count; the control thread logs"),
]
CLANG_FORMAT_VERSION = 14  # the version of Debian 12
LEFT_OPEN = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(home|Users|root|work)/\w")
