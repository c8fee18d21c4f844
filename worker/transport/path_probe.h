// Finds out, before anything is pushed, whether the largest packets of a job pass the paths to the
// pipelines, and come back. Packets are never fragmented, and a link with a smaller MTU than both
// ends state loses them silently. See nic/wire/path_probe.h.
#pragma once

#include <cstdint>
#include <span>

#include "nic/socket/port.h"
#include "worker/transport/transport.h"

namespace pbox::worker {

// The path of a lane.
struct ProbedPath {
  uint32_t lane = 0;
  nic::SocketPort* port = nullptr;  // connected to the lane's pipeline
};

// Returns an error if, on some path, small packets are answered and the largest are not. It names
// the path, its two ends and the largest packet that passes. A path on which nothing is answered is
// not an error: a firewall or a box of an older release may drop probes. Takes one round trip on
// healthy paths, and discards other packets that arrive meanwhile. Blocks.
Status probe_paths(const SessionSpec& session, std::span<const ProbedPath> paths,
                   const Opening& opening);

}  // namespace pbox::worker
