#include "worker/transport/socket_transport.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>

#include "base/check.h"
#include "base/clock.h"
#include "nic/rss.h"
#include "nic/socket/address.h"
#include "nic/socket/receive_room.h"
#include "worker/process/fork_guard.h"
#include "worker/transport/address_watch.h"
#include "worker/transport/path_probe.h"
#include "worker/transport/source_trial.h"

namespace pbox::worker {
namespace {

constexpr uint64_t kRtoFloorNs = 2 * kNanosPerMilli;
// A port that leads to the queue may be in use by another program. It is unlikely that this many
// are.
constexpr int kBindAttemptsMax = 64;

// A kernel socket cannot choose the box's queue. If the box has more than one, the hash of its NIC
// decides.
bool needs_trial(const SessionSpec& session, uint32_t lane) {
  if (!first_chunk_of(session, lane)) return false;
  const nic::QueueAffinity affinity = session.pipelines[lane].affinity;
  return affinity == nic::QueueAffinity::kSourceTrial ||
         (affinity == nic::QueueAffinity::kSenderQueue && session.pipelines.size() > 1);
}

Error no_source_port(const SessionSpec& session, uint32_t lane, const std::string& why) {
  const SessionSpec::Pipeline& pipeline = session.pipelines[lane];
  return {ErrorCode::kUnavailable, "pipeline " + std::to_string(lane) + " of the box (" +
                                       to_string(pipeline.box) +
                                       "): no source port leads to queue " +
                                       std::to_string(pipeline.queue) + " of its NIC: " + why};
}

Result<nic::SocketPort> open_by_hash(const SessionSpec& session, uint32_t lane) {
  const SessionSpec::Pipeline& pipeline = session.pipelines[lane];
  PBOX_CHECK(pipeline.rss != nullptr);
  nic::Endpoint local;
  {
    // The hash needs the local address, which the route decides.
    const auto any = open_connected(pipeline.box);
    if (!any) return any.error();
    local = any->local();
  }
  auto candidate = static_cast<uint16_t>(std::random_device{}());
  std::string last;
  for (int attempt = 0; attempt < kBindAttemptsMax; ++attempt) {
    const auto found =
        nic::source_port_for(*pipeline.rss, local, pipeline.box, pipeline.queue, candidate);
    if (!found) {
      return no_source_port(session, lane,
                            "the RSS table of the NIC has no entry for it; make the table name all "
                            "queues of the NIC");
    }
    local.port = *found;
    auto port = nic::SocketPort::open({.local = local, .remote = pipeline.box});
    if (port) return port;
    last = port.error().message;
    candidate = static_cast<uint16_t>(*found + 1);
  }
  return no_source_port(session, lane,
                        "none of " + std::to_string(kBindAttemptsMax) +
                            " candidates could be used; the last error: " + last);
}

}  // namespace

SocketTransport::~SocketTransport() {
  for (const Lane& lane : lanes_) forget_in_child(lane.port.event_fd());
}

Result<uint32_t> SocketTransport::path_mtu(const nic::Endpoint& box) {
  const auto probe = open_connected(box);
  if (!probe) return probe.error();
  return probe->capabilities().mtu;
}

Status SocketTransport::open(const SessionSpec& session, const Opening& opening) {
  PBOX_CHECK(lanes_.empty());
  fragment_bytes_ = session.fragment_bytes;
  std::vector<uint32_t> on_trial;
  for (uint32_t lane = 0; lane < session.pipelines.size(); ++lane) {
    if (needs_trial(session, lane)) on_trial.push_back(lane);
  }
  auto found = find_sources(session, on_trial, opening);
  if (!found) return found.error();
  PBOX_CHECK(found->size() == on_trial.size());
  size_t next_found = 0;
  for (uint32_t lane = 0; lane < session.pipelines.size(); ++lane) {
    if (next_found < on_trial.size() && on_trial[next_found] == lane) {
      lanes_.push_back({std::move((*found)[next_found++])});
    } else {
      auto port = session.pipelines[lane].affinity == nic::QueueAffinity::kRssHash
                      ? open_by_hash(session, lane)
                      : open_connected(session.pipelines[lane].box);
      if (!port) return port.error();
      lanes_.push_back({std::move(*port)});
    }
    close_in_child(lanes_.back().port.event_fd());
  }
  PBOX_CHECK(lanes_.size() == session.pipelines.size() && next_found == on_trial.size());
  // If a rank or a box has come back, packets may already be on their way, and probe_lanes() would
  // discard them.
  if (!session.probes_path || !session.open_rounds.empty()) return ok_status();
  return probe_lanes(session, opening);
}

Status SocketTransport::probe_lanes(const SessionSpec& session, const Opening& opening) {
  std::vector<ProbedPath> paths;
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (!first_chunk_of(session, lane)) continue;
    paths.push_back({lane, &lanes_[lane].port});
  }
  return probe_paths(session, paths, opening);
}

// Returns three quarters of the buffer, because results sent again, STATUS and GRANT need room too.
uint32_t SocketTransport::receivable_bytes(uint32_t lane) const {
  PBOX_CHECK(lane < lanes_.size());
  const uint32_t buffer_bytes = lanes_[lane].port.capabilities().receive_buffer_bytes;
  return nic::receivable_bytes(buffer_bytes, fragment_bytes_) / 4 * 3;
}

// The kernel also answers EINVAL if the address that a socket is bound to has gone.
std::optional<Error> SocketTransport::path_failure() {
  std::optional<Error> failure;
  for (Lane& lane : lanes_) {
    const int refusal = lane.port.take_refusal();
    const nic::Endpoint& local = lane.port.local();
    const bool has_no_path = refusal == ENETUNREACH || refusal == EADDRNOTAVAIL ||
                             (refusal == EINVAL && !nic::host_has_address(local));
    if (!has_no_path || failure) continue;
    failure =
        Error{ErrorCode::kBoxLost, "this host can no longer send to the box from its address " +
                                       nic::address_string(local) + ": " + std::strerror(refusal)};
  }
  return failure;
}

std::vector<nic::Endpoint> SocketTransport::local_endpoints() const {
  std::vector<nic::Endpoint> endpoints;
  for (const Lane& lane : lanes_) endpoints.push_back(lane.port.local());
  return endpoints;
}

uint64_t SocketTransport::rto_floor_ns() const {
  return kRtoFloorNs;
}

}  // namespace pbox::worker
