// Scenario `wire`: the fragments that one core of a box receives, adds and answers through a port,
// compared with the limit 1 / (1/F + 1/S). F is the rate of dpdk-testpmd's macswap, which only
// receives and sends the same frames. S is the rate of the bare sum kernel over the same gradients.
// Figures are in cycles per fragment, so the limit is the sum of the two. The box's phases are
// sampled in the same run.
#include <algorithm>
#include <fstream>
#include <iomanip>
#include <optional>
#include <stdexcept>

#include "nic/dpdk/eal.h"
#include "nic/dpdk/port.h"
#include "nic/socket/port.h"
#include "perf/measure.h"
#include "perf/scenario.h"
#include "perf/wire/bench.h"
#include "perf/wire/devices.h"
#include "perf/wire/rdma.h"
#include "perf/wire/testpmd.h"

namespace pbox::perf::wire_scenario {
namespace {

constexpr uint32_t kFrameOverheadBytes = 14 + 20 + 8 + limits::kPacketOverheadBytes;
constexpr uint32_t kPacketMemoryMib = 512;  // packet memory of this process; testpmd has as much
constexpr uint32_t kBytesInFlight = 512 << 10;  // half of a second-level cache
constexpr uint32_t kSlices = 15;
constexpr uint32_t kPhases = static_cast<uint32_t>(pipeline::Phase::kCount);
constexpr const char* kPhaseNames[kPhases] = {"receive", "authenticate", "add", "finish", "send"};

struct Point {
  std::vector<double> wire;     // cycles per fragment, by turn
  std::vector<double> forward;  // the same frames through macswap, or through the bare port
  std::vector<double> sum;
  double phases[kPhases] = {};  // cycles per fragment
  double fragment_bytes = 0;    // average size of a sampled fragment
  uint64_t stalls = 0;
  uint64_t drops = 0;
  double packets_per_second = 0;
};

struct Run {
  WireKind kind = WireKind::kRing;
  WireShape shape;
  uint32_t turns = 5;
  double seconds = 0.5;  // duration of each part of a turn
  bool hugepages = false;
};

// Returns the cycles per fragment of one pass of the sum kernel over the model.
double kernel_cycles(WireJob& job) {
  const uint64_t start = pipeline::cycle_count();
  job.run_kernel();
  return static_cast<double>(pipeline::cycle_count() - start) /
         static_cast<double>(job.fragments_of_round());
}

uint64_t dropped(const nic::PortCounters& counters) {
  uint64_t sum = 0;
  for (auto row = static_cast<size_t>(nic::PortCounter::kDropNotForUs);
       row < static_cast<size_t>(nic::PortCounter::kCount); ++row) {
    sum += counters.get(static_cast<nic::PortCounter>(row));
  }
  return sum + counters.get(nic::PortCounter::kSendFailures) +
         counters.get(nic::PortCounter::kNoBuffer);
}

template <nic::Port P>
Point measure(P& box, P& load, const nic::Endpoint& address, WireJob& job, const Run& run,
              const std::function<double()>& forward) {
  WireBench<P> bench(box, load, address, job);
  const auto duration_ns = static_cast<uint64_t>(run.seconds * 1e9);
  bench.connect();
  bench.run(duration_ns);  // warm-up
  Point point;
  uint64_t fragments = 0;
  uint64_t wire_ns = 0;
  for (uint32_t turn = 0; turn < run.turns; ++turn) {
    // Slices are short, so that other work on the machine disturbs only a few; medians ignore
    // those.
    std::vector<double> wire_slices, sum_slices;
    for (uint32_t slice = 0; slice < kSlices; ++slice) {
      const uint64_t slice_start_ns = monotonic_ns();
      const WireTurn wire = bench.run(duration_ns / kSlices);
      wire_ns += monotonic_ns() - slice_start_ns;
      fragments += wire.fragments;
      wire_slices.push_back(wire.cycles_per_fragment());
      sum_slices.push_back(kernel_cycles(job));
    }
    point.wire.push_back(median(wire_slices));
    point.sum.push_back(median(sum_slices));
    point.forward.push_back(forward());
  }
  const auto& counters = bench.counters();
  const double sampled = static_cast<double>(counters.get(pipeline::Counter::kSampledFragments));
  for (uint32_t phase = 0; phase < kPhases; ++phase) {
    const auto row = static_cast<size_t>(pipeline::Counter::kCyclesReceive) + phase;
    point.phases[phase] =
        static_cast<double>(counters.get(static_cast<pipeline::Counter>(row))) / sampled;
  }
  point.fragment_bytes =
      static_cast<double>(counters.get(pipeline::Counter::kSampledBytes)) / sampled;
  point.stalls = bench.stalls();
  point.drops = dropped(box.counters());
  point.packets_per_second = static_cast<double>(fragments) * 1e9 / static_cast<double>(wire_ns);
  return point;
}

std::unique_ptr<nic::DpdkInterface> open_interface(const std::string& device, const char* address,
                                                   uint32_t mtu) {
  nic::DpdkInterfaceOptions options;
  options.devices = {device};
  options.interface.addresses = {*nic::parse_interface_address(address)};
  options.interface.mtu = mtu;
  options.queue_nodes = {SOCKET_ID_ANY};
  options.udp_ports = {limits::kDataPortFirst};
  auto interface = nic::DpdkInterface::open(options);
  if (!interface) throw std::runtime_error(interface.error().message);
  return std::move(*interface);
}

Point measure_dpdk(const Run& run, uint32_t mtu) {
  const DevicePair devices = make_devices(run.kind);
  const auto box_interface = open_interface(devices.box, "10.9.0.1/24", mtu);
  const auto load_interface = open_interface(devices.load, "10.9.0.2/24", mtu);
  nic::DpdkPort box(*box_interface, 0);
  nic::DpdkPort load(*load_interface, 0);
  WireJob job(run.shape);
  const NumaArena& results = job.shard().arena();
  // The load's memory is not added, so the load copies its payloads. Each frame then arrives at the
  // box in one buffer, as from a NIC.
  const Status added = box.add_memory(results.data(), results.size());
  if (!added) throw std::runtime_error(added.error().message);
  const ForwardOptions forward = {
      .devices = forwarder_devices(run.kind, mtu),
      .frame_bytes = kFrameOverheadBytes + run.shape.fragment_bytes,
      .buffer_bytes =
          RTE_PKTMBUF_HEADROOM + nic::receive_buffer_bytes(nic::parse_device(devices.box), mtu),
      .seconds = run.seconds,
      .hugepages = run.hugepages};
  return measure(box, load, box.local(), job, run, [&] { return forwarding_cycles(forward); });
}

nic::SocketPort open_socket() {
  auto port = nic::SocketPort::open({.local = *nic::parse_endpoint("127.0.0.1", 0)});
  if (!port) throw std::runtime_error(port.error().message);
  return std::move(*port);
}

// Returns the cycles per packet of the bare port, which sends bursts back. It replaces macswap,
// which cannot forward datagrams.
double socket_forwarding_cycles(const WireJob& job, double seconds) {
  nic::SocketPort near = open_socket();
  nic::SocketPort far = open_socket();
  std::array<nic::TxPacket, limits::kBurstPackets> sent;
  nic::TxPacket packet;
  packet.header.payload_bytes = static_cast<uint16_t>(job.shape().fragment_bytes);
  packet.payload = job.payload(0, 0, 0);
  packet.to = &far.local();
  sent.fill(packet);
  std::array<nic::TxPacket, limits::kBurstPackets> answers;
  packet.to = &near.local();
  answers.fill(packet);
  std::array<nic::RxPacket, limits::kBurstPackets> received;
  uint64_t cycles = 0;
  uint64_t packets = 0;
  const uint64_t end_ns = monotonic_ns() + static_cast<uint64_t>(seconds * 1e9);
  while (monotonic_ns() < end_ns) {
    near.tx_burst(sent);
    const uint64_t start = pipeline::cycle_count();
    for (size_t count = 0; (count = far.rx_burst(received)) > 0; packets += count) {
      far.tx_burst({answers.data(), count});
    }
    cycles += pipeline::cycle_count() - start;
    while (near.rx_burst(received) > 0) {
    }
  }
  return static_cast<double>(cycles) / static_cast<double>(std::max<uint64_t>(packets, 1));
}

Point measure_socket(const Run& run) {
  nic::SocketPort box = open_socket();
  nic::SocketPort load = open_socket();
  WireJob job(run.shape);
  return measure(box, load, box.local(), job, run,
                 [&] { return socket_forwarding_cycles(job, run.seconds); });
}

nlohmann::json figures_of(const Point& point, const Run& run, uint32_t mtu, std::ostream& report) {
  std::vector<double> limit;
  for (size_t turn = 0; turn < point.wire.size(); ++turn) {
    limit.push_back(point.forward[turn] + point.sum[turn]);
  }
  nlohmann::json figures = {{"mtu", mtu},
                            {"fragment_bytes", run.shape.fragment_bytes},
                            {"workers", run.shape.workers},
                            {"hugepages", run.hugepages},
                            {"wire_over_limit", median_ratio(limit, point.wire)},
                            {"cycles_per_fragment", median(point.wire)},
                            {"forward_cycles", median(point.forward)},
                            {"sum_cycles", median(point.sum)},
                            {"packets_per_second", 2 * point.packets_per_second},
                            {"drops", point.drops},
                            {"pushed_again", point.stalls}};
  report << std::fixed << std::setprecision(2) << "wire_over_limit "
         << figures["wire_over_limit"].get<double>() << std::setprecision(0) << ": "
         << median(point.wire) << " cycles to receive, add and answer a fragment; limit "
         << median(limit) << " = forward " << median(point.forward) << " + sum "
         << median(point.sum) << "\n";
  for (uint32_t phase = 0; phase < kPhases; ++phase) {
    figures["phase_cycles"][kPhaseNames[phase]] = point.phases[phase];
    figures["phase_cycles_per_byte"][kPhaseNames[phase]] =
        point.phases[phase] / point.fragment_bytes;
    report << "  " << std::setw(14) << std::left << kPhaseNames[phase] << std::right << std::setw(8)
           << std::setprecision(0) << point.phases[phase] << " cycles" << std::setw(8)
           << std::setprecision(3) << point.phases[phase] / point.fragment_bytes << " per byte\n";
  }
  report << "  " << std::setprecision(2) << 2 * point.packets_per_second / 1e6
         << " million packets/s with the load on the same core; drops " << point.drops
         << ", pushed again " << point.stalls << " times" << std::endl;
  return figures;
}

// Returns the free 2 MiB pages of the whole machine.
uint64_t free_hugepages() {
  uint64_t count = 0;
  std::ifstream("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") >> count;
  return count;
}

WireKind kind_of(const std::string& port) {
  if (port == "dpdk:ring") return WireKind::kRing;
  if (port == "dpdk:memif") return WireKind::kMemif;
  if (port == "dpdk:af_packet") return WireKind::kAfPacket;
  if (port == "socket") return WireKind::kSocket;
  throw std::runtime_error("--port " + port +
                           ": give dpdk:ring, dpdk:memif, dpdk:af_packet, rdma or socket");
}

void add_options(po::options_description& options) {
  options.add_options()("port", po::value<std::string>()->default_value("dpdk:memif"),
                        "dpdk:ring, dpdk:memif, dpdk:af_packet (root), rdma or socket")(
      "mtu", po::value<uint32_t>()->default_value(9000), "9000 or 1500; not for rdma")(
      "device", po::value<std::string>()->default_value(""),
      "rdma: the box's device; default: the first device")(
      "load-device", po::value<std::string>()->default_value(""),
      "rdma: the load's device; default: the box's device")(
      "workers", po::value<uint32_t>()->default_value(4), "workers that push, at most 64")(
      "turns", po::value<uint32_t>()->default_value(5),
      "measurements of each side; the sides take turns")(
      "seconds", po::value<double>()->default_value(0.5), "duration of each measurement");
}

nlohmann::json run_rdma([[maybe_unused]] const po::variables_map& options,
                        [[maybe_unused]] std::ostream& report) {
#ifdef PBOX_HAS_RDMA
  return measure_rdma({.box_device = options["device"].as<std::string>(),
                       .load_device = options["load-device"].as<std::string>(),
                       .workers = std::clamp(options["workers"].as<uint32_t>(), 1u, 64u),
                       .turns = std::max(1u, options["turns"].as<uint32_t>()),
                       .seconds = options["seconds"].as<double>()},
                      report);
#else
  throw std::runtime_error(
      "--port rdma: this build has no libibverbs; build with it or choose another port");
#endif
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  if (options["port"].as<std::string>() == "rdma") return run_rdma(options, report);
  const auto mtu = options["mtu"].as<uint32_t>();
  if (mtu != 9000 && mtu != 1500) throw std::runtime_error("--mtu must be 9000 or 1500");
  Run run{.kind = kind_of(options["port"].as<std::string>()),
          .shape = {},
          .turns = std::max(1u, options["turns"].as<uint32_t>()),
          .seconds = options["seconds"].as<double>(),
          .hugepages = 2 * free_hugepages() >= 2 * kPacketMemoryMib};
  run.shape.workers = std::clamp(options["workers"].as<uint32_t>(), 1u, 64u);
  run.shape.fragment_bytes =
      mtu == 9000 ? limits::kFragmentBytesJumbo : limits::kFragmentBytesEthernet;
  // At most about two bursts are in flight, so that waiting packets stay in the cache.
  const uint32_t fragments =
      wire::fragment_count(limits::kChunkBytesDefault, run.shape.fragment_bytes);
  const uint32_t chunks =
      std::min(2 * limits::kBurstPackets / fragments, kBytesInFlight / limits::kChunkBytesDefault);
  run.shape.window_chunks = std::max(1u, chunks / run.shape.workers);
  report << "one core behind " << options["port"].as<std::string>() << ", MTU " << mtu << ", "
         << run.shape.workers << " workers, " << run.turns << " turns, "
         << (run.hugepages ? "2 MiB" : "ordinary") << " pages" << std::endl;
  if (run.kind != WireKind::kSocket) {
    const Status started =
        nic::start_eal({.no_huge = !run.hugepages, .memory_mib = {kPacketMemoryMib}});
    if (!started) throw std::runtime_error(started.error().message);
  }
  std::optional<nic::DpdkThread> thread;
  if (run.kind != WireKind::kSocket) thread.emplace();
  const Point point = run.kind == WireKind::kSocket ? measure_socket(run) : measure_dpdk(run, mtu);
  return figures_of(point, run, mtu, report);
}

const ScenarioRegistration kRegistration(
    {.name = "wire",
     .summary = "one core behind a port, compared with forwarding and the bare sum",
     .add_options = add_options,
     .run = run});

}  // namespace
}  // namespace pbox::perf::wire_scenario
