// An entry of the audit log: a peer has used a right on this box, or was refused.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace pbox::audit {

enum class Kind : uint8_t {
  kJoin,              // a JOIN was accepted
  kJoinRefused,       // a JOIN was refused, whatever the reason
  kMessageDenied,     // a message that the peer's keys do not allow
  kHandshakeRefused,  // a TLS handshake that failed, or a peer that speaks no TLS
  kAdmin,             // the HTTP server has accepted a POST, which asks for a change
  kAdminRefused,      // a POST that was refused, or a GET that the client may not make
  kCut,               // a part of a snapshot is taken
  kState,             // weights and optimizer state of a part go to another box
  kDrain              // a box begins or stops draining
};
inline constexpr size_t kKindCount = 9;

// Members that are empty or unset are left out of the entry.
struct Record {
  Kind kind;
  std::string who = {};      // an identity as URI, or "uid 1000"; empty if unknown
  std::string address = {};  // HOST:PORT of the peer; empty if it is on this host
  std::string job = {};
  std::optional<uint32_t> part = {}, rank = {};
  std::optional<uint64_t> epoch = {}, snapshot = {}, status = {};  // status: the HTTP status
  std::string box = {};
  std::string request = {};  // method and path
  std::string body = {};     // POST only
  std::string outcome = {};
  std::string reason = {};
};

// Writes a record. Called on the control thread; blocks no longer than a write to a local file.
using Sink = std::function<void(const Record&)>;

}  // namespace pbox::audit
