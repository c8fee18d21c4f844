// Runs one to eight jobs at the same time through one box, whose cable is the bottleneck. The rate
// of each job is compared with its fair share: the rate that it has alone, over the number of jobs.
#include <algorithm>
#include <iomanip>
#include <memory>
#include <numeric>

#include "perf/measure.h"
#include "perf/phub/parts.h"
#include "perf/rack/cluster.h"
#include "perf/rack/job.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kJobsMax = 8;
constexpr uint32_t kWorkersPerJob = 2;
constexpr double kMegabits = 400;
constexpr uint32_t kIterationsMin = 4;
constexpr uint32_t kIterationsAlone = 16;

struct Shares {
  std::vector<double> least, mean, most, fairness;  // by turn
};

// Jain's index: 1 if all values are equal, 1/n if one of n has everything (Jain, Chiu, Hawe, 1984).
double fairness_index(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  return sum * sum / (static_cast<double>(values.size()) * squares);
}

// Runs the first `count` jobs at the same time, and adds their least, mean and largest share to
// `shares`. `alone_ms`: time of an iteration of each job when it runs alone.
void run_beside(const std::vector<std::unique_ptr<RackJob>>& jobs, uint32_t count,
                const std::vector<double>& alone_ms, Shares& shares) {
  const uint32_t iterations = std::max(kIterationsMin, 2 * kIterationsAlone / count);
  for (uint32_t job = 0; job < count; ++job) jobs[job]->begin(iterations, 0);
  std::vector<std::vector<double>> iteration_ms;
  double window_ms = 1e300;  // until then, all jobs run
  for (uint32_t job = 0; job < count; ++job) {
    iteration_ms.push_back(jobs[job]->end().iteration_ms);
    window_ms = std::min(window_ms, total_ms(iteration_ms.back()));
  }
  std::vector<double> own;
  for (uint32_t job = 0; job < count; ++job) {
    const double fair = window_ms / (alone_ms[job] * count);
    own.push_back(iterations_within(iteration_ms[job], window_ms) / fair);
  }
  shares.least.push_back(*std::min_element(own.begin(), own.end()));
  shares.most.push_back(*std::max_element(own.begin(), own.end()));
  shares.mean.push_back(std::accumulate(own.begin(), own.end(), 0.0) / count);
  shares.fairness.push_back(fairness_index(own));
}

}  // namespace

nlohmann::json measure_neighbours(const PhubSettings& settings, std::ostream& report) {
  const auto link = RackCluster::link(kMegabits);
  Rack rack({.worker_count = kJobsMax * kWorkersPerJob, .worker_link = link, .box_link = link});
  const RackBox box = rack.start_box(0, phub_box_flags());
  std::vector<std::unique_ptr<RackJob>> jobs;
  for (uint32_t index = 0; index < kJobsMax; ++index) {
    const std::string tenant = "tenant" + std::to_string(index);
    jobs.push_back(std::make_unique<RackJob>(rack,
                                             PlayerOptions{.box = box.control,
                                                           .job = tenant + "/job",
                                                           .model = "resnet56",
                                                           .optimizer = "nesterov"},
                                             index * kWorkersPerJob, kWorkersPerJob));
  }
  const auto counts =
      settings.whole ? std::vector<uint32_t>{1, 2, 3, 4, 6, 8} : std::vector<uint32_t>{1, 2, 4, 8};
  std::vector<Shares> shares(counts.size());
  for (uint32_t turn = 0; turn < settings.turns; ++turn) {
    std::vector<double> alone_ms;
    for (const auto& job : jobs)
      alone_ms.push_back(median(job->play(kIterationsMin, 0).iteration_ms));
    for (size_t index = 0; index < counts.size(); ++index) {
      run_beside(jobs, counts[index], alone_ms, shares[index]);
      report << "\r  turn " << turn + 1 << "/" << settings.turns << ", " << counts[index]
             << " jobs " << std::flush;
    }
  }
  for (const auto& job : jobs) job->finish();
  report << "\rtenants: rate over the fair share (the rate alone, over the number of jobs)\n"
         << "  jobs   least    mean    most  Jain's index\n";
  nlohmann::json rows = nlohmann::json::array();
  for (size_t index = 0; index < counts.size(); ++index) {
    const Shares& own = shares[index];
    rows.push_back({{"jobs", counts[index]},
                    {"least", median(own.least)},
                    {"mean", median(own.mean)},
                    {"most", median(own.most)},
                    {"fairness", median(own.fairness)}});
    report << std::fixed << std::setprecision(2) << std::setw(6) << counts[index] << std::setw(8)
           << median(own.least) << std::setw(8) << median(own.mean) << std::setw(8)
           << median(own.most) << std::setprecision(3) << std::setw(14) << median(own.fairness)
           << "\n";
  }
  report << std::endl;
  return rows;
}

}  // namespace pbox::perf
