#include "perf/rack/job.h"

#include <numeric>
#include <stdexcept>
#include <utility>

namespace pbox::perf {
namespace {

constexpr int kAnswerLimitMs = 600'000;

std::vector<std::string> worker_command(const PlayerOptions& options) {
  return {sibling_program("pbox-rack-worker"),
          "--box=" + options.box,
          "--job=" + options.job,
          "--rank=" + std::to_string(options.rank),
          "--workers=" + std::to_string(options.worker_count),
          "--model=" + options.model,
          "--scale=" + std::to_string(options.scale),
          "--chunk-bytes=" + std::to_string(options.chunk_bytes),
          "--window-bytes=" + std::to_string(options.window_bytes),
          "--policy=" + options.policy,
          "--delivery=" + options.delivery,
          "--recovers=" + std::to_string(options.recovers ? 1 : 0),
          "--optimizer=" + options.optimizer};
}

}  // namespace

RackJob::RackJob(const Rack& rack, PlayerOptions options)
    : RackJob(rack, std::move(options), 0, static_cast<uint32_t>(rack.workers().size())) {}

RackJob::RackJob(const Rack& rack, PlayerOptions options, uint32_t first_machine, uint32_t machines)
    : name_(options.job) {
  options.worker_count = machines;
  for (options.rank = 0; options.rank < machines; ++options.rank) {
    ranks_.push_back(rack.run(rack.worker(first_machine + options.rank), worker_command(options)));
  }
  for (const auto& rank : ranks_) rank->read_line(kAnswerLimitMs);
}

void RackJob::begin(uint32_t iterations, double compute_ms, bool with_spans) {
  iterations_ = iterations;
  const nlohmann::json command = {
      {"iterations", iterations}, {"compute_ms", compute_ms}, {"spans", with_spans}};
  for (const auto& rank : ranks_) rank->write_line(command.dump());
}

RackJob::Run RackJob::end() {
  Run run;
  run.iteration_ms.resize(iterations_ - 1);
  for (const auto& rank : ranks_) {
    const auto answer = nlohmann::json::parse(rank->read_line(kAnswerLimitMs));
    if (answer.at("wrong").get<uint64_t>() != 0) {
      throw std::runtime_error("job " + name_ + " returned wrong sums: " + answer["wrong"].dump() +
                               " elements");
    }
    for (size_t index = 0; index < run.iteration_ms.size(); ++index) {
      run.iteration_ms[index] +=
          answer.at("iteration_ms").at(index).get<double>() / static_cast<double>(ranks_.size());
    }
    run.retransmitted += answer.at("retransmitted").get<uint64_t>();
    run.cpu_seconds += answer.at("cpu_s").get<double>();
    run.spans_by_rank.push_back(spans_from_json(answer.at("spans")));
  }
  return run;
}

void RackJob::finish() {
  for (const auto& rank : ranks_) rank->finish();
}

double total_ms(const std::vector<double>& iteration_ms) {
  return std::accumulate(iteration_ms.begin(), iteration_ms.end(), 0.0);
}

double mean_ms(const std::vector<double>& iteration_ms) {
  return total_ms(iteration_ms) / static_cast<double>(iteration_ms.size());
}

double iterations_within(const std::vector<double>& iteration_ms, double ms) {
  double count = 0;
  for (const double iteration : iteration_ms) {
    if (ms <= iteration) return count + ms / iteration;
    ms -= iteration;
    ++count;
  }
  return count;
}

}  // namespace pbox::perf
