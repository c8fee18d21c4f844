// Makes the seals of a session from a secret that both ends of its control connection have.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "nic/crypto/cipher.h"
#include "nic/seal/session_keys.h"

namespace pbox::crypto {

// The end of a session that a seal belongs to.
enum class End : uint8_t { kBox, kWorker };

// Sets the last argument to the secret that the connection exports for a context (RFC 8446, section
// 7.5). Returns false if the connection has ended.
using Exporter = std::function<bool(std::span<const std::byte>, TrafficSecret&)>;

// The two sides of a direction. The side that seals has the keys of one generation at a time, and
// the side that opens has those of three.
enum class Side : uint8_t { kSeals, kOpens };

// Makes the keys that follow from a traffic secret. kResourceExhausted: no memory for them.
Result<std::unique_ptr<seal::KeyChain>> make_key_chain(const TrafficSecret& first, Suite suite,
                                                       Side side,
                                                       const std::shared_ptr<SecretPages>& pages,
                                                       Library library = Library::kFastest);

// Keys lie in `pages`. One thread at a time uses it: the one that makes seals and destroys them.
// The thread that uses a seal may be another one.
std::unique_ptr<seal::SessionKeys> make_session_keys(End end, Exporter exporter,
                                                     std::shared_ptr<SecretPages> pages,
                                                     Library library = Library::kFastest);

}  // namespace pbox::crypto
