// Compares P3 (Jayarajan et al., MLSys 2019) with the scheme that it replaces, on a shaped rack.
// Four jobs play the same trace of a model in turns, at several rates of the cables. With several
// boxes each job has a part on each of them.
//
//   baseline   whole tensors, first in first out, notify and pull, as MXNet with ps-lite
//   slicing    slices, each answered to all workers as soon as it is summed; first in first out
//   priority   whole tensors, notify and pull; the layer needed first goes first
//   p3         slices, answered at once; the layer needed first goes first
#include <algorithm>
#include <fstream>
#include <iomanip>
#include <map>
#include <stdexcept>

#include "base/clock.h"
#include "perf/lists.h"
#include "perf/measure.h"
#include "perf/peers/peer.h"
#include "perf/rack/cluster.h"
#include "perf/rack/job.h"
#include "perf/rack/processor.h"
#include "perf/scenario.h"

namespace pbox::perf::rack_p3 {
namespace {

struct Variant {
  const char* name;
  const char* policy;
  const char* delivery;
  bool sliced;
};

constexpr Variant kVariants[] = {{"baseline", "fifo", "pull", false},
                                 {"slicing", "fifo", "broadcast", true},
                                 {"priority", "explicit", "pull", false},
                                 {"p3", "explicit", "broadcast", true}};
constexpr size_t kVariantCount = std::size(kVariants);
constexpr size_t kBaseline = 0;
constexpr size_t kP3 = 3;

// Chunk size of variants without slices. A worker is notified of a whole tensor and pulls it whole,
// so with first in first out the chunk size changes nothing. With priorities, an urgent tensor can
// overtake between the chunks of another tensor. ps-lite cannot do that, so the variant "priority"
// is faster here than in ps-lite.
constexpr uint32_t kWholeTensorChunkBytes = 32 << 10;
constexpr uint32_t kChunkGranularity = 64;
constexpr uint32_t kPacketPayloadBytes = 8192;
constexpr uint32_t kBoxesMax = 16;

// Default scales. They cut models down to about 16 MiB, which two cores can carry.
struct ModelScale {
  const char* model;
  uint32_t scale;
};
constexpr ModelScale kScales[] = {{"resnet50", 6}, {"vgg19", 32}, {"sockeye", 6}};
constexpr uint32_t scale_of(std::string_view model) {
  for (const ModelScale& one : kScales) {
    if (model == one.model) return one.scale;
  }
  return 1;
}

struct Point {
  uint32_t boxes = 1;
  double ratio = 0;  // M/B divided by the computing time
  uint64_t bits_per_second = 0;
  std::vector<double> iteration_ms[kVariantCount];  // one per turn
  std::vector<double> idle_shares, cores_used;      // one per turn and variant
  uint64_t retransmitted = 0;
};

struct Settings {
  std::string model;
  std::vector<uint32_t> boxes;
  uint32_t workers, scale, mtu, queue_kib, turns, iterations, window_bytes, slice_parameters;
  double compute_ms;
  // Rate of a box's cable over a worker's. With 0 the boxes' cables together have the rate of all
  // workers' cables.
  double box_rate;
  std::vector<double> ratios;
  uint64_t model_bytes;
};

uint32_t slice_bytes(const Settings& settings) {
  const auto bytes = static_cast<uint32_t>(settings.slice_parameters * sizeof(float)) /
                     settings.scale / kChunkGranularity * kChunkGranularity;
  return std::max(bytes, kPacketPayloadBytes);
}

std::vector<double> parse_list(const std::string& text) {
  std::vector<double> numbers;
  for (const std::string& one : entries_of(text)) numbers.push_back(std::stod(one));
  return numbers;
}

std::vector<uint32_t> parse_boxes(const std::string& text) {
  std::vector<uint32_t> boxes;
  for (const double count : parse_list(text)) {
    if (count < 1 || count > kBoxesMax) {
      throw std::runtime_error("--boxes " + text + ": each number must be 1 to " +
                               std::to_string(kBoxesMax));
    }
    boxes.push_back(static_cast<uint32_t>(count));
  }
  if (boxes.empty()) throw std::runtime_error("--boxes is empty: give a number, for example 1");
  return boxes;
}

void add_options(po::options_description& options) {
  options.add_options()("model", po::value<std::string>()->default_value("resnet50"), kModelHelp)(
      "workers", po::value<uint32_t>()->default_value(4), "worker machines")(
      "boxes", po::value<std::string>()->default_value("1"),
      "number of boxes that a job is spread over; several numbers, as in 1,4, are measured by "
      "turns in one run")("box-rate", po::value<double>()->default_value(0),
                          "rate of each box's cable, as a multiple of a worker's; 0: the workers' "
                          "rates together, divided by the number of boxes")(
      "scale", po::value<uint32_t>()->default_value(0),
      "divisor of the model: the numbers of elements of tensors and slices are divided by this; 0: "
      "6, 32, 6 for resnet50, vgg19, sockeye")(
      "compute-ms", po::value<double>()->default_value(500),
      "computing time of one iteration; each layer's share follows from its multiplications")(
      "ratios", po::value<std::string>()->default_value("0.5,0.75,1,1.25,1.5,2,3"),
      "M/B (the time to send the model at a worker's rate) divided by --compute-ms; each ratio "
      "sets a rate")(
      "slice-parameters", po::value<uint32_t>()->default_value(50'000),
      "parameters per slice of the unscaled model; a scaled slice has at least 2048, one packet")(
      "window-bytes", po::value<uint32_t>()->default_value(0),
      "window of the workers per pipeline; 0: the window that the box grants")(
      "queue-kib", po::value<uint32_t>()->default_value(1024),
      "queue of the switch per port, in KiB")("mtu", po::value<uint32_t>()->default_value(9000),
                                              "MTU of every machine")(
      "iterations", po::value<uint32_t>()->default_value(5),
      "iterations per turn; the first is not counted")(
      "turns", po::value<uint32_t>()->default_value(3),
      "number of turns; each turn measures all points and variants")(
      "trace", po::value<std::string>()->default_value(""),
      "file for a timeline of baseline and p3 at the best point (open it in ui.perfetto.dev)")(
      "box-flags", po::value<std::vector<std::string>>()->default_value({}, ""),
      "an additional flag for pboxd; can be repeated");
}

Settings settings_from(const po::variables_map& options) {
  Settings settings{.model = options["model"].as<std::string>(),
                    .boxes = parse_boxes(options["boxes"].as<std::string>()),
                    .workers = options["workers"].as<uint32_t>(),
                    .scale = options["scale"].as<uint32_t>(),
                    .mtu = options["mtu"].as<uint32_t>(),
                    .queue_kib = options["queue-kib"].as<uint32_t>(),
                    .turns = std::max(1u, options["turns"].as<uint32_t>()),
                    .iterations = std::max(2u, options["iterations"].as<uint32_t>()),
                    .window_bytes = options["window-bytes"].as<uint32_t>(),
                    .slice_parameters = options["slice-parameters"].as<uint32_t>(),
                    .compute_ms = options["compute-ms"].as<double>(),
                    .box_rate = options["box-rate"].as<double>(),
                    .ratios = parse_list(options["ratios"].as<std::string>()),
                    .model_bytes = 0};
  if (settings.scale == 0) settings.scale = scale_of(settings.model);
  const auto layers = layers_by_name(settings.model);
  if (!layers) throw std::runtime_error(layers.error().message);
  std::vector<uint64_t> elements;
  played_layers(*layers, settings.scale, elements);
  for (const uint64_t count : elements) settings.model_bytes += count * sizeof(float);
  return settings;
}

std::vector<Point> points_of(const Settings& settings) {
  std::vector<Point> points;
  for (const uint32_t boxes : settings.boxes) {
    for (const double ratio : settings.ratios) {
      Point& point = points.emplace_back();
      point.boxes = boxes;
      point.ratio = ratio;
      point.bits_per_second = static_cast<uint64_t>(static_cast<double>(settings.model_bytes) * 8 /
                                                    (ratio * settings.compute_ms * 1e-3));
    }
  }
  return points;
}

// The rack, and for each number of boxes the jobs that are spread over that many boxes. Several
// boxes are a cluster, in which a job has one part on each of its boxes. Then each box has one
// pipeline.
class Experiment {
 public:
  Experiment(const Settings& settings, const std::vector<std::string>& box_flags)
      : settings_(settings) {
    const uint32_t boxes = *std::max_element(settings.boxes.begin(), settings.boxes.end());
    const uint32_t workers = settings.workers, mtu = settings.mtu;
    if (boxes > 1) {
      cluster_ = std::make_unique<RackCluster>(
          RackCluster::Options{.workers = workers, .boxes = boxes, .mtu = mtu});
    } else {
      single_ = std::make_unique<Rack>(RackOptions{.worker_count = workers,
                                                   .box_count = boxes,
                                                   .mtu = mtu,
                                                   .worker_link = {},
                                                   .box_link = {}});
    }
    for (uint32_t index = 0; index < boxes; ++index) {
      boxes_.push_back(cluster_ ? cluster_->start_box(kCluster, index, box_flags)
                                : single_->start_box(index, box_flags));
    }
    if (cluster_) cluster_->await_boxes(kCluster, boxes);
    for (const uint32_t count : settings.boxes) start_jobs(count);
  }

  void set_rate(const Point& point) {
    const auto link = [this](double bits_per_second) {
      return Link{.bits_per_second = static_cast<uint64_t>(bits_per_second),
                  .queue_bytes = uint64_t{settings_.queue_kib} << 10};
    };
    const auto rate = static_cast<double>(point.bits_per_second);
    const double box_rate =
        settings_.box_rate > 0 ? settings_.box_rate : 1.0 * settings_.workers / point.boxes;
    for (const Host& worker : rack().workers()) rack().set_link(worker, link(rate));
    for (uint32_t index = 0; index < boxes_.size(); ++index) {
      rack().set_link(rack().box(index), link(rate * box_rate));
    }
  }

  void measure(Point& point, size_t variant) {
    const ProcessorTimes start = processor_times();
    const uint64_t start_ns = monotonic_ns();
    const double boxes_cpu_start = boxes_cpu_seconds();
    const auto run =
        jobs_.at(point.boxes)[variant]->play(settings_.iterations, settings_.compute_ms);
    const double cpu_seconds = run.cpu_seconds + boxes_cpu_seconds() - boxes_cpu_start;
    point.cores_used.push_back(cpu_seconds /
                               (static_cast<double>(monotonic_ns() - start_ns) * 1e-9));
    point.idle_shares.push_back(idle_share(start, processor_times()));
    point.iteration_ms[variant].push_back(median(run.iteration_ms));
    point.retransmitted += run.retransmitted;
  }

  void write_trace(const std::string& path, const Point& point) {
    set_rate(point);
    const auto layers = layers_by_name(settings_.model);
    std::vector<std::string> layer_names, tensor_names;
    for (const ModelLayer& layer : *layers) layer_names.push_back(layer.name);
    for (const ModelTensor& tensor : tensors_of(*layers)) tensor_names.push_back(tensor.name);
    nlohmann::json events = nlohmann::json::array();
    uint32_t process = 0;
    for (const size_t variant : {kBaseline, kP3}) {
      const auto run =
          jobs_.at(point.boxes)[variant]->play(settings_.iterations, settings_.compute_ms, true);
      for (size_t rank = 0; rank < run.spans_by_rank.size(); ++rank) {
        append_trace_events(events, process++,
                            std::string(kVariants[variant].name) + " rank " + std::to_string(rank),
                            run.spans_by_rank[rank], layer_names, tensor_names);
      }
    }
    std::ofstream file(path);
    file << nlohmann::json{{"traceEvents", events}}.dump() << "\n";
    if (!file) throw std::runtime_error("cannot write --trace " + path);
  }

  void finish() {
    for (const auto& [boxes, jobs] : jobs_) {
      for (const auto& job : jobs) job->finish();
    }
  }

 private:
  static constexpr char kCluster[] = "p3";

  Rack& rack() { return cluster_ ? cluster_->rack() : *single_; }

  double boxes_cpu_seconds() const {
    double seconds = 0;
    for (const RackBox& box : boxes_) seconds += process_cpu_seconds(box.program->pid());
    return seconds;
  }

  void start_jobs(uint32_t boxes) {
    std::vector<std::string> names;
    for (uint32_t index = 0; index < boxes; ++index) names.push_back(RackCluster::box_name(index));
    for (const Variant& variant : kVariants) {
      const std::string job = std::string(variant.name) + "-" + std::to_string(boxes);
      constexpr bool kRecovers = false;  // its parts stay
      if (cluster_) cluster_->put_plan(kCluster, job, settings_.model_bytes, names, kRecovers);
      jobs_[boxes].push_back(std::make_unique<RackJob>(
          rack(), PlayerOptions{.box = boxes_.front().control,
                                .job = job,
                                .model = settings_.model,
                                .scale = settings_.scale,
                                .chunk_bytes = variant.sliced ? slice_bytes(settings_)
                                                              : kWholeTensorChunkBytes,
                                .window_bytes = settings_.window_bytes,
                                .policy = variant.policy,
                                .delivery = variant.delivery}));
    }
  }

  Settings settings_;
  std::unique_ptr<RackCluster> cluster_;  // with several boxes
  std::unique_ptr<Rack> single_;          // with one
  std::vector<RackBox> boxes_;
  std::map<uint32_t, std::vector<std::unique_ptr<RackJob>>> jobs_;  // by number of boxes
};

double speedup(const Point& point, size_t variant) {
  return median_ratio(point.iteration_ms[kBaseline], point.iteration_ms[variant]);
}

nlohmann::json figures_of(const Point& point) {
  nlohmann::json figures = {{"boxes", point.boxes},
                            {"bandwidth_mbps", static_cast<double>(point.bits_per_second) / 1e6},
                            {"communication_over_computation", point.ratio},
                            {"cores_used", median(point.cores_used)},
                            {"machine_idle", median(point.idle_shares)},
                            {"retransmitted", point.retransmitted}};
  for (size_t variant = 0; variant < kVariantCount; ++variant) {
    figures["iteration_ms"][kVariants[variant].name] = median(point.iteration_ms[variant]);
    if (variant != kBaseline) figures["speedup"][kVariants[variant].name] = speedup(point, variant);
  }
  return figures;
}

void print_table(const nlohmann::json& figures, std::ostream& report) {
  report << figures["model"].get<std::string>() << " / " << figures["scale"] << ", "
         << figures["workers"] << " workers, " << figures["compute_ms"]
         << " ms of computing per iteration\n"
         << " boxes    Mbit/s   M/B over    baseline     faster by:\n"
         << "                 computing  ms/iteration  slicing  priority       p3  cores\n"
         << std::fixed;
  for (const auto& point : figures["points"]) {
    const auto& speedups = point["speedup"];
    report << std::setw(6) << point["boxes"].get<uint32_t>() << std::setprecision(0)
           << std::setw(10) << point["bandwidth_mbps"].get<double>() << std::setprecision(2)
           << std::setw(10) << point["communication_over_computation"].get<double>()
           << std::setprecision(0) << std::setw(14)
           << point["iteration_ms"]["baseline"].get<double>() << std::setprecision(2)
           << std::setw(9) << speedups["slicing"].get<double>() << std::setw(10)
           << speedups["priority"].get<double>() << std::setw(9) << speedups["p3"].get<double>()
           << std::setw(7) << point["cores_used"].get<double>() << "\n";
  }
  if (!figures.contains("gain_over_one_box")) return;
  for (const auto& [boxes, gain] : figures.at("gain_over_one_box").items()) {
    report << "p3's gain with " << boxes << " boxes is " << std::setprecision(2)
           << gain.get<double>() << " of its gain with one box\n";
  }
}

// Returns, by number of boxes, p3's speed-up over that with one box in the same run, as the median
// over the ratios; null if nothing ran with one box.
nlohmann::json gain_over_one_box(const std::vector<Point>& points) {
  nlohmann::json gains;
  std::map<uint32_t, std::vector<double>>
      speedups;  // by number of boxes, in the order of the ratios
  for (const Point& point : points) speedups[point.boxes].push_back(speedup(point, kP3));
  if (!speedups.contains(1)) return gains;
  for (const auto& [boxes, own] : speedups) {
    if (boxes > 1) gains[std::to_string(boxes)] = median_ratio(own, speedups.at(1));
  }
  return gains;
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const Settings settings = settings_from(options);
  std::vector<Point> points = points_of(settings);
  if (points.empty())
    throw std::runtime_error("--ratios is empty: give at least one ratio, for example 1");
  Experiment experiment(settings, options["box-flags"].as<std::vector<std::string>>());
  for (uint32_t turn = 0; turn < settings.turns; ++turn) {
    for (Point& point : points) {
      experiment.set_rate(point);
      for (size_t index = 0; index < kVariantCount; ++index) {
        experiment.measure(point, (turn + index) % kVariantCount);
      }
      report << "\r  turn " << turn + 1 << "/" << settings.turns << ", "
             << point.bits_per_second / 1'000'000 << " Mbit/s, " << point.boxes << " boxes "
             << std::flush;
    }
  }
  report << "\r";
  const Point& best = *std::max_element(
      points.begin(), points.end(),
      [](const Point& a, const Point& b) { return speedup(a, kP3) < speedup(b, kP3); });
  if (const auto path = options["trace"].as<std::string>(); !path.empty()) {
    experiment.write_trace(path, best);
  }
  experiment.finish();

  nlohmann::json figures = {{"model", settings.model},
                            {"scale", settings.scale},
                            {"workers", settings.workers},
                            {"compute_ms", settings.compute_ms},
                            {"model_bytes", settings.model_bytes},
                            {"slice_bytes", slice_bytes(settings)},
                            {"box_rate", settings.box_rate},
                            {"turns", settings.turns}};
  figures["points"] = nlohmann::json::array();
  for (const Point& point : points) figures["points"].push_back(figures_of(point));
  if (const auto gains = gain_over_one_box(points); !gains.is_null()) {
    figures["gain_over_one_box"] = gains;
  }
  figures["best"] = figures_of(best);
  figures["best"]["speedup_by_variant"] = figures["best"]["speedup"];
  figures["best"]["speedup"] = speedup(best, kP3);
  print_table(figures, report);
  return figures;
}

const ScenarioRegistration kRegistration({.name = "p3",
                                          .summary = "slices and priorities compared with whole"
                                                     " tensors, on a shaped rack at several rates",
                                          .add_options = add_options,
                                          .run = run});

}  // namespace
}  // namespace pbox::perf::rack_p3
