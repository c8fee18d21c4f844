// pbox-rack-worker: one rank that plays the trace of a model (player.h). It prints {"ready":true}
// when all ranks have joined. Then it reads commands from its standard input, one line of JSON
// each:
//
//   in:  {"iterations":5,"compute_ms":500,"spans":false}
//   out: {"iteration_ms":[...],"wrong":0,"retransmitted":0,"cpu_s":0.1,"spans":[...]}
//
// It exits at the end of the input.
#include <boost/program_options.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "perf/peers/peer.h"
#include "perf/rack/player.h"

namespace {

namespace po = boost::program_options;

pbox::perf::PlayerOptions parse(int argc, char** argv) {
  pbox::perf::PlayerOptions options;
  po::options_description description("pbox-rack-worker");
  description.add_options()("box", po::value(&options.box)->required())(
      "job", po::value(&options.job)->required())("rank", po::value(&options.rank)->required())(
      "workers", po::value(&options.worker_count)->required())("model", po::value(&options.model))(
      "scale", po::value(&options.scale))("chunk-bytes", po::value(&options.chunk_bytes))(
      "window-bytes", po::value(&options.window_bytes))("policy", po::value(&options.policy))(
      "delivery", po::value(&options.delivery))("recovers", po::value(&options.recovers))(
      "optimizer", po::value(&options.optimizer));
  po::variables_map values;
  po::store(po::parse_command_line(argc, argv, description), values);
  po::notify(values);
  return options;
}

nlohmann::json obey(pbox::perf::Player& player, const nlohmann::json& command) {
  const double cpu_start = pbox::perf::process_cpu_seconds();
  const uint64_t retransmitted = player.statistics().retransmitted_fragments;
  const auto run = player.play(command.at("iterations"), command.at("compute_ms"),
                               command.value("spans", false));
  return {{"iteration_ms", run.iteration_ms},
          {"wrong", run.wrong},
          {"retransmitted", player.statistics().retransmitted_fragments - retransmitted},
          {"cpu_s", pbox::perf::process_cpu_seconds() - cpu_start},
          {"spans", to_json(run.spans)}};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    pbox::perf::Player player(parse(argc, argv));
    std::cout << R"({"ready":true})" << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << obey(player, nlohmann::json::parse(line)).dump() << std::endl;
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "pbox-rack-worker: " << error.what() << "\n";
    return 1;
  }
}
