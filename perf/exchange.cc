// Scenario `exchange`: a training job without its computing (PHub's ZeroCompute). W worker
// processes exchange the gradients of a model through a pboxd, over kernel sockets and by shared
// memory. With --peers, Gloo and Open MPI exchange the same gradients. Systems take turns, so that
// a disturbance of the machine hits all of them. Gradients differ in each iteration, and every sum
// of every rank is checked.
#include <algorithm>
#include <iomanip>
#include <stdexcept>

#include "perf/measure.h"
#include "perf/scenario.h"
#include "perf/turns.h"

namespace pbox::perf::exchange_scenario {
namespace {

constexpr const char* kPeers[] = {"gloo-tcp", "openmpi-tcp", "openmpi-shm"};
// PBox by shared memory, with gradients in ordinary memory and in memory of pbox_alloc.
constexpr const char* kSharedKey = "pbox_shm";
constexpr const char* kAllocatedKey = "pbox_shm_alloc";
constexpr const char* kLimit = "udp-limit";
constexpr const char* kLimitKey = "udp_limit";

nlohmann::json figures_of(const LoopbackSystem& system, double gigabytes, uint32_t workers,
                          bool has_warmed_up) {
  const double ms = median(system.ms);
  nlohmann::json figures = {{"median_ms", ms},
                            {"min_ms", *std::min_element(system.ms.begin(), system.ms.end())},
                            {"goodput_gbps", gigabytes * workers / (ms * 1e-3)},
                            {"cpu_s", median(system.cpu_seconds)},
                            {"checked", true}};
  if (!has_warmed_up) figures["first_over_median"] = system.ms.front() / ms;
  if (system.box_bytes != 0) figures["box_bytes"] = system.box_bytes;
  return figures;
}

const LoopbackSystem& with_key(const std::vector<LoopbackSystem>& systems, const char* key) {
  return *std::find_if(systems.begin(), systems.end(),
                       [key](const auto& each) { return each.key == key; });
}

void print_table(const nlohmann::json& figures, std::ostream& report) {
  report << "  system         median ms    min ms   GB/s in    CPU s   PBox is faster by  over shm"
            "  from pbox_alloc\n"
         << std::fixed;
  for (const auto& [name, system] : figures["systems"].items()) {
    report << "  " << std::left << std::setw(14) << name << std::right << std::setprecision(1)
           << std::setw(10) << system["median_ms"].get<double>() << std::setw(10)
           << system["min_ms"].get<double>() << std::setprecision(2) << std::setw(10)
           << system["goodput_gbps"].get<double>() << std::setprecision(3) << std::setw(9)
           << system["cpu_s"].get<double>();
    if (const auto& speedups = figures["speedup_over"]; speedups.contains(name)) {
      report << std::setprecision(2) << std::setw(16) << speedups[name].get<double>() << " x"
             << std::setw(8) << figures["shm_speedup_over"][name].get<double>() << " x"
             << std::setw(14) << figures["alloc_speedup_over"][name].get<double>() << " x";
    }
    report << "\n";
  }
}

void print_first(const nlohmann::json& figures, std::ostream& report) {
  report << "  the first exchange, as a multiple of the median:" << std::setprecision(2);
  for (const auto& [name, system] : figures["systems"].items()) {
    report << " " << name << " " << system["first_over_median"].get<double>();
  }
  report << "\n";
}

void add_options(po::options_description& options) {
  options.add_options()("model", po::value<std::string>()->default_value("resnet50"), kModelHelp)(
      "workers", po::value<uint32_t>()->default_value(2), "worker processes")(
      "layout", po::value<std::string>()->default_value("tensors"),
      "tensors: one exchange per parameter tensor; buffer: one exchange of all parameters")(
      "iterations", po::value<uint32_t>()->default_value(21), "timed exchanges per system")(
      "warmup", po::value<uint32_t>()->default_value(3),
      "untimed exchanges before the timed ones; 0: also compare each system's first one with its "
      "median")(
      "peers",
      "also measure Gloo, Open MPI (TCP and shared memory), and as the limit the same bytes over "
      "UDP alone")(
      "without-recovery",
      "do not measure recovery copy: VGG-19 with four workers needs more than 24 GiB otherwise")(
      "box-flags", po::value<std::string>()->default_value(""), "additional flags for pboxd");
}

// Starts PBox's variants and, if `with_peers` is set, the peers and the limit.
std::vector<LoopbackSystem> start_systems(PeerOptions peer, bool with_recovery, bool with_peers) {
  std::vector<LoopbackSystem> systems;
  systems.push_back(start_on_loopback("pbox", peer));
  const auto start_variant = [&systems](const PeerOptions& variant, const char* key) {
    systems.push_back(start_on_loopback("pbox", variant));
    systems.back().key = key;
  };
  // Recovery is on by default, but no peer has it: a peer's job ends with any of its processes.
  PeerOptions variant = peer;
  variant.recovery = "copy";
  if (with_recovery) start_variant(variant, "pbox_recovering");
  variant.recovery = "none";
  variant.port = "shm";
  start_variant(variant, kSharedKey);
  variant.memory = "shared";
  start_variant(variant, kAllocatedKey);
  if (!with_peers) return systems;
  peer.box_flags.clear();
  for (const char* name : kPeers) systems.push_back(start_on_loopback(name, peer));
  systems.push_back(start_on_loopback(kLimit, peer));
  return systems;
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const PeerOptions peer{.model = options["model"].as<std::string>(),
                         .layout = options["layout"].as<std::string>(),
                         .worker_count = options["workers"].as<uint32_t>(),
                         .warmup = options["warmup"].as<uint32_t>(),
                         .box_flags = options["box-flags"].as<std::string>()};
  const auto model = model_by_name(peer.model);
  if (!model) throw std::runtime_error(model.error().message);
  const double gigabytes = static_cast<double>(element_count(*model)) * sizeof(float) / 1e9;
  const auto iterations = std::max(1u, options["iterations"].as<uint32_t>());

  std::vector<LoopbackSystem> systems =
      start_systems(peer, options.count("without-recovery") == 0, options.count("peers") != 0);
  take_turns(systems, iterations, report);
  finish(systems);

  nlohmann::json figures = {{"model", peer.model},
                            {"layout", peer.layout},
                            {"workers", peer.worker_count},
                            {"iterations", iterations},
                            {"model_bytes", static_cast<uint64_t>(gigabytes * 1e9)}};
  for (const LoopbackSystem& system : systems) {
    figures["systems"][system.key] =
        figures_of(system, gigabytes, peer.worker_count, peer.warmup > 0);
  }
  for (const char* name : {"speedup_over", "shm_speedup_over", "alloc_speedup_over"}) {
    figures[name] = nlohmann::json::object();
  }
  const std::vector<double>& shared = with_key(systems, kSharedKey).ms;
  const std::vector<double>& allocated = with_key(systems, kAllocatedKey).ms;
  for (const LoopbackSystem& system : systems) {
    if (&system == &systems.front()) continue;
    if (system.key == kSharedKey) {
      figures["shm_gain"] = median_ratio(systems.front().ms, system.ms);
    } else if (system.key == kAllocatedKey) {
      figures["alloc_gain"] = median_ratio(shared, system.ms);
    } else if (system.key == "pbox_recovering") {
      figures["recovery_cost"] = median_ratio(system.ms, systems.front().ms);
    } else if (system.key == kLimitKey) {
      figures["over_limit"] = median_ratio(systems.front().ms, system.ms);
    } else {
      figures["speedup_over"][system.key] = median_ratio(system.ms, systems.front().ms);
      figures["shm_speedup_over"][system.key] = median_ratio(system.ms, shared);
      figures["alloc_speedup_over"][system.key] = median_ratio(system.ms, allocated);
    }
  }
  report << peer.model << " as " << peer.layout << ", " << peer.worker_count
         << " workers, resident memory of the box "
         << figures["systems"]["pbox"]["box_bytes"].get<uint64_t>() / (1 << 20) << " MiB\n";
  print_table(figures, report);
  if (peer.warmup == 0) print_first(figures, report);
  report << std::fixed << std::setprecision(2);
  if (figures.contains("recovery_cost")) {
    report << "  with recovery of a lost box (recovery copy), an exchange takes "
           << figures["recovery_cost"].get<double>() << " times as long\n";
  }
  report << "  over sockets, an exchange takes " << figures["shm_gain"].get<double>()
         << " times as long as by shared memory\n"
         << "  by shared memory, it takes " << figures["alloc_gain"].get<double>()
         << " times as long as with gradients in memory of pbox_alloc\n";
  if (figures.contains("over_limit")) {
    report << std::fixed << std::setprecision(2) << "  PBox's exchange takes "
           << figures["over_limit"].get<double>()
           << " times as long as the limit, which is to send the same bytes both ways over UDP\n";
  }
  return figures;
}

const ScenarioRegistration kRegistration(
    {.name = "exchange",
     .summary = "worker processes that exchange through a box, over sockets and by shared memory,"
                " compared with Gloo and Open MPI",
     .add_options = add_options,
     .run = run});

}  // namespace
}  // namespace pbox::perf::exchange_scenario
