// W workers exchange the gradients of a model through a box on a shaped rack, without computing.
// The box's cable has W times a worker's rate. The scenario compares the time with the physical
// limit M/B (a worker's bytes at its rate) and with the all-reduce of Gloo and Open MPI between the
// same machines. The systems take turns. Every rank checks every sum.
#include <algorithm>
#include <iomanip>
#include <stdexcept>

#include "perf/measure.h"
#include "perf/rack/systems.h"
#include "perf/scenario.h"

namespace pbox::perf::rack_exchange {
namespace {

constexpr double kBitsPerMegabit = 1e6;
constexpr uint32_t kWorkersMax = 64;
constexpr uint32_t kBoxMegabits = 1000;

void add_options(po::options_description& options) {
  options.add_options()("workers", po::value<uint32_t>()->default_value(4), "worker machines")(
      "model", po::value<std::string>()->default_value("resnet50"), kModelHelp)(
      "rate-mbit", po::value<uint32_t>()->default_value(0),
      "rate of a worker's cable, in Mbit/s of Ethernet frames; the box's cable has --workers times "
      "this rate. 0: 1000 divided by --workers, which is what two cores can carry")(
      "queue-kib", po::value<uint32_t>()->default_value(1024),
      "queue of the switch per port, in KiB")("delay-us", po::value<uint32_t>()->default_value(0),
                                              "delay of each worker's cable in each direction")(
      "jitter-us", po::value<uint32_t>()->default_value(0),
      "maximum jitter in addition to the delay")(
      "loss", po::value<double>()->default_value(0),
      "share of the frames that a worker's cable loses in each direction, from 0 to 1")(
      "mtu", po::value<uint32_t>()->default_value(9000), "MTU of every machine")(
      "window-bytes", po::value<uint32_t>()->default_value(0),
      "window of PBox's workers per pipeline; 0: the window that the box grants")(
      "turns", po::value<uint32_t>()->default_value(5), "timed exchanges per system")(
      "no-peers", "do not measure Gloo and Open MPI")(
      "box-flags", po::value<std::vector<std::string>>()->default_value({}, ""),
      "an additional flag for pboxd; can be repeated");
}

uint32_t rate_mbit_of(const po::variables_map& options) {
  const auto given = options["rate-mbit"].as<uint32_t>();
  return given != 0 ? given : kBoxMegabits / options["workers"].as<uint32_t>();
}

RackOptions rack_options(const po::variables_map& options) {
  const Link link{.bits_per_second = uint64_t{rate_mbit_of(options)} * 1'000'000,
                  .queue_bytes = uint64_t{options["queue-kib"].as<uint32_t>()} << 10,
                  .delay_us = options["delay-us"].as<uint32_t>(),
                  .jitter_us = options["jitter-us"].as<uint32_t>(),
                  .loss = options["loss"].as<double>()};
  return balanced_rack(options["workers"].as<uint32_t>(), options["mtu"].as<uint32_t>(), link);
}

// Gloo and Open MPI exchange all gradients as one buffer, which is faster for them than one call
// per tensor.
std::vector<System> start_systems(const Rack& rack, const RackBox& box, PeerOptions peer,
                                  bool with_peers) {
  std::vector<System> systems;
  peer.box = box.control;
  systems.push_back(start_system(rack, "pbox", peer));
  peer.box.clear();
  peer.window_bytes = 0;
  peer.layout = "buffer";
  for (const char* name : {"gloo-tcp", "openmpi-tcp"}) {
    if (with_peers) systems.push_back(start_system(rack, name, peer));
  }
  return systems;
}

void print_table(const nlohmann::json& figures, std::ostream& report) {
  report << figures["model"].get<std::string>() << ", " << figures["workers"] << " workers at "
         << figures["rate_mbit"] << " Mbit/s; M/B is " << std::fixed << std::setprecision(1)
         << figures["limit_ms"].get<double>() << " ms\n"
         << "  system        median ms  over M/B  cores used  machine idle  PBox is faster by\n";
  for (const auto& [name, system] : figures["systems"].items()) {
    report << "  " << std::left << std::setw(12) << name << std::right << std::setprecision(1)
           << std::setw(11) << system["median_ms"].get<double>() << std::setprecision(3)
           << std::setw(10) << system["over_limit"].get<double>() << std::setprecision(2)
           << std::setw(12) << system["cores_used"].get<double>() << std::setw(14)
           << system["machine_idle"].get<double>();
    if (const auto& speedups = figures["speedup_over"]; speedups.contains(name)) {
      report << std::setw(17) << speedups[name].get<double>() << " x";
    }
    report << "\n";
  }
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  if (const double loss = options["loss"].as<double>(); !(loss >= 0 && loss <= 1)) {
    throw std::runtime_error("--loss must be in [0, 1]");
  }
  if (options["workers"].as<uint32_t>() - 1 >= kWorkersMax) {
    throw std::runtime_error("--workers must be in [1, 64]");
  }
  Rack rack(rack_options(options));
  const RackBox box = rack.start_box(0, options["box-flags"].as<std::vector<std::string>>());
  PeerOptions peer{.model = options["model"].as<std::string>(),
                   .worker_count = options["workers"].as<uint32_t>(),
                   .window_bytes = options["window-bytes"].as<uint32_t>(),
                   .hosts = worker_hosts(rack)};
  const auto model = model_by_name(peer.model);
  if (!model) throw std::runtime_error(model.error().message);
  const uint64_t model_bytes = element_count(*model) * sizeof(float);
  const uint32_t rate_mbit = rate_mbit_of(options);
  const double limit_ms =
      static_cast<double>(model_bytes) * 8 / (rate_mbit * kBitsPerMegabit) * 1e3;

  std::vector<System> systems = start_systems(rack, box, peer, options.count("no-peers") == 0);
  const auto turns = std::max(1u, options["turns"].as<uint32_t>());
  for (uint32_t turn = 0; turn < turns; ++turn) {
    for (size_t index = 0; index < systems.size(); ++index) {
      measure_once(systems[(turn + index) % systems.size()], {box.program.get()});
    }
    report << "\r  turn " << turn + 1 << "/" << turns << std::flush;
  }
  report << "\r";
  for (System& system : systems) system.program->finish();

  nlohmann::json figures = {{"model", peer.model},
                            {"workers", peer.worker_count},
                            {"rate_mbit", rate_mbit},
                            {"model_bytes", model_bytes},
                            {"mtu", options["mtu"].as<uint32_t>()},
                            {"turns", turns},
                            {"limit_ms", limit_ms}};
  figures["speedup_over"] = nlohmann::json::object();
  for (const System& system : systems) {
    figures["systems"][system.key] = figures_of(system, limit_ms);
    if (&system != &systems.front()) {
      figures["speedup_over"][system.key] = median_ratio(system.ms, systems.front().ms);
    }
  }
  figures["over_limit"] = figures["systems"]["pbox"]["over_limit"];
  print_table(figures, report);
  return figures;
}

const ScenarioRegistration kRegistration({.name = "rack",
                                          .summary = "an exchange on a shaped rack, compared with"
                                                     " the physical limit, Gloo and Open MPI",
                                          .add_options = add_options,
                                          .run = run});

}  // namespace
}  // namespace pbox::perf::rack_exchange
