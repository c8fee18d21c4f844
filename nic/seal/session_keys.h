// The keys of sessions, which the two ends of a control connection derive. The code that derives
// them is behind an interface (nic/crypto implements it), because libpbox loads it only if it is
// needed.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "nic/seal/session_seal.h"

namespace pbox::seal {

// How packets are protected. The values are those of Session.suite in control.proto.
enum class Suite : uint8_t {
  kNone = 0,     // without keys: a checksum
  kGmac256 = 1,  // authenticates packets: GMAC with AES-256 (NIST SP 800-38D)
  kGcm256 = 2,   // also encrypts payloads: GCM with AES-256
};

// The name of a session. Both ends know it, and no other session of any box has the same name.
struct SessionName {
  std::string box = {};
  std::string job = {};
  uint32_t part = 0;
  uint32_t rank = 0;
  uint32_t epoch = 0;
  uint64_t incarnation = 0;  // the worker process's
  Suite suite = Suite::kNone;
};

// Returns the context for the exporter of the control connection (RFC 8446, section 7.5). No two
// names have the same context.
std::string exporter_context(const SessionName& name);

// A session on one pipeline.
struct SealSpec {
  uint32_t pipeline = 0;    // index of the pipeline in the Session message
  uint32_t spi = 0;         // for packets to the box
  KeyUpdates updates = {};  // used only by the box, which begins updates
};

// Makes the seals of the session that one control connection carries. Called by the control thread
// of a box, and by the thread that drives a worker's membership.
class SessionKeys {
 public:
  virtual ~SessionKeys() = default;
  // kResourceExhausted: no memory for the keys.
  // kUnavailable: the connection has ended.
  virtual Result<SessionSeal> make(const SessionName& name, const SealSpec& spec) = 0;
};

}  // namespace pbox::seal
