#include "worker/transport/socket_transport.h"

#include <algorithm>
#include <optional>
#include <random>

#include "base/check.h"
#include "base/clock.h"
#include "nic/rss.h"
#include "worker/fork_guard.h"
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
                            "the RSS table that the box sent has no entry for it; make its "
                            "NIC's table name each of its queues");
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
      FoundSource& source = (*found)[next_found++];
      lanes_.push_back({std::move(source.port), source.next_packet_number});
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
  return ok_status();
}

// Three quarters, because the kernel also counts its own memory around each packet.
uint32_t SocketTransport::receivable_bytes(uint32_t lane) const {
  PBOX_CHECK(lane < lanes_.size());
  return lanes_[lane].port.capabilities().receive_buffer_bytes / 4 * 3;
}

uint64_t SocketTransport::rto_floor_ns() const {
  return kRtoFloorNs;
}

}  // namespace pbox::worker
