// Compares three places for the boxes of a job on one rack. All run the same pboxd; only the cables
// that gradients and results take differ.
#include <iomanip>
#include <iterator>
#include <memory>

#include "base/clock.h"
#include "perf/measure.h"
#include "perf/peers/peer.h"
#include "perf/phub/parts.h"
#include "perf/phub/places.h"
#include "perf/rack/cluster.h"
#include "perf/rack/job.h"

namespace pbox::perf {
namespace {

constexpr size_t kPlaceCount = std::size(kBoxPlaces);

constexpr size_t kProgressWidth = 40;

size_t index_of(BoxPlace place) {
  return static_cast<size_t>(place);
}

// A rack with W worker machines, one machine with a cable of W times a worker's rate for the
// central box, and W more machines like a worker's for the sharded boxes. Colocated boxes are on
// worker machines.
class PlacementRack {
 public:
  PlacementRack(uint32_t workers, double worker_megabits)
      : cluster_({.workers = workers,
                  .boxes = 1 + workers,
                  .worker_megabits = worker_megabits,
                  .box_megabits = worker_megabits}) {
    Rack& rack = cluster_.rack();
    rack.set_link(rack.box(0), RackCluster::link(worker_megabits * workers));
    add(BoxPlace::kCentral, rack.start_box(0, phub_box_flags()));
    const std::vector<std::string> flags = {kPatience, "--cluster.rebalance=false",
                                            "--cluster.lease_ttl_s=60"};
    for (uint32_t index = 0; index < workers; ++index) {
      add(BoxPlace::kSharded, cluster_.start_box(to_string(BoxPlace::kSharded), index + 1, flags));
      add(BoxPlace::kColocated,
          cluster_.start_box(to_string(BoxPlace::kColocated), RackCluster::box_name(index + 1),
                             rack.worker(index), flags));
    }
    cluster_.await_boxes(to_string(BoxPlace::kSharded), workers);
    cluster_.await_boxes(to_string(BoxPlace::kColocated), workers);
  }

  const Rack& rack() { return cluster_.rack(); }
  // Gives each of several boxes only one part of a new job, so that a worker has as few lanes to
  // each box as to the central one. More lanes put more bytes in flight, because a lane's window
  // has at least two chunks.
  void plan(const std::string& job, uint64_t model_bytes) const {
    for (const BoxPlace place : {BoxPlace::kSharded, BoxPlace::kColocated}) {
      std::vector<std::string> boxes;
      for (uint32_t index = 0; index < boxes_[index_of(place)].size(); ++index) {
        boxes.push_back(RackCluster::box_name(index + 1));
      }
      cluster_.put_plan(to_string(place), job, model_bytes, std::move(boxes), false);
    }
  }
  const std::string& controls(BoxPlace place) const { return controls_[index_of(place)]; }
  double cpu_seconds(BoxPlace place) const {
    double seconds = 0;
    for (const RackBox& box : boxes_[index_of(place)])
      seconds += process_cpu_seconds(box.program->pid());
    return seconds;
  }

 private:
  void add(BoxPlace place, RackBox box) {
    std::string& list = controls_[index_of(place)];
    list += (list.empty() ? "" : ",") + box.control;
    boxes_[index_of(place)].push_back(std::move(box));
  }

  RackCluster cluster_;
  std::vector<RackBox> boxes_[kPlaceCount];
  std::string controls_[kPlaceCount];
};

struct Point {
  std::vector<double> iteration_ms[kPlaceCount], cores[kPlaceCount];  // by turn
  uint64_t retransmitted[kPlaceCount] = {};
};

Point measure_point(PlacementRack& rack, const PhubSettings& settings,
                    const std::string& optimizer) {
  rack.plan(optimizer, played_bytes(settings.model, settings.scale));
  std::vector<std::unique_ptr<RackJob>> jobs;
  for (const BoxPlace place : kBoxPlaces) {
    jobs.push_back(std::make_unique<RackJob>(rack.rack(), PlayerOptions{.box = rack.controls(place),
                                                                        .job = optimizer,
                                                                        .model = settings.model,
                                                                        .scale = settings.scale,
                                                                        .optimizer = optimizer}));
  }
  Point point;
  for (uint32_t turn = 0; turn < settings.turns; ++turn) {
    for (size_t index = 0; index < kPlaceCount; ++index) {
      const size_t at = (turn + index) % kPlaceCount;
      const BoxPlace place = kBoxPlaces[at];
      const double cpu_start = rack.cpu_seconds(place);
      const uint64_t start_ns = monotonic_ns();
      const auto run = jobs[at]->play(settings.iterations, 0);
      const double seconds = static_cast<double>(monotonic_ns() - start_ns) * 1e-9;
      point.cores[at].push_back((run.cpu_seconds + rack.cpu_seconds(place) - cpu_start) / seconds);
      point.iteration_ms[at].push_back(median(run.iteration_ms));
      point.retransmitted[at] += run.retransmitted;
    }
  }
  for (const auto& job : jobs) job->finish();
  return point;
}

nlohmann::json figures_of(const Point& point, uint32_t workers, double limit_ms) {
  nlohmann::json figures;
  const auto& central_ms = point.iteration_ms[index_of(BoxPlace::kCentral)];
  for (const BoxPlace place : kBoxPlaces) {
    const size_t at = index_of(place);
    const double ms = median(point.iteration_ms[at]);
    const double load = cable_load(place, workers);
    figures[to_string(place)] = {{"ms", ms},
                                 {"over_limit", ms / (limit_ms * load)},
                                 {"cores", median(point.cores[at])},
                                 {"retransmitted", point.retransmitted[at]}};
    if (place == BoxPlace::kCentral) continue;
    figures["central_over"][to_string(place)] = median_ratio(point.iteration_ms[at], central_ms);
    figures["cables_allow"][to_string(place)] = load;
  }
  return figures;
}

void print_row(const nlohmann::json& row, std::ostream& report) {
  report << "\r" << std::string(kProgressWidth, ' ') << "\r  " << std::setw(2)
         << row["workers"].get<uint32_t>() << "  " << std::left << std::setw(10)
         << row["optimizer"].get<std::string>() << std::right << std::fixed;
  for (const BoxPlace place : kBoxPlaces) {
    const auto& own = row[to_string(place)];
    report << std::setprecision(0) << std::setw(8) << own["ms"].get<double>()
           << std::setprecision(2) << std::setw(6) << own["over_limit"].get<double>();
  }
  for (const BoxPlace place : {BoxPlace::kSharded, BoxPlace::kColocated}) {
    report << std::setprecision(2) << std::setw(9)
           << row["central_over"][to_string(place)].get<double>() << std::setw(6)
           << row["cables_allow"][to_string(place)].get<double>();
  }
  report << std::setw(8) << row["central"]["cores"].get<double>() << std::setw(6)
         << row["colocated"]["cores"].get<double>() << std::endl;
}

}  // namespace

nlohmann::json measure_placements(const PhubSettings& settings, std::ostream& report) {
  const double model_bits = static_cast<double>(played_bytes(settings.model, settings.scale)) * 8;
  const std::vector<std::string> optimizers =
      settings.whole ? std::vector<std::string>{"none", "sgd", "nesterov", "adam"}
                     : std::vector<std::string>{"none", "nesterov"};
  report << "placement: ms per exchange (divided by the time that the cables allow), and speed-up "
            "of the central box (and what the cables allow)\n"
            "   W  optimizer  central       sharded       colocated     over sharded   over "
            "colocated   cores\n";
  nlohmann::json rows = nlohmann::json::array();
  for (const uint32_t workers : settings.workers) {
    const double worker_megabits = settings.megabits / workers;
    const double limit_ms = model_bits / (worker_megabits * 1e3);
    PlacementRack rack(workers, worker_megabits);
    for (const std::string& optimizer : optimizers) {
      report << "  W = " << workers << ", " << optimizer << " ..." << std::flush;
      nlohmann::json row = figures_of(measure_point(rack, settings, optimizer), workers, limit_ms);
      row["workers"] = workers;
      row["optimizer"] = optimizer;
      row["worker_mbit"] = worker_megabits;
      row["limit_ms"] = limit_ms;
      print_row(row, report);
      rows.push_back(std::move(row));
    }
  }
  report << "\n";
  return rows;
}

}  // namespace pbox::perf
