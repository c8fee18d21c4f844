// Measures exchanges of ResNet-50's gradients behind shaped cables. Three boxes on one rack take
// turns. The rate doubles until the job without keys no longer comes close to what its cables
// allow.
#include <iomanip>

#include "perf/rack/systems.h"
#include "perf/secure/key_folders.h"
#include "perf/secure/parts.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kRackWorkers = 2;
constexpr uint32_t kRackTurns = 7;
// The cable counts as the bottleneck up to this multiple of M/B, the time that it needs. The same
// value is the goal of scenario `rack`.
constexpr double kWireBound = 1.10;
constexpr double kBitsPerMegabit = 1e6;

struct Contender {
  RackBox box;
  System system;
};

void set_rate(Rack& rack, const RackOptions& shape, uint32_t box_mbit) {
  Link link = shape.worker_link;
  link.bits_per_second = uint64_t{box_mbit} * 1'000'000 / shape.worker_count;
  for (const Host& host : rack.workers()) rack.set_link(host, link);
  link.bits_per_second *= shape.worker_count;
  for (uint32_t index = 0; index < shape.box_count; ++index) rack.set_link(rack.box(index), link);
}

nlohmann::json measure_rate(std::vector<Contender>& contenders, uint32_t box_mbit, double limit_ms,
                            uint32_t turns, std::ostream& report) {
  for (Contender& contender : contenders) {
    contender.system.ms.clear();
    contender.system.cpu_seconds.clear();
    contender.system.idle_shares.clear();
  }
  for (uint32_t turn = 0; turn < turns; ++turn) {
    for (size_t index = 0; index < contenders.size(); ++index) {
      Contender& contender = contenders[(turn + index) % contenders.size()];
      measure_once(contender.system, {contender.box.program.get()});
    }
  }
  nlohmann::json figures = {{"box_mbit", box_mbit}, {"limit_ms", limit_ms}};
  for (size_t index = 0; index < contenders.size(); ++index) {
    const System& system = contenders[index].system;
    const char* name = name_of(kSuites[index]);
    const Spread over_off = spread(ratios(system.ms, contenders[0].system.ms));
    nlohmann::json own = figures_of(system, limit_ms);
    report << std::setw(8) << box_mbit << std::setw(6) << name << std::fixed << std::setprecision(1)
           << std::setw(10) << own["median_ms"].get<double>() << std::setprecision(3)
           << std::setw(10) << own["over_limit"].get<double>() << std::setprecision(2)
           << std::setw(8) << own["cores_used"].get<double>();
    print(over_off, report);
    report << std::endl;
    own["over_off"] = to_json(over_off);
    figures[name] = std::move(own);
  }
  return figures;
}

}  // namespace

nlohmann::json measure_rack(const SecureOptions& options, std::ostream& report) {
  const KeyFolders keys;
  const RackOptions shape{.worker_count = given_or(options.workers, kRackWorkers),
                          .box_count = std::size(kSuites),
                          .worker_link = {},
                          .box_link = {}};
  Rack rack(shape);
  std::vector<Contender> contenders;
  for (const seal::Suite suite : kSuites) {
    const auto index = static_cast<uint32_t>(contenders.size());
    RackBox box = rack.start_box(index, keys.box_flags(suite));
    const PeerOptions peer{.worker_count = shape.worker_count,
                           .box = box.control,
                           .keys = keys.workers(suite),
                           .hosts = worker_hosts(rack)};
    System system = start_system(rack, "pbox", peer);
    contenders.push_back({std::move(box), std::move(system)});
  }
  const double model_bits =
      static_cast<double>(element_count(tensors_of(resnet50_layers()))) * sizeof(float) * 8;
  report << "  Mbit/s  keys        ms  over M/B   cores             time over off\n";
  nlohmann::json figures;
  for (uint32_t box_mbit = options.first_rate_mbit;; box_mbit *= 2) {
    set_rate(rack, shape, box_mbit);
    const double worker_mbit = static_cast<double>(box_mbit) / shape.worker_count;
    const double limit_ms = model_bits / (worker_mbit * kBitsPerMegabit) * 1e3;
    figures.push_back(
        measure_rate(contenders, box_mbit, limit_ms, given_or(options.turns, kRackTurns), report));
    const nlohmann::json& off = figures.back()[name_of(seal::Suite::kNone)];
    if (off["over_limit"].get<double>() > kWireBound) return figures;
  }
}

}  // namespace pbox::perf
