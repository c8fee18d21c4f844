#include "worker/transport/source_trial.h"

#include <poll.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/clock.h"

namespace pbox::worker {
namespace {

// With a fair hash and n queues, one port in n is right. If 4 n ports are tried, all of them are
// wrong once in 50 times.
constexpr size_t kPortsPerPipeline = 4;
constexpr size_t kPortsPerLaneMax = 64;
// Over all lanes together, because a process may have only 1024 descriptors.
constexpr size_t kPortsMax = 256;
constexpr int kProbesPerPort = 3;  // any of them may be lost
constexpr uint64_t kAnswerNs = 50 * kNanosPerMilli;

class Trial {
 public:
  Trial(const SessionSpec& session, std::span<const uint32_t> lanes, const Opening& opening)
      : session_(session), opening_(opening), start_ns_(monotonic_ns()) {
    for (const uint32_t lane : lanes) lanes_.emplace_back().lane = lane;
  }

  Result<std::vector<nic::SocketPort>> run() {
    while (count_unanswered() > 0) {
      if (const Status opened = open_candidates(); !opened) return opened.error();
      for (int probe = 0; probe < kProbesPerPort && count_unanswered() > 0; ++probe) {
        if (const Status alive = opening_.keep_alive(); !alive) return alive.error();
        send_probes();
        listen(monotonic_ns() + kAnswerNs);
        if (monotonic_ns() >= opening_.deadline_ns && count_unanswered() > 0)
          return timeout_error();
      }
    }
    PBOX_CHECK(count_unanswered() == 0);
    std::vector<nic::SocketPort> found;
    for (Lane& lane : lanes_) found.push_back(std::move(*lane.answered));
    return found;
  }

 private:
  struct Lane {
    uint32_t lane = 0;
    size_t ports_tried = 0;
    std::vector<nic::SocketPort> candidates;
    std::optional<nic::SocketPort> answered;
  };

  size_t count_unanswered() const {
    return static_cast<size_t>(std::count_if(lanes_.begin(), lanes_.end(),
                                             [](const Lane& lane) { return !lane.answered; }));
  }

  Status open_candidates() {
    const size_t wanted =
        std::max<size_t>(1, std::min({kPortsPerPipeline * session_.pipelines.size(),
                                      kPortsPerLaneMax, kPortsMax / count_unanswered()}));
    for (Lane& lane : lanes_) lane.candidates.clear();
    for (Lane& lane : lanes_) {
      if (lane.answered) continue;
      while (lane.candidates.size() < wanted) {
        auto port = open_connected(session_.pipelines[lane.lane].box);
        if (!port && lane.candidates.empty()) return port.error();
        if (!port) break;  // out of descriptors: fewer ports suffice
        lane.candidates.push_back(std::move(*port));
        ++lane.ports_tried;
      }
    }
    return ok_status();
  }

  void send_probes() {
    std::array<std::byte, sizeof(wire::PullPayload)> room;
    for (Lane& lane : lanes_) {
      for (nic::SocketPort& port : lane.candidates) {
        PBOX_DCHECK(!lane.answered);
        const nic::TxPacket probe =
            make_probe(session_, lane.lane, monotonic_ns(), kHoldsNothing, room.data());
        port.tx_burst({&probe, 1});  // a probe that does not leave counts as lost
      }
    }
  }

  void listen(uint64_t until_ns) {
    std::vector<pollfd> waits;
    for (uint64_t now_ns = monotonic_ns(); now_ns < until_ns && count_unanswered() > 0;
         now_ns = monotonic_ns()) {
      waits.clear();
      for (const Lane& lane : lanes_) {
        for (const auto& port : lane.candidates) waits.push_back({port.event_fd(), POLLIN, 0});
      }
      const auto wait_ms = static_cast<int>((until_ns - now_ns) / kNanosPerMilli + 1);
      if (poll(waits.data(), waits.size(), wait_ms) <= 0) continue;
      for (Lane& lane : lanes_) take_answer(lane);
    }
  }

  void take_answer(Lane& lane) {
    PBOX_DCHECK(!lane.answered || lane.candidates.empty());
    std::array<nic::RxPacket, 4> burst;
    for (nic::SocketPort& port : lane.candidates) {
      for (size_t count = port.rx_burst(burst); count > 0; count = port.rx_burst(burst)) {
        const bool answered =
            std::any_of(burst.begin(), burst.begin() + count, [&](const nic::RxPacket& packet) {
              return answers_probe(session_, lane.lane, packet);
            });
        if (!answered) continue;
        lane.answered = std::move(port);
        lane.candidates.clear();
        return;
      }
    }
  }

  Error timeout_error() const {
    const Lane& lane =
        *std::find_if(lanes_.begin(), lanes_.end(), [](const Lane& one) { return !one.answered; });
    return {ErrorCode::kTimeout,
            "pipeline " + std::to_string(lane.lane) + " of the box (" +
                to_string(session_.pipelines[lane.lane].box) + ") answered none of " +
                std::to_string(lane.ports_tried) + " source ports within " +
                in_seconds(monotonic_ns() - start_ns_) +
                "; check that no firewall drops UDP between this host and that port, and that the "
                "box's NIC has a queue for each of its pipelines"};
  }

  const SessionSpec& session_;
  const Opening& opening_;
  uint64_t start_ns_;
  std::vector<Lane> lanes_;
};

}  // namespace

Result<nic::SocketPort> open_connected(const nic::Endpoint& box) {
  nic::Endpoint local;
  local.ipv6 = box.ipv6;
  return nic::SocketPort::open({.local = local, .remote = box});
}

namespace {

uint32_t open_round(const SessionSpec& session, uint32_t chunk) {
  return session.open_rounds.empty() ? 0 : session.open_rounds[chunk];
}

}  // namespace

std::optional<uint32_t> first_chunk_of(const SessionSpec& session, uint32_t lane) {
  const auto& owners = session.chunk_pipeline;
  const auto found = std::find(owners.begin(), owners.end(), lane);
  if (found == owners.end()) return std::nullopt;
  return static_cast<uint32_t>(found - owners.begin());
}

nic::TxPacket make_probe(const SessionSpec& session, uint32_t lane, uint64_t now_ns,
                         std::span<const std::byte> payload, std::byte* room) {
  PBOX_CHECK(lane < session.pipelines.size() && payload.size() <= limits::kFragmentBytesMax);
  nic::TxPacket packet;
  packet.to = &session.pipelines[lane].box;
  packet.header.set_type(wire::PacketType::kPull);
  packet.header.payload_bytes = static_cast<uint16_t>(payload.size());
  packet.header.spi = session.pipelines[lane].spi;
  packet.header.epoch = session.epoch;
  packet.header.chunk = first_chunk_of(session, lane).value();
  packet.header.round = open_round(session, packet.header.chunk);
  packet.header.timestamp_us = static_cast<uint32_t>(now_ns / 1000);
  packet.header.generation = session.generation;
  packet.payload = payload.data();
  session.pipelines[lane].seal->seal(session.tag, packet, room);
  return packet;
}

std::optional<wire::Header> open_answer(const SessionSpec& session, uint32_t lane,
                                        const nic::RxPacket& packet) {
  PBOX_CHECK(lane < session.pipelines.size());
  std::array<std::byte, limits::kFragmentBytesMax> room;
  wire::Parsed parsed;
  if (wire::parse(packet.data, packet.bytes, parsed) != wire::Reject::kNone ||
      parsed.header.spi != (session.pipelines[lane].spi | wire::kSpiToWorker) ||
      !session.pipelines[lane].seal->open(session.tag, parsed, room.data()) ||
      parsed.header.epoch != session.epoch) {
    return std::nullopt;
  }
  return parsed.header;
}

bool answers_probe(const SessionSpec& session, uint32_t lane, const nic::RxPacket& packet) {
  const auto header = open_answer(session, lane, packet);
  return header && header->generation == session.generation &&
         (header->type() == wire::PacketType::kStatus ||
          header->type() == wire::PacketType::kResult) &&
         header->chunk == first_chunk_of(session, lane) &&
         header->round == open_round(session, header->chunk);
}

Result<std::vector<nic::SocketPort>> find_sources(const SessionSpec& session,
                                                  std::span<const uint32_t> lanes,
                                                  const Opening& opening) {
  return Trial(session, lanes, opening).run();
}

}  // namespace pbox::worker
