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

// Sets its second argument to the secret that the connection exports for the context in its first
// argument (RFC 8446, section 7.5). Returns false if the connection has ended.
using Exporter = std::function<bool(std::span<const std::byte>, TrafficSecret&)>;

// The two sides of a direction. The side that seals has the keys of one generation at a time, and
// the side that opens has those of three.
enum class Side : uint8_t { kSeals, kOpens };

// Makes the keys that follow from a traffic secret. kResourceExhausted: there is no memory for
// them.
Result<std::unique_ptr<seal::KeyChain>> make_key_chain(const TrafficSecret& first, Suite suite,
                                                       Side side,
                                                       const std::shared_ptr<SecretPages>& pages,
                                                       Library library = Library::kFastest);

// Returns an object that makes the keys of one end's sessions. Keys lie in `pages`, which only one
// thread at a time may use: the thread that makes and destroys seals. Another thread may use the
// seals.
std::unique_ptr<seal::SessionKeys> make_session_keys(End end, Exporter exporter,
                                                     std::shared_ptr<SecretPages> pages,
                                                     Library library = Library::kFastest);

}  // namespace pbox::crypto
