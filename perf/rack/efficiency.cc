// Scenario `efficiency`: the CPU time that box and workers take per gigabyte of gradient, over
// cables of several rates. It is compared with that of a server which returns the same bytes over
// TCP sockets and sums nothing. The two take turns on one rack.
#include <algorithm>
#include <iomanip>
#include <sstream>
#include <stdexcept>

#include "perf/lists.h"
#include "perf/measure.h"
#include "perf/rack/systems.h"
#include "perf/scenario.h"

namespace pbox::perf::rack_efficiency {
namespace {

constexpr uint32_t kWorkersMax = 64;
constexpr uint32_t kMegabitsMax = 400'000;
constexpr int kStartLimitMs = 30'000;

void add_options(po::options_description& options) {
  options.add_options()("workers", po::value<uint32_t>()->default_value(4), "worker machines")(
      "model", po::value<std::string>()->default_value("resnet50"), kModelHelp)(
      "rates-mbit", po::value<std::string>()->default_value("250,1000,0"),
      "rates of the box's cable, in Mbit/s of Ethernet frames, separated by commas; each worker's "
      "cable has this rate divided by --workers. 0: the cables are not shaped")(
      "mtu", po::value<uint32_t>()->default_value(9000), "MTU of every machine")(
      "turns", po::value<uint32_t>()->default_value(5), "timed exchanges per system and rate")(
      "box-flags", po::value<std::vector<std::string>>()->default_value({}, ""),
      "an additional flag for pboxd; can be repeated");
}

struct EchoServer {
  std::unique_ptr<Program> program;
  std::string address;  // HOST:PORT
};

EchoServer start_echo(const Rack& rack) {
  EchoServer server{
      rack.run(rack.box(0), {sibling_program("pbox-peer-tcp"), "--serve", rack.box(0).address}),
      ""};
  std::istringstream words(server.program->read_line(kStartLimitMs));
  std::string ready;
  if (!(words >> ready >> server.address)) throw std::runtime_error("pbox-peer-tcp did not start");
  return server;
}

// CPU seconds per gigabyte of gradient that the workers push, by turn.
struct Cost {
  std::vector<double> box, workers, all, ms;
};

Cost cost_of(const System& system, double gigabytes) {
  Cost cost;
  cost.ms = system.ms;
  for (size_t turn = 0; turn < system.ms.size(); ++turn) {
    cost.box.push_back(system.box_cpu_seconds[turn] / gigabytes);
    cost.all.push_back(system.cpu_seconds[turn] / gigabytes);
    cost.workers.push_back(cost.all.back() - cost.box.back());
  }
  return cost;
}

nlohmann::json to_json(const Cost& cost) {
  return {{"box_s_per_gb", median(cost.box)},
          {"workers_s_per_gb", median(cost.workers)},
          {"ms", median(cost.ms)}};
}

nlohmann::json measure(const po::variables_map& options, uint32_t box_mbit, std::ostream& report) {
  PeerOptions peer{.model = options["model"].as<std::string>(),
                   .worker_count = options["workers"].as<uint32_t>()};
  const Link link{.bits_per_second = uint64_t{box_mbit} * 1'000'000 / peer.worker_count};
  const Rack rack(balanced_rack(peer.worker_count, options["mtu"].as<uint32_t>(), link));
  const RackBox box = rack.start_box(0, options["box-flags"].as<std::vector<std::string>>());
  const EchoServer echo = start_echo(rack);
  peer.hosts = worker_hosts(rack);
  peer.box = box.control;
  System ours = start_system(rack, "pbox", peer);
  peer.box = echo.address;
  System tcp = start_system(rack, "tcp", peer);

  const auto turns = std::max(1u, options["turns"].as<uint32_t>());
  for (uint32_t turn = 0; turn < turns; ++turn) {
    const bool first = turn % 2 == 0;
    for (const bool is_ours : {first, !first}) {
      measure_once(is_ours ? ours : tcp, {is_ours ? box.program.get() : echo.program.get()});
    }
    report << "\r  turn " << turn + 1 << "/" << turns << std::flush;
  }
  report << "\r";
  ours.program->finish();
  tcp.program->finish();

  const auto model = model_by_name(peer.model);
  const double gigabytes =
      static_cast<double>(element_count(*model) * sizeof(float)) * peer.worker_count / 1e9;
  const Cost cost = cost_of(ours, gigabytes), of_tcp = cost_of(tcp, gigabytes);
  return {{"rate_mbit", box_mbit},
          {"pbox", to_json(cost)},
          {"tcp", to_json(of_tcp)},
          {"box_over_tcp", median_ratio(cost.box, of_tcp.box)},
          {"workers_over_tcp", median_ratio(cost.workers, of_tcp.workers)},
          {"all_over_tcp", median_ratio(cost.all, of_tcp.all)}};
}

void print_row(const nlohmann::json& row, std::ostream& report) {
  report << std::setw(10);
  if (row["rate_mbit"] == 0) {
    report << "unshaped";
  } else {
    report << row["rate_mbit"].get<uint32_t>();
  }
  report << std::fixed << std::setprecision(3);
  for (const char* system : {"pbox", "tcp"}) {
    for (const char* part : {"box_s_per_gb", "workers_s_per_gb"}) {
      report << std::setw(10) << row[system][part].get<double>();
    }
  }
  report << std::setprecision(2);
  for (const char* ratio : {"box_over_tcp", "workers_over_tcp", "all_over_tcp"}) {
    report << std::setw(9) << row[ratio].get<double>();
  }
  report << std::endl;
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  if (options["workers"].as<uint32_t>() - 1 >= kWorkersMax) {
    throw std::runtime_error("--workers must be in [1, 64]");
  }
  const auto model = model_by_name(options["model"].as<std::string>());
  if (!model) throw std::runtime_error(model.error().message);
  report << "CPU seconds per GB of gradient; the box's cable in Mbit/s\n"
            "     cable  PBox: box   workers  TCP: box   workers  box over TCP, workers, all\n";
  nlohmann::json rows = nlohmann::json::array();
  for (const uint32_t rate :
       numbers_of("--rates-mbit", options["rates-mbit"].as<std::string>(), 0, kMegabitsMax)) {
    rows.push_back(measure(options, rate, report));
    print_row(rows.back(), report);
  }
  return {{"model", options["model"].as<std::string>()},
          {"workers", options["workers"].as<uint32_t>()},
          {"mtu", options["mtu"].as<uint32_t>()},
          {"rates", rows}};
}

const ScenarioRegistration kRegistration({.name = "efficiency",
                                          .summary = "CPU time per GB of box and workers, compared"
                                                     " with TCP sockets, over slow and fast cables",
                                          .add_options = add_options,
                                          .run = run});

}  // namespace
}  // namespace pbox::perf::rack_efficiency
