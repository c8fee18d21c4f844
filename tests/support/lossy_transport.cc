// A transport library for tests, as third parties might write one. It sends over kernel sockets but
// loses every seventh packet, so that tests see that packets went through it. Ports:
// - "lossy:wait": lanes have a descriptor to wait on.
// - "lossy:poll": lanes must be polled.
// - "lossy:closed": lanes cannot be opened.
// - "lossy:probes": lanes cannot be opened, but many probes have reached the box by then.
// - "lossy:breaks": carries some packets and then fails.
// - "lossy:reads": registers memory, and releases it only when it is forced to.
// - "lossy:refuses": refuses to register memory.
// - "lossy:locks": registers memory only once its first byte is not 0.
// Any other port is refused.
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>

#include "base/clock.h"
#include "base/version.h"
#include "worker/transport/socket_transport.h"
#include "worker/transport/source_trial.h"
#include "worker/transport/transport_library.h"

namespace {

using pbox::Error;
using pbox::ErrorCode;
using pbox::Result;
using pbox::Status;
using pbox::worker::SessionSpec;

class Registrar : public pbox::worker::MemoryRegistrar {
 public:
  explicit Registrar(const std::string& kind)
      : refuses_(kind == "refuses"), locks_(kind == "locks") {}
  Result<std::unique_ptr<pbox::worker::DeviceMemory>> add(const std::byte* memory,
                                                          size_t) override {
    const auto* first = reinterpret_cast<const std::atomic<unsigned char>*>(memory);
    while (locks_ && *first == 0) usleep(1000);
    if (refuses_) return Error{ErrorCode::kSystem, "this device reads nobody's memory"};
    return std::make_unique<pbox::worker::DeviceMemory>();
  }

 private:
  bool refuses_, locks_;
};

class LossyTransport : public pbox::worker::Transport {
 public:
  explicit LossyTransport(std::string kind) : kind_(std::move(kind)), polled_(kind_ == "poll") {
    if (kind_ == "reads" || kind_ == "refuses" || kind_ == "locks") {
      registrar_ = std::make_shared<Registrar>(kind_);
    }
  }

  Result<uint32_t> path_mtu(const pbox::nic::Endpoint& box) override {
    return sockets_.path_mtu(box);
  }
  Status open(const SessionSpec& session, const pbox::worker::Opening& opening) override {
    if (kind_ == "closed") return Error{ErrorCode::kUnavailable, "these lanes lead nowhere"};
    if (kind_ == "probes") return probe_in_vain(session);
    return sockets_.open(session, opening);
  }
  uint32_t receivable_bytes(uint32_t lane) const override {
    return sockets_.receivable_bytes(lane);
  }
  std::optional<Error> failure() override {
    if (!is_broken()) return std::nullopt;
    return Error{ErrorCode::kUnavailable, "it has carried enough"};
  }
  uint64_t rto_floor_ns() const override { return polled_ ? 200'000 : sockets_.rto_floor_ns(); }
  int event_fd(uint32_t lane) const override { return polled_ ? -1 : sockets_.event_fd(lane); }
  std::shared_ptr<pbox::worker::MemoryRegistrar> memory_registrar() override { return registrar_; }
  void add_memory(const std::byte* memory, size_t bytes,
                  Result<std::unique_ptr<pbox::worker::DeviceMemory>> registered) override {
    if (registered.ok() != (kind_ == "refuses")) memory_[memory] = bytes;
  }
  bool remove_memory(const std::byte* memory, bool force,
                     std::unique_ptr<pbox::worker::DeviceMemory>& /*released*/) override {
    if (kind_ == "reads" && !force) return false;
    memory_.erase(memory);
    return true;
  }
  pbox::worker::PayloadCounts payload_counts() const override { return counts_; }
  size_t rx_burst(uint32_t lane, std::span<pbox::nic::RxPacket> packets) override {
    return sockets_.rx_burst(lane, packets);
  }
  size_t tx_burst(uint32_t lane, std::span<const pbox::nic::TxPacket> packets) override {
    constexpr uint64_t kLostEvery = 7;
    if (is_broken()) return 0;
    if (!packets.empty()) count(packets[0]);
    if (++sent_ % kLostEvery == 0) return 1;
    return sockets_.tx_burst(lane, packets.first(1));
  }

 private:
  static Status probe_in_vain(const SessionSpec& session) {
    constexpr int kProbes = 2000;
    std::array<std::byte, pbox::worker::kHoldsNothing.size()> room;
    for (uint32_t lane = 0; lane < session.pipelines.size(); ++lane) {
      auto port = pbox::worker::open_connected(session.pipelines[lane].box);
      if (!port) return port.error();
      for (int probe = 0; probe < kProbes; ++probe) {
        const auto packet = pbox::worker::make_probe(session, lane, pbox::monotonic_ns(),
                                                     pbox::worker::kHoldsNothing, room.data());
        port->tx_burst({&packet, 1});
      }
    }
    return Error{ErrorCode::kUnavailable, "no answer is good enough"};
  }

  bool is_broken() const {
    constexpr uint64_t kCarried = 40;
    return kind_ == "breaks" && sent_ >= kCarried;
  }

  void count(const pbox::nic::TxPacket& packet) {
    const auto next = memory_.upper_bound(packet.payload);
    const bool is_known = next != memory_.begin() &&
                          packet.payload < std::prev(next)->first + std::prev(next)->second;
    ++(!is_known ? counts_.staged : kind_ == "reads" ? counts_.direct : counts_.staged_refused);
  }

  pbox::worker::SocketTransport sockets_;
  std::shared_ptr<Registrar> registrar_;
  std::map<const std::byte*, size_t> memory_;
  pbox::worker::PayloadCounts counts_;
  std::string kind_;
  bool polled_;
  uint64_t sent_ = 0;
};

}  // namespace

extern "C" PBOX_LIBRARY_EXPORT pbox::worker::Transport* pbox_transport_open_1(
    const pbox::worker::LibraryRequest& request, char* error, size_t error_bytes) {
  if (pbox::worker::refuse_other_release(request, error, error_bytes)) return nullptr;
  for (const char* kind :
       {"wait", "poll", "closed", "probes", "breaks", "reads", "refuses", "locks"}) {
    if (std::strcmp(request.arguments, kind) == 0) return new LossyTransport(kind);
  }
  std::snprintf(error, error_bytes, "there is no way to lose packets by '%s'; write wait or poll",
                request.arguments);
  return nullptr;
}
