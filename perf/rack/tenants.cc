// Two tenants exchange beside each other through one box, whose cable is the bound, without
// computing. The scenario compares their rates with their weights ([jobs] tenants), and each rate
// with that of the tenant alone. Every rank checks every sum.
#include <algorithm>
#include <iomanip>
#include <stdexcept>

#include "perf/measure.h"
#include "perf/rack/job.h"
#include "perf/scenario.h"

namespace pbox::perf::rack_tenants {
namespace {

void add_options(po::options_description& options) {
  options.add_options()("workers", po::value<uint32_t>()->default_value(2),
                        "worker machines of each tenant")(
      "more-workers", po::value<uint32_t>()->default_value(0),
      "additional worker machines of the second tenant")(
      "weight", po::value<uint32_t>()->default_value(3),
      "weight of the second tenant; the first has 1")(
      "model", po::value<std::string>()->default_value("resnet56"), kModelHelp)(
      "rate-mbit", po::value<uint32_t>()->default_value(400),
      "rate of every cable, in Mbit/s of Ethernet frames")(
      "iterations", po::value<uint32_t>()->default_value(20),
      "exchanges of the first tenant in each turn")(
      "turns", po::value<uint32_t>()->default_value(5),
      "number of turns in which both tenants run at the same time");
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const auto workers = options["workers"].as<uint32_t>();
  const auto more = options["more-workers"].as<uint32_t>();
  const auto weight = options["weight"].as<uint32_t>();
  const auto iterations = std::max(3u, options["iterations"].as<uint32_t>());
  if (workers == 0 || weight == 0) {
    throw std::runtime_error("--workers and --weight must be at least 1");
  }
  const Link link{.bits_per_second = uint64_t{options["rate-mbit"].as<uint32_t>()} * 1'000'000};
  Rack rack({.worker_count = 2 * workers + more, .worker_link = link, .box_link = link});
  const RackBox box =
      rack.start_box(0, {"--jobs.tenants=first weight=1; second weight=" + std::to_string(weight)});
  PlayerOptions player;
  player.box = box.control;
  player.model = options["model"].as<std::string>();
  player.job = "first/job";
  RackJob first(rack, player, 0, workers);
  player.job = "second/job";
  RackJob second(rack, player, workers, workers + more);

  std::vector<double> ratios, first_shares, second_shares;
  const auto turns = std::max(1u, options["turns"].as<uint32_t>());
  for (uint32_t turn = 0; turn < turns; ++turn) {
    const double first_alone_ms = median(first.play(iterations, 0).iteration_ms);
    const double second_alone_ms = median(second.play(iterations, 0).iteration_ms);
    first.begin(iterations, 0);
    second.begin(iterations * weight, 0);
    const std::vector<double> first_ms = first.end().iteration_ms;
    const std::vector<double> second_ms = second.end().iteration_ms;
    const double both_ms = std::min(total_ms(first_ms), total_ms(second_ms));
    const double first_done = iterations_within(first_ms, both_ms);
    const double second_done = iterations_within(second_ms, both_ms);
    const double scale = double(workers + more) / workers;  // bytes of an iteration at the box
    ratios.push_back(second_done * scale / first_done);
    first_shares.push_back(first_done * first_alone_ms / both_ms);
    second_shares.push_back(second_done * second_alone_ms / both_ms);
    report << "\r  turn " << turn + 1 << "/" << turns << std::flush;
  }
  first.finish();
  second.finish();
  const nlohmann::json figures = {{"workers", workers},
                                  {"more_workers", more},
                                  {"weight", weight},
                                  {"turns", turns},
                                  {"rate_ratio", median(ratios)},
                                  {"rate_ratio_over_weight", median(ratios) / weight},
                                  {"first_share", median(first_shares)},
                                  {"second_share", median(second_shares)}};
  report << "\r  the second tenant's rate is " << std::fixed << std::setprecision(2)
         << median(ratios) << " times the first one's; their weights are " << weight
         << ":1\n  the first tenant reaches " << median(first_shares)
         << " of its rate alone, and the second " << median(second_shares) << "\n";
  return figures;
}

const ScenarioRegistration kRegistration(
    {.name = "tenants",
     .summary = "rates of two tenants that share a box, compared with their weights",
     .add_options = add_options,
     .run = run});

}  // namespace
}  // namespace pbox::perf::rack_tenants
