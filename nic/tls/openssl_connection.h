// A Connection over OpenSSL with buffers in memory. Private to nic/tls.
#pragma once

#include <memory>

#include "nic/tls/connection.h"
#include "nic/tls/peer_check.h"

namespace pbox::tls {

enum class End { kClient, kServer };

// `check`: which peer is acceptable. `certificate`: the name of this end's certificate, for errors.
std::unique_ptr<Connection> make_connection(SSL_CTX* context, End end, PeerCheck check,
                                            const std::string& certificate);

}  // namespace pbox::tls
