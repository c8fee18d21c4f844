// Builds the command line of each peer, in one place, because the flags decide what is measured.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "perf/peers/peer.h"

namespace pbox::perf {

// Returns the command line that starts a peer: "pbox", "openmpi-tcp", "openmpi-shm", "gloo-tcp",
// "tcp" or "udp-limit". `program_folder` holds the peer programs. Returns kInvalidArgument for
// another name, and kNotFound if the peer program was not built. Open MPI's traffic stays in
// `subnet`, which must contain options.hosts if there are any.
Result<std::vector<std::string>> peer_command(std::string_view system, const PeerOptions& options,
                                              const std::string& program_folder,
                                              const std::string& subnet = "lo");

}  // namespace pbox::perf
