#include "worker/transport/path_probe.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "nic/wire/path_probe.h"
#include "worker/transport/source_trial.h"

namespace pbox::worker {
namespace {

// The first answers are awaited for 2 ms, later ones for twice as long each, up to 32 ms. Random
// loss must not look like a narrow path, so there are many tries.
constexpr uint64_t kFirstWaitNs = 2 * kNanosPerMilli;
constexpr uint64_t kLastWaitNs = 32 * kNanosPerMilli;
constexpr int kTriesMax = 30;
// A path that has answered nothing after this many tries, which take 94 ms, is left alone.
constexpr int kSilentTriesMax = 6;
// The search for the largest packet that passes tries this many sizes at once, each this often.
constexpr uint32_t kSizesPerStep = 16;
constexpr int kTriesPerStep = 3;

constexpr std::array<std::byte, limits::kFragmentBytesMax> kPadding{};

// The state of one path while it is probed.
struct Path {
  ProbedPath probed;
  uint32_t largest_answered = 0;  // payload bytes
};

class PathProbe {
 public:
  PathProbe(const SessionSpec& session, std::span<const ProbedPath> paths, const Opening& opening)
      : session_(session), opening_(opening) {
    for (const ProbedPath& probed : paths) {
      PBOX_CHECK(probed.port != nullptr);
      PBOX_CHECK(probed.lane < session.pipelines.size());
      paths_.push_back({probed});
    }
  }

  Status run() {
    uint64_t wait_ns = kFirstWaitNs;
    for (int tries = 0; tries < kTriesMax && !all_pass(); ++tries) {
      if (tries == kSilentTriesMax) {
        std::erase_if(paths_, [](const Path& path) { return path.largest_answered == 0; });
      }
      if (const Status alive = opening_.keep_alive(); !alive) return alive;
      for (Path& path : paths_) {
        if (passes(path)) continue;
        send(path, wire::kPathProbeBytesMin);
        send(path, session_.fragment_bytes);
      }
      listen(monotonic_ns() + wait_ns);
      if (monotonic_ns() >= opening_.deadline_ns) break;
      wait_ns = std::min(2 * wait_ns, kLastWaitNs);
    }
    for (Path& path : paths_) {
      if (passes(path) || path.largest_answered == 0) continue;
      if (const Status searched = search(path); !searched) return searched;
      return narrow_path_error(path);
    }
    return ok_status();
  }

 private:
  bool passes(const Path& path) const { return path.largest_answered >= session_.fragment_bytes; }
  bool all_pass() const {
    return std::all_of(paths_.begin(), paths_.end(),
                       [&](const Path& path) { return passes(path); });
  }

  void send(Path& path, uint32_t payload_bytes) {
    PBOX_DCHECK(payload_bytes >= wire::kPathProbeBytesMin && payload_bytes <= kPadding.size());
    const nic::TxPacket packet = make_probe(session_, path.probed.lane, monotonic_ns(),
                                            std::span(kPadding).first(payload_bytes), room_.data());
    path.probed.port->tx_burst({&packet, 1});  // a probe that does not leave counts as lost
  }

  void listen(uint64_t until_ns) {
    std::vector<pollfd> waits;
    for (uint64_t now_ns = monotonic_ns(); now_ns < until_ns && !all_pass();
         now_ns = monotonic_ns()) {
      waits.clear();
      for (const Path& path : paths_) waits.push_back({path.probed.port->event_fd(), POLLIN, 0});
      const auto wait_ms = static_cast<int>((until_ns - now_ns) / kNanosPerMilli + 1);
      if (poll(waits.data(), waits.size(), wait_ms) <= 0) continue;
      for (Path& path : paths_) take_answers(path);
    }
  }

  void take_answers(Path& path) const {
    std::array<nic::RxPacket, 8> burst;
    nic::SocketPort& port = *path.probed.port;
    for (size_t count = port.rx_burst(burst); count > 0; count = port.rx_burst(burst)) {
      for (size_t index = 0; index < count; ++index) {
        const auto bytes = answered_bytes(path, burst[index]);
        path.largest_answered = std::max(path.largest_answered, bytes);
      }
    }
  }

  // Returns the payload's length if the packet is an authentic answer to a probe; otherwise 0.
  uint32_t answered_bytes(const Path& path, const nic::RxPacket& packet) const {
    const auto header = open_answer(session_, path.probed.lane, packet);
    const bool is_answer =
        header && header->type() == wire::PacketType::kStatus && wire::is_path_probe(*header);
    return is_answer ? header->payload_bytes : 0;
  }

  // Narrows the range between the largest size that was answered and the smallest that was not.
  Status search(Path& path) {
    uint32_t fails = session_.fragment_bytes;
    PBOX_CHECK(path.largest_answered < fails);
    while (fails - path.largest_answered > 1 && monotonic_ns() < opening_.deadline_ns) {
      const uint32_t passes = path.largest_answered;
      const uint32_t step = std::max(1u, (fails - passes) / kSizesPerStep);
      for (int tries = 0; tries < kTriesPerStep; ++tries) {
        if (const Status alive = opening_.keep_alive(); !alive) return alive;
        for (uint32_t bytes = passes + step; bytes < fails; bytes += step) send(path, bytes);
        listen(monotonic_ns() + kLastWaitNs);
      }
      fails = std::min(fails, path.largest_answered + step);
    }
    return ok_status();
  }

  Error narrow_path_error(const Path& path) const {
    const nic::Endpoint& box = session_.pipelines[path.probed.lane].box;
    const uint32_t overhead = (box.ipv6 ? 48u : 28u) + limits::kPacketOverheadBytes;
    const std::string passing = std::to_string(path.largest_answered + overhead);
    return {ErrorCode::kUnavailable,
            "the path from " + address_string(path.probed.port->local()) + " to pipeline " +
                std::to_string(path.probed.lane) + " of the box (" + to_string(box) +
                ") loses packets of " + std::to_string(session_.fragment_bytes + overhead) +
                " bytes, which this job needs, and passes at most " + passing +
                ": a link on it has a smaller MTU than the interfaces at its ends. Give the "
                "workers' interfaces that MTU (ip link set dev NIC mtu " +
                passing + "), or raise the MTU of the link"};
  }

  const SessionSpec& session_;
  const Opening& opening_;
  std::vector<Path> paths_;
  std::array<std::byte, limits::kFragmentBytesMax> room_;
};

}  // namespace

Status probe_paths(const SessionSpec& session, std::span<const ProbedPath> paths,
                   const Opening& opening) {
  PBOX_CHECK(session.fragment_bytes >= limits::kFragmentBytesMin);
  static_assert(limits::kFragmentBytesMin > wire::kPathProbeBytesMin);
  return PathProbe(session, paths, opening).run();
}

}  // namespace pbox::worker
