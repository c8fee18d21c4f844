// The keys of sessions, as the two ends of a control connection make them. The library that knows
// how is behind an interface (nic/crypto), because libpbox loads it only if it is needed.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "nic/seal/session_seal.h"

namespace pbox::seal {

// How packets are protected. Values are those of SESSION.
enum class Suite : uint8_t {
  kNone = 0,     // without keys: a checksum
  kGmac256 = 1,  // authenticates packets: GMAC with AES-256 (NIST SP 800-38D)
  kGcm256 = 2,   // also encrypts payloads: GCM with AES-256
};

// Names a session: no other one, of this box or another, has the same name. Both ends know it.
struct SessionName {
  std::string box = {};
  std::string job = {};
  uint32_t part = 0;
  uint32_t rank = 0;
  uint32_t epoch = 0;
  uint64_t incarnation = 0;  // the worker's
  Suite suite = Suite::kNone;
};

// Returns the context for the exporter of the control connection (RFC 8446, section 7.5): no two
// names have the same.
std::string exporter_context(const SessionName& name);

// The session on one pipeline.
struct SealSpec {
  uint32_t pipeline = 0;    // its place in SESSION
  uint32_t spi = 0;         // worker -> box
  KeyUpdates updates = {};  // used by the box, which begins them
};

// Makes the seals of the session that one control connection carries. Control thread of a box; the
// thread that drives a worker's membership.
class SessionKeys {
 public:
  virtual ~SessionKeys() = default;
  // kResourceExhausted: no memory for the keys.
  // kUnavailable: the connection has ended.
  virtual Result<SessionSeal> make(const SessionName& name, const SealSpec& spec) = 0;
};

}  // namespace pbox::seal
