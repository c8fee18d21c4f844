// Scenario `phub`: the experiments of PHub's paper (Luo et al., "Parameter Hub", SoCC 2018) with
// this box. perf/phub.md has the results, beside the paper's.
#include <algorithm>
#include <stdexcept>

#include "perf/lists.h"
#include "perf/phub/parts.h"
#include "perf/rack/trace.h"

namespace pbox::perf::phub_scenario {
namespace {

constexpr uint32_t kWorkersMax = 16;

struct Part {
  const char* name;
  nlohmann::json (*measure)(const PhubSettings& settings, std::ostream& report);
};
constexpr Part kParts[] = {{"placement", measure_placements},
                           {"chunks", measure_chunks},
                           {"loop", measure_hot_loop},
                           {"tenants", measure_neighbours}};

void add_options(po::options_description& options) {
  options.add_options()("part", po::value<std::string>()->default_value(""),
                        "measure only this part: placement, chunks, loop or tenants")(
      "whole",
      "measure all optimizers, chunk sizes and numbers of tenants, not only those that show the "
      "effect")("model", po::value<std::string>()->default_value("resnet50"), kModelHelp)(
      "scale", po::value<uint32_t>()->default_value(12),
      "divisor of the model on the rack: each tensor has its number of elements divided by this; "
      "the loop uses the whole model")("workers", po::value<std::string>()->default_value("2,4,8"),
                                       "worker machines of the placements, separated by commas")(
      "box-mbit", po::value<double>()->default_value(1000),
      "rate of the central box's cable, in Mbit/s; a worker's cable has this rate divided by the "
      "number of workers")("turns", po::value<uint32_t>()->default_value(3),
                           "turns of each alternative")(
      "iterations", po::value<uint32_t>()->default_value(5),
      "exchanges in a turn; the first is not counted");
}

PhubSettings settings_from(const po::variables_map& options) {
  PhubSettings settings{
      .model = options["model"].as<std::string>(),
      .scale = options["scale"].as<uint32_t>(),
      .workers = numbers_of("--workers", options["workers"].as<std::string>(), 2, kWorkersMax),
      .turns = options["turns"].as<uint32_t>(),
      .iterations = options["iterations"].as<uint32_t>(),
      .megabits = options["box-mbit"].as<double>(),
      .whole = options.count("whole") != 0};
  if (settings.scale == 0 || settings.turns == 0 || settings.iterations < 2 ||
      !(settings.megabits >= 1)) {
    throw std::runtime_error(
        "--scale, --turns and --box-mbit must be at least 1, and --iterations at least 2");
  }
  played_bytes(settings.model, settings.scale);  // throws if there is no such model
  return settings;
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const PhubSettings settings = settings_from(options);
  const auto only = options["part"].as<std::string>();
  nlohmann::json figures = {{"model", settings.model},
                            {"scale", settings.scale},
                            {"turns", settings.turns},
                            {"whole", settings.whole}};
  bool is_known = only.empty();
  for (const Part& part : kParts) {
    if (!only.empty() && only != part.name) continue;
    is_known = true;
    figures[part.name] = part.measure(settings, report);
  }
  if (!is_known) {
    throw std::runtime_error("--part '" + only +
                             "' is unknown: use placement, chunks, loop or tenants");
  }
  return figures;
}

const ScenarioRegistration kRegistration({.name = "phub",
                                          .summary = "a central box compared with sharded and "
                                                     "colocated boxes; chunk sizes, tall and wide, "
                                                     "cached and not, tenants",
                                          .add_options = add_options,
                                          .run = run});

}  // namespace
}  // namespace pbox::perf::phub_scenario
