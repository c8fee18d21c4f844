#include "worker/dpdk/transport.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/clock.h"
#include "worker/dpdk/signals_held.h"
#include "worker/process/io_thread.h"
#include "worker/transport/source_trial.h"

namespace pbox::worker {
namespace {

constexpr uint64_t kRtoFloorNs = 200'000;
// The first dynamic port (RFC 6335). The port's address has no other user.
constexpr uint16_t kUdpPortFirst = 49'152;
constexpr uint64_t kProbeIntervalNs = 10 * kNanosPerMilli;
constexpr uint64_t kReconnectNs = 200 * kNanosPerMilli;
constexpr useconds_t kPollUs = 20;

std::string name_of(const SessionSpec& session, uint32_t lane) {
  return "pipeline " + std::to_string(lane) + " of the box (" +
         to_string(session.pipelines[lane].box) + ")";
}

// Checks that the lanes of one device can reach the session's pipelines.
Status check_reach(const SessionSpec& session, const nic::Interface& own) {
  for (uint32_t lane = 0; lane < session.pipelines.size(); ++lane) {
    const SessionSpec::Pipeline& pipeline = session.pipelines[lane];
    const nic::IpAddress box = nic::ip_address(pipeline.box);
    if (!own.next_hop(box, {}) || !own.local_address_for(box, {})) {
      return Error{ErrorCode::kInvalidArgument,
                   name_of(session, lane) +
                       " is in none of the port's networks, and the port has no gateway; give the "
                       "port an address in a network of the box (dpdk.devices there), or gateway="};
    }
    if (pipeline.affinity == nic::QueueAffinity::kSenderQueue && pipeline.queue != lane) {
      return Error{
          ErrorCode::kUnavailable,
          name_of(session, lane) + " receives on queue " + std::to_string(pipeline.queue) +
              " of its device, which this port does not reach, because the box has several groups "
              "of devices; give all of dpdk.devices at the box the same addresses"};
    }
    if (pipeline.affinity == nic::QueueAffinity::kSourceTrial) {
      return Error{ErrorCode::kUnavailable,
                   name_of(session, lane) +
                       " is behind a NIC that selects queues by an unknown hash, and only the port "
                       "'socket' can find source ports by trial; choose the port 'socket', or give "
                       "the box one pipeline per device (pipeline.count)"};
    }
  }
  return ok_status();
}

// Chooses a UDP port for each lane: the next one, or, if the box's NIC selects queues by a known
// hash, the next one that leads to the pipeline's queue.
Result<std::vector<uint16_t>> choose_udp_ports(const SessionSpec& session,
                                               const nic::Interface& own) {
  std::vector<uint16_t> chosen;
  uint16_t candidate = kUdpPortFirst;
  for (uint32_t lane = 0; lane < session.pipelines.size(); ++lane) {
    const SessionSpec::Pipeline& pipeline = session.pipelines[lane];
    if (pipeline.affinity == nic::QueueAffinity::kRssHash) {
      const auto address = own.local_address_for(nic::ip_address(pipeline.box), {});
      const auto found = nic::source_port_for(*pipeline.rss, nic::endpoint_of(*address, 0),
                                              pipeline.box, pipeline.queue, candidate);
      if (!found) {
        return Error{ErrorCode::kUnavailable,
                     name_of(session, lane) + ": no source port leads to queue " +
                         std::to_string(pipeline.queue) +
                         " of its NIC; make the RSS table of that NIC name all of its queues"};
      }
      candidate = *found;
    }
    chosen.push_back(candidate++);
  }
  return chosen;
}

}  // namespace

Status start_dpdk(const DpdkPortSettings& settings) {
  const SignalsHeld held(foreign_signals());
  return nic::start_eal(settings.eal());
}

DpdkTransport::~DpdkTransport() {
  const SignalsHeld held(SignalsHeld::broken_pipe());
  lanes_.clear();
  interface_.reset();
}

Result<uint32_t> DpdkTransport::path_mtu(const nic::Endpoint& /*box*/) {
  return settings_.interface.mtu;
}

Status DpdkTransport::open(const SessionSpec& session, const Opening& opening) {
  if (const Status reached = check_reach(session, settings_.interface); !reached) return reached;
  const auto udp_ports = choose_udp_ports(session, settings_.interface);
  if (!udp_ports) return udp_ports.error();
  const SignalsHeld held(SignalsHeld::broken_pipe());
  const nic::DpdkThread on_this_thread;
  const uint64_t start_ns = monotonic_ns();
  uint64_t opened_ns = 0;
  for (;;) {
    if (opened_ns == 0 || (lost_connection() && monotonic_ns() - opened_ns > kReconnectNs)) {
      if (const Status opened = open_device(session, *udp_ports); !opened) return opened;
      opened_ns = monotonic_ns();
    }
    if (const Status alive = opening.keep_alive(); !alive) return alive;
    send_probes(session);
    if (listen(session, monotonic_ns() + kProbeIntervalNs)) return ok_status();
    const uint64_t now_ns = monotonic_ns();
    if (now_ns >= opening.deadline_ns) return unanswered(session, now_ns - start_ns);
  }
}

Status DpdkTransport::open_device(const SessionSpec& session,
                                  const std::vector<uint16_t>& udp_ports) {
  PBOX_CHECK(lanes_.empty() || lanes_.size() == udp_ports.size());
  lanes_.clear();
  interface_.reset();
  auto opened =
      nic::DpdkInterface::open({.devices = {settings_.device},
                                .interface = settings_.interface,
                                .queue_nodes = std::vector<int>(udp_ports.size(), SOCKET_ID_ANY),
                                .udp_ports = udp_ports,
                                .senders_steer = false});
  if (!opened) return opened.error();
  interface_ = std::move(*opened);
  if (interface_->mtu() < settings_.interface.mtu) {
    return Error{ErrorCode::kInvalidArgument,
                 "device " + settings_.device + " takes an MTU of at most " +
                     std::to_string(interface_->mtu()) + ", not " +
                     std::to_string(settings_.interface.mtu) + "; lower mtu= in the port"};
  }
  for (uint32_t lane = 0; lane < udp_ports.size(); ++lane) {
    lanes_.push_back(
        {.port = nic::DpdkPort(*interface_, lane), .answered = !first_chunk_of(session, lane)});
  }
  // Three quarters of the ring, because not only results arrive. With dispatch in software, all
  // lanes share a queue.
  const bool shares = interface_->affinity() == nic::QueueAffinity::kDispatch;
  PBOX_CHECK(!lanes_.empty());
  receivable_bytes_ = interface_->receive_slots() / 4 * 3 * session.fragment_bytes /
                      (shares ? static_cast<uint32_t>(lanes_.size()) : 1u);
  return ok_status();
}

void DpdkTransport::send_probes(const SessionSpec& session) {
  PBOX_CHECK(session.pipelines.size() == lanes_.size());
  std::array<std::byte, kHoldsNothing.size()> room;
  for (uint32_t index = 0; index < lanes_.size(); ++index) {
    Lane& lane = lanes_[index];
    if (lane.answered) continue;
    const nic::TxPacket probe =
        make_probe(session, index, monotonic_ns(), kHoldsNothing, room.data());
    lane.port.tx_burst({&probe, 1});  // a probe that does not leave counts as lost
  }
}

// Returns whether every lane has its answer. Polls all lanes, because the box's MAC address may
// arrive on any of them.
bool DpdkTransport::listen(const SessionSpec& session, uint64_t until_ns) {
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  for (;;) {
    bool all_answered = true;
    for (uint32_t index = 0; index < lanes_.size(); ++index) {
      Lane& lane = lanes_[index];
      const size_t count = lane.port.rx_burst(burst);
      lane.answered = lane.answered || std::any_of(burst.begin(), burst.begin() + count,
                                                   [&](const nic::RxPacket& packet) {
                                                     return answers_probe(session, index, packet);
                                                   });
      all_answered = all_answered && lane.answered;
    }
    if (all_answered || monotonic_ns() >= until_ns) return all_answered;
    usleep(kPollUs);
  }
}

// Returns whether the device must be opened again. memif connects only when it starts, and is
// refused by a box that has not noticed yet that the previous worker is gone. Other links come up
// by themselves.
bool DpdkTransport::lost_connection() const {
  const nic::DpdkDevice& device = *interface_->devices()[0];
  return device.capabilities().driver == "net_memif" && !device.link_is_up();
}

Error DpdkTransport::unanswered(const SessionSpec& session, uint64_t waited_ns) const {
  const auto silent =
      std::find_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return !lane.answered; });
  const std::string link = interface_->devices()[0]->link_is_up() ? "up" : "down";
  return {
      ErrorCode::kTimeout,
      name_of(session, static_cast<uint32_t>(silent - lanes_.begin())) +
          " has not answered on device " + settings_.device + " (link " + link + ") within " +
          in_seconds(waited_ns) +
          "; check that the device is connected to the box's, that no other host has this port's "
          "address, and that vlan= and mtu= are the same as at the box"};
}

uint32_t DpdkTransport::receivable_bytes(uint32_t /*lane*/) const {
  return receivable_bytes_;
}

uint64_t DpdkTransport::rto_floor_ns() const {
  return kRtoFloorNs;
}

}  // namespace pbox::worker
