// An entry of the audit log: somebody has used the box's rights, or was refused.
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
  kAdmin,             // a change was asked of the HTTP server: a POST that was accepted
  kAdminRefused,      // a POST that was refused, or a GET that the client may not make
  kCut,               // a part of a snapshot is taken
  kState,             // weights and optimizer state of a part go to another box
  kDrain              // a box begins or ceases to drain
};
inline constexpr size_t kKindCount = 9;

// Members that are empty or unset do not belong to the entry.
struct Record {
  Kind kind;
  std::string who = {};      // an identity as URI, or "uid 1000"; empty: unknown
  std::string address = {};  // HOST:PORT of the peer; empty: this host
  std::string job = {};
  std::optional<uint32_t> part = {}, rank = {};
  std::optional<uint64_t> epoch = {}, snapshot = {}, status = {};  // status: of HTTP
  std::string box = {};
  std::string request = {};  // method and path
  std::string body = {};     // POST only
  std::string outcome = {};
  std::string reason = {};
};

// Control thread. Does not block for longer than a write to a local file.
using Sink = std::function<void(const Record&)>;

}  // namespace pbox::audit
