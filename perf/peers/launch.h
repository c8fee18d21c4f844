// How each peer is started, in one place: the flags decide what is measured.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "perf/peers/peer.h"

namespace pbox::perf {

// The command line that starts a peer: "pbox", "openmpi-tcp", "openmpi-shm" or "gloo-tcp".
// `program_folder` holds the peer programs. kNotFound where the build had no such library. With
// options.hosts, Open MPI's runs where those can reach it, in `subnet`.
Result<std::vector<std::string>> peer_command(std::string_view system, const PeerOptions& options,
                                              const std::string& program_folder,
                                              const std::string& subnet = "lo");

}  // namespace pbox::perf
