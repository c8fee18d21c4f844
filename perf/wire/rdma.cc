#include "perf/wire/rdma.h"

#include <array>
#include <iomanip>
#include <memory>
#include <stdexcept>
#include <thread>

#include "nic/rdma/port.h"
#include "perf/measure.h"
#include "perf/wire/load.h"
#include "perf/wire/perftest.h"
#include "pipeline/loop.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kPacketsInFlight = 128;  // fewer than the receive buffers that either side posts
constexpr std::array<const char*, 2> kPerftests = {"ib_send_bw", "ib_write_bw"};
constexpr std::array<const char*, 2> kModes = {"send", "write_imm"};  // values of rdma.mode
constexpr size_t kWriteImm = 1;
// Reliable connections lose no packets. If devices and cores are slow, pushing packets again that
// are in flight only adds load, so this limit is long.
constexpr uint64_t kStallNs = 10 * kNanosPerSecond;
constexpr uint64_t kSilenceMaxNs = 60 * kNanosPerSecond;

template <typename T>
T value_or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

void must(const Status& status) {
  if (!status) throw std::runtime_error(status.error().message);
}

std::shared_ptr<nic::RdmaDevice> open_device(const std::string& name) {
  return value_or_throw(nic::RdmaDevice::open({.name = name}));
}

// Returns the number of landing slots that a worker asks for: one for each packet of its window,
// and a quarter more.
uint32_t slots_wanted(const WireShape& shape) {
  return shape.window_chunks * 5 / 4 + 1;
}

nic::RdmaQueue open_queue(const std::shared_ptr<nic::RdmaDevice>& device, uint32_t landing_slots) {
  return value_or_throw(nic::RdmaQueue::open({.device = device, .landing_slots = landing_slots}));
}

nic::RdmaPort open_port(const std::shared_ptr<nic::RdmaDevice>& device, uint32_t landing_slots) {
  nic::SocketPort socket =
      value_or_throw(nic::SocketPort::open({.local = *nic::parse_endpoint("127.0.0.1", 0)}));
  return value_or_throw(nic::RdmaPort::open(std::move(socket), open_queue(device, landing_slots)));
}

// A pipeline on a thread of its own, with a queue pair for each worker. All workers run on the
// calling thread.
class RdmaBench {
 public:
  RdmaBench(const std::shared_ptr<nic::RdmaDevice>& box_device,
            const std::shared_ptr<nic::RdmaDevice>& load_device, const WireShape& shape,
            bool writes)
      : job_(shape),
        box_(open_port(box_device, writes ? shape.workers * slots_wanted(shape) : 0)),
        load_queue_(open_queue(load_device, 0)),
        load_(load_queue_, connect(), job_, kStallNs) {
    const NumaArena& results = job_.shard().arena();
    must(box_.add_memory(results.data(), results.size()));
    // Workers' applications register their gradients, too.
    must(load_queue_.add_memory(job_.gradients().data(), job_.gradients().size()));
    engine_.execute({.kind = pipeline::CommandKind::kInstall, .shard = &job_.shard()});
    thread_ =
        std::thread([this] { pipeline::Loop(engine_, box_, mailbox_, {.busy = true}).run(); });
  }
  ~RdmaBench() {
    mailbox_.stop.store(true, std::memory_order_release);
    thread_.join();
    engine_.execute({.kind = pipeline::CommandKind::kRemove, .shard = &job_.shard()});
  }
  RdmaBench(const RdmaBench&) = delete;
  RdmaBench& operator=(const RdmaBench&) = delete;

  // Returns the bytes of gradients that the box adds per second; as many go back. Runs on until the
  // box has added some, and throws if it adds none within kSilenceMaxNs.
  double run(double seconds) {
    const uint64_t before = added_bytes();
    const uint64_t start_ns = monotonic_ns();
    const uint64_t end_ns = start_ns + static_cast<uint64_t>(seconds * 1e9);
    load_.resume(start_ns);
    uint64_t now_ns = start_ns;
    for (; now_ns < end_ns || added_bytes() == before; now_ns = monotonic_ns()) {
      if (now_ns - start_ns > kSilenceMaxNs)
        throw std::runtime_error("no packet reached the box within 60 s");
      load_.turn(now_ns);
    }
    return static_cast<double>(added_bytes() - before) * 1e9 /
           static_cast<double>(now_ns - start_ns);
  }

  uint64_t broken() const { return box_.counters().get(nic::PortCounter::kQueuePairErrors); }
  uint64_t staged() const { return box_.counters().get(nic::PortCounter::kStagedPackets); }
  uint64_t landed() const { return box_.counters().get(nic::PortCounter::kLandedPackets); }
  uint64_t stalls() const { return load_.stalls(); }

 private:
  std::vector<nic::Endpoint> connect() {
    std::vector<nic::Endpoint> boxes;
    for (uint64_t worker = 1; worker <= job_.shape().workers; ++worker) {
      auto prepared = value_or_throw(load_queue_.prepare(worker));
      prepared.own.landing_slots_wanted = slots_wanted(job_.shape());
      const auto peer = value_or_throw(box_.connect(worker, prepared.own));
      must(load_queue_.complete(prepared.endpoint, peer));
      boxes.push_back(prepared.endpoint);
    }
    return boxes;
  }
  uint64_t added_bytes() const {
    return engine_.counters().get(pipeline::Counter::kAggregatedBytes);
  }

  WireJob job_;
  nic::RdmaPort box_;
  nic::RdmaQueue load_queue_;
  WireLoad<nic::RdmaQueue> load_;
  pipeline::Engine engine_{{.pipeline_index = 0, .tag = {}}};
  pipeline::Mailbox mailbox_;
  std::thread thread_;
};

std::shared_ptr<nic::RdmaDevice> box_device(const std::string& name) {
  if (!name.empty()) return open_device(name);
  const auto names = nic::rdma_device_names();
  if (names.empty())
    throw std::runtime_error("this machine has no RDMA device; `rdma link` lists them");
  return open_device(names.front());
}

// The figures of one mode over all turns.
struct ModeFigures {
  std::vector<double> wire;
  uint64_t staged = 0, landed = 0, broken = 0, stalls = 0;

  void take_turn(RdmaBench& bench, double seconds) {
    bench.run(seconds);  // warm-up
    wire.push_back(bench.run(seconds));
    staged += bench.staged();
    landed += bench.landed();
    broken += bench.broken();
    stalls += bench.stalls();
  }
};

using PeerRates = std::array<std::vector<double>, kPerftests.size()>;

nlohmann::json figures_of(const char* mode, const ModeFigures& own, const PeerRates& peers,
                          std::ostream& report) {
  nlohmann::json figures = {{"goodput_gbytes", median(own.wire) / 1e9},
                            {"staged_packets", own.staged},
                            {"landed_packets", own.landed},
                            {"queue_pair_errors", own.broken},
                            {"pushed_again", own.stalls}};
  report << std::fixed << std::setprecision(2) << mode
         << ": gradients added, and as many bytes returned, " << median(own.wire) / 1e9
         << " GB/s\n";
  for (size_t peer = 0; peer < peers.size(); ++peer) {
    const double ratio = median_ratio(own.wire, peers[peer]);
    figures["peers"][kPerftests[peer]] = {{"gbytes", median(peers[peer]) / 1e9},
                                          {"wire_over_peer", ratio}};
    report << "  " << std::setw(12) << std::left << kPerftests[peer] << std::right
           << median(peers[peer]) / 1e9 << " GB/s each way; the box reaches " << ratio
           << " of it\n";
  }
  report << std::flush;
  return figures;
}

}  // namespace

nlohmann::json measure_rdma(const RdmaRun& run, std::ostream& report) {
  const auto box = box_device(run.box_device);
  const auto load = run.load_device.empty() ? box : open_device(run.load_device);
  const WireShape shape{.workers = run.workers,
                        .window_chunks = std::max(1u, kPacketsInFlight / run.workers),
                        .fragment_bytes = limits::kChunkBytesDefault};
  report << "one core behind " << box->describe() << ", load on " << load->name() << ", "
         << run.workers << " workers and queue pairs, " << run.turns << " turns" << std::endl;
  std::array<ModeFigures, kModes.size()> own;
  PeerRates peers;
  for (uint32_t turn = 0; turn < run.turns; ++turn) {
    for (size_t mode = 0; mode < own.size(); ++mode) {
      RdmaBench bench(box, load, shape, mode == kWriteImm);
      own[mode].take_turn(bench, run.seconds);
    }
    for (size_t peer = 0; peer < peers.size(); ++peer) {
      peers[peer].push_back(
          perftest_rate({.program = kPerftests[peer],
                         .server = {.device = box->name(), .gid_index = box->gid().entry.index},
                         .client = {.device = load->name(), .gid_index = load->gid().entry.index},
                         .queue_pairs = shape.workers,
                         .message_bytes = shape.fragment_bytes + limits::kPacketOverheadBytes,
                         .seconds = run.seconds},
                        report));
    }
  }
  nlohmann::json figures = {{"fragment_bytes", shape.fragment_bytes},
                            {"workers", run.workers},
                            {"box_device", box->name()},
                            {"load_device", load->name()}};
  for (size_t mode = 0; mode < own.size(); ++mode) {
    figures["modes"][kModes[mode]] = figures_of(kModes[mode], own[mode], peers, report);
  }
  return figures;
}

}  // namespace pbox::perf
