// W workers exchange the gradients of a model through a box on a shaped rack: as f32, as bf16,
// compressed, as libpbox chooses, and as f32 of which nine of ten blocks are zero. The box's cable
// has W times a worker's rate. The forms take turns. The scenario compares the rates of exchanged
// values with that of bf16, for each rate of the cables.
#include <algorithm>
#include <iomanip>
#include <stdexcept>
#include <string>
#include <vector>

#include "perf/lists.h"
#include "perf/measure.h"
#include "perf/rack/systems.h"
#include "perf/scenario.h"

namespace pbox::perf::rack_compress {
namespace {

constexpr uint32_t kWorkersMax = 64;
constexpr uint32_t kRateMbitMax = 1'000'000;
constexpr const char* kForms = "f32,bf16,q8,q4,auto,zeros";
constexpr uint32_t kWarmupOfAuto = 40;  // two windows of 16 exchanges to try, and some that settle

void add_options(po::options_description& options) {
  options.add_options()("workers", po::value<uint32_t>()->default_value(4), "worker machines")(
      "model", po::value<std::string>()->default_value("resnet50"), kModelHelp)(
      "rates-mbit", po::value<std::string>()->default_value("100,1000"),
      "rates of a worker's cable, in Mbit/s of Ethernet frames, separated by commas; the box's "
      "cable has --workers times this rate")("mtu", po::value<uint32_t>()->default_value(1500),
                                             "MTU of every machine")(
      "turns", po::value<uint32_t>()->default_value(3), "timed exchanges per form")(
      "forms", po::value<std::string>()->default_value(kForms),
      "forms of gradients, separated by commas; must include bf16");
}

nlohmann::json measure_rate(const po::variables_map& options, uint32_t rate_mbit, uint64_t values,
                            std::ostream& report) {
  const auto workers = options["workers"].as<uint32_t>();
  Rack rack(balanced_rack(workers, options["mtu"].as<uint32_t>(),
                          {.bits_per_second = uint64_t{rate_mbit} * 1'000'000}));
  const RackBox box = rack.start_box(0, {});
  PeerOptions peer{.model = options["model"].as<std::string>(),
                   .worker_count = workers,
                   .box = box.control,
                   .hosts = worker_hosts(rack)};
  const std::vector<std::string> forms = entries_of(options["forms"].as<std::string>());
  const auto bf16 = std::find(forms.begin(), forms.end(), "bf16");
  if (bf16 == forms.end()) throw std::runtime_error("--forms must include bf16");
  std::vector<System> systems;
  for (const std::string& form : forms) {
    peer.values = form;
    peer.warmup = peer.values == "auto" ? kWarmupOfAuto : PeerOptions{}.warmup;
    systems.push_back(start_system(rack, "pbox", peer));
  }
  const auto turns = std::max(1u, options["turns"].as<uint32_t>());
  for (uint32_t turn = 0; turn < turns; ++turn) {
    for (size_t index = 0; index < systems.size(); ++index) {
      measure_once(systems[(turn + index) % systems.size()], {box.program.get()});
    }
    report << "\r  " << rate_mbit << " Mbit/s: turn " << turn + 1 << "/" << turns << std::flush;
  }
  report << "\r";
  for (System& system : systems) system.program->finish();
  nlohmann::json figures = {{"rate_mbit", rate_mbit}};
  for (size_t index = 0; index < systems.size(); ++index) {
    const double ms = median(systems[index].ms);
    figures["forms"][forms[index]] = {
        {"median_ms", ms},
        {"million_values_per_s", static_cast<double>(values) / ms / 1e3},
        {"cores_used", median(systems[index].cpu_seconds) * 1e3 / ms},
        {"over_bf16",
         median_ratio(systems[static_cast<size_t>(bf16 - forms.begin())].ms, systems[index].ms)}};
  }
  return figures;
}

void print_rate(const nlohmann::json& figures, const std::string& forms, std::ostream& report) {
  for (const std::string& form : entries_of(forms)) {
    const auto& one = figures["forms"][form];
    report << std::setw(8) << figures["rate_mbit"] << "  " << std::left << std::setw(6) << form
           << std::right << std::fixed << std::setprecision(1) << std::setw(12)
           << one["median_ms"].get<double>() << std::setw(14)
           << one["million_values_per_s"].get<double>() << std::setprecision(2) << std::setw(12)
           << one["over_bf16"].get<double>() << std::setw(12) << one["cores_used"].get<double>()
           << "\n";
  }
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  if (options["workers"].as<uint32_t>() - 1 >= kWorkersMax) {
    throw std::runtime_error("--workers must be in [1, 64]");
  }
  const auto model = model_by_name(options["model"].as<std::string>());
  if (!model) throw std::runtime_error(model.error().message);
  nlohmann::json figures = {{"model", options["model"].as<std::string>()},
                            {"workers", options["workers"].as<uint32_t>()},
                            {"mtu", options["mtu"].as<uint32_t>()},
                            {"values", element_count(*model)}};
  report << "  Mbit/s  form     median ms  M values/s  over bf16  cores used\n";
  for (const uint32_t rate_mbit :
       numbers_of("--rates-mbit", options["rates-mbit"].as<std::string>(), 1, kRateMbitMax)) {
    figures["rates"].push_back(measure_rate(options, rate_mbit, element_count(*model), report));
    print_rate(figures["rates"].back(), options["forms"].as<std::string>(), report);
  }
  return figures;
}

const ScenarioRegistration kRegistration(
    {.name = "compress",
     .summary = "an exchange on a shaped rack as f32, as bf16, compressed and sparse",
     .add_options = add_options,
     .run = run});

}  // namespace
}  // namespace pbox::perf::rack_compress
