// Scenario `scale`: the cost of placing, rebalancing and messages to workers with many boxes,
// workers and chunks. It also reports how the costs grow and which limits end the growth. It uses
// no network.
#include <malloc.h>

#include <algorithm>
#include <iomanip>
#include <stdexcept>

#include "appliance/placement/rebalancer.h"
#include "base/clock.h"
#include "base/limits.h"
#include "nic/wire/control_frame.h"
#include "perf/measure.h"
#include "perf/placement/stragglers.h"
#include "perf/scenario.h"

namespace pbox::perf::placement_scale {
namespace {

using placement::BoxIndex;

constexpr size_t kPipelinesPerBox = 4;
constexpr size_t kPlacesPerSession = 256;  // chunk_pipeline has one byte per chunk
constexpr size_t kSteps = 5;  // sizes per series: the largest, a half of it, a quarter, ...
constexpr double kBoxBytesPerSecond = 10e9;
constexpr uint32_t kTensorChunks = 64;  // the last chunk of each tensor is shorter

struct Costs {
  size_t boxes = 0;
  size_t chunks = 0;
  double place_seconds = 0;
  double decide_seconds = 0;  // time of the observation that leads to a plan
  double apply_seconds = 0;   // time to enter the plan's moves into the map
  size_t moves = 0;
  size_t messages = 0;  // to a worker that rejoins: its Session, and RoundMaps of open rounds
  size_t session_bytes = 0;
  size_t bytes = 0;
  size_t memory_bytes = 0;  // a worker's memory for the map, the rounds and the current message
};

template <typename Work>
double seconds_of(Work&& work) {
  const uint64_t start_ns = monotonic_ns();
  work();
  return static_cast<double>(monotonic_ns() - start_ns) * 1e-9;
}

std::vector<uint32_t> make_chunks(size_t count) {
  std::vector<uint32_t> bytes(count, limits::kChunkBytesDefault);
  Rng rng(1);
  for (size_t chunk = kTensorChunks - 1; chunk < count; chunk += kTensorChunks) {
    bytes[chunk] = 4 * (1 + static_cast<uint32_t>(rng.below(limits::kChunkBytesDefault / 4)));
  }
  return bytes;
}

std::vector<placement::Box> make_boxes(size_t count) {
  std::vector<placement::Box> boxes;
  for (size_t box = 0; box < count; ++box) {
    boxes.push_back({.name = std::to_string(box),
                     .bytes_per_second = kBoxBytesPerSecond,
                     .loads_bytes = std::vector<uint64_t>(kPipelinesPerBox)});
  }
  return boxes;
}

// Times one decision. The first box serves at a quarter of its speed in every observation until the
// rebalancer proposes moves.
void time_decision(const std::vector<uint32_t>& chunk_bytes, const placement::JobPlacement& map,
                   Costs& costs) {
  placement::Rebalancer rebalancer(chunk_bytes, map.box_of_chunk, make_boxes(costs.boxes),
                                   {.seed = 1, .explore_share = 0});
  placement::Observation seen;
  for (const double bytes : placement::bytes_by_box(chunk_bytes, map.box_of_chunk, costs.boxes)) {
    const double slowdown = seen.boxes.empty() ? 4 : 1;
    seen.boxes.push_back({bytes, slowdown * bytes / kBoxBytesPerSecond});
    seen.iteration_seconds = std::max(seen.iteration_seconds, seen.boxes.back().busy_seconds);
  }
  std::optional<placement::Proposal> proposal;
  while (!proposal) {
    costs.decide_seconds = seconds_of([&] { proposal = rebalancer.observe(seen); });
    if (rebalancer.decision_count(placement::DecisionKind::kHold) > 0) {
      throw std::runtime_error(
          "the rebalancer moves no parts away from a box that runs at a quarter of its speed: " +
          rebalancer.decisions().back().reason);
    }
  }
  costs.moves = proposal->moves.size();
  costs.apply_seconds = seconds_of([&] { rebalancer.carried_out(proposal->stall_seconds); });
}

proto::BoxMessage session_message(const placement::JobPlacement& map, size_t boxes) {
  proto::BoxMessage message;
  proto::Session& session = *message.mutable_session();
  session.set_box("0");
  session.set_has_rounds(true);
  for (size_t place = 0; place < boxes * kPipelinesPerBox; ++place) {
    proto::PipelineSession& pipeline = *session.add_pipelines();
    pipeline.set_spi(static_cast<uint32_t>(place << 12));
    pipeline.set_credit_bytes(limits::kUdpPayloadMax);
    pipeline.set_udp_port(static_cast<uint32_t>(limits::kDataPortFirst + place));
    pipeline.set_address("203.0.113.113");
  }
  std::string& places = *session.mutable_chunk_pipeline();
  places.reserve(map.box_of_chunk.size());
  for (size_t chunk = 0; chunk < map.box_of_chunk.size(); ++chunk) {
    const size_t place = map.box_of_chunk[chunk] * kPipelinesPerBox + map.pipeline_of_chunk[chunk];
    places.push_back(static_cast<char>(place));
  }
  return message;
}

size_t heap_bytes() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Measures the messages that a worker receives when it joins a running job: their bytes when
// framed, and the worker's memory when parsed.
void weigh_messages(const placement::JobPlacement& map, Costs& costs) {
  std::vector<std::string> sent;
  const auto send = [&](const proto::BoxMessage& message) {
    auto framed = wire::frame(message);
    if (!framed) throw std::runtime_error(framed.error().message);
    sent.push_back(std::move(*framed));
    costs.bytes += sent.back().size();
  };
  send(session_message(map, costs.boxes));
  costs.session_bytes = costs.bytes;
  for (size_t first = 0; first < costs.chunks; first += limits::kRoundMapChunksMax) {
    proto::BoxMessage message;
    proto::RoundMap& rounds = *message.mutable_rounds();
    const size_t end = std::min(first + limits::kRoundMapChunksMax, costs.chunks);
    rounds.set_first_chunk(static_cast<uint32_t>(first));
    for (size_t chunk = first; chunk < end; ++chunk) rounds.add_rounds(1'000'000);
    rounds.set_last(end == costs.chunks);
    send(message);
  }
  costs.messages = sent.size();
  const size_t before = heap_bytes();
  std::vector<uint8_t> place_of_chunk;
  std::vector<uint32_t> rounds;
  rounds.reserve(costs.chunks);
  proto::BoxMessage message;
  for (const std::string& framed : sent) {
    const auto body_bytes = static_cast<int>(framed.size() - wire::kControlLengthBytes);
    if (!message.ParseFromArray(framed.data() + wire::kControlLengthBytes, body_bytes)) {
      throw std::runtime_error("cannot parse a message to the worker");
    }
    const std::string& places = message.session().chunk_pipeline();
    if (message.has_session()) place_of_chunk.assign(places.begin(), places.end());
    rounds.insert(rounds.end(), message.rounds().rounds().begin(), message.rounds().rounds().end());
  }
  if (place_of_chunk.size() != costs.chunks || rounds.size() != costs.chunks) {
    throw std::runtime_error("the messages do not name every chunk exactly once");
  }
  costs.memory_bytes = heap_bytes() - before;
}

// One size, and the measurements of each repetition.
struct Size {
  Size(size_t boxes, size_t chunks)
      : costs{.boxes = boxes, .chunks = chunks},
        chunk_bytes(make_chunks(chunks)),
        all_boxes(make_boxes(boxes)) {}

  void measure_once() {
    place_seconds.push_back(
        seconds_of([&] { map = std::move(placement::place_job(chunk_bytes, all_boxes).value()); }));
    time_decision(chunk_bytes, map, costs);
    decide_seconds.push_back(costs.decide_seconds);
    apply_seconds.push_back(costs.apply_seconds);
  }

  void sum_up() {
    costs.place_seconds = median(place_seconds);
    costs.decide_seconds = median(decide_seconds);
    costs.apply_seconds = median(apply_seconds);
    weigh_messages(map, costs);
  }

  Costs costs;
  std::vector<uint32_t> chunk_bytes;
  std::vector<placement::Box> all_boxes;
  placement::JobPlacement map;
  std::vector<double> place_seconds;
  std::vector<double> decide_seconds;
  std::vector<double> apply_seconds;
};

// Measures all sizes in turn in each repetition, so that other work on the machine affects all
// sizes equally.
std::vector<Costs> measure(std::vector<Size> sizes, size_t repetitions) {
  for (Size& size : sizes) size.measure_once();
  for (Size& size : sizes) {
    size.place_seconds.clear();  // the first pass touched fresh memory
    size.decide_seconds.clear();
    size.apply_seconds.clear();
  }
  for (size_t repetition = 0; repetition < repetitions; ++repetition) {
    for (Size& size : sizes) size.measure_once();
  }
  std::vector<Costs> costs;
  for (Size& size : sizes) {
    size.sum_up();
    costs.push_back(size.costs);
  }
  return costs;
}

nlohmann::json to_json(const Costs& costs) {
  return {{"boxes", costs.boxes},
          {"chunks", costs.chunks},
          {"place_seconds", costs.place_seconds},
          {"decide_seconds", costs.decide_seconds},
          {"apply_seconds", costs.apply_seconds},
          {"moves", costs.moves},
          {"messages_per_worker", costs.messages},
          {"session_bytes", costs.session_bytes},
          {"bytes_per_worker", costs.bytes},
          {"memory_bytes_per_worker", costs.memory_bytes}};
}

// Returns how each cost grows with `size`, as the exponent of the power that fits best.
nlohmann::json growth(const std::vector<Costs>& series, size_t Costs::*size) {
  const auto exponent = [&](auto Costs::*cost) {
    std::vector<double> sizes;
    std::vector<double> costs;
    for (const Costs& step : series) {
      sizes.push_back(static_cast<double>(step.*size));
      costs.push_back(static_cast<double>(step.*cost));
    }
    return growth_exponent(sizes, costs);
  };
  return {{"place_seconds", exponent(&Costs::place_seconds)},
          {"decide_seconds", exponent(&Costs::decide_seconds)},
          {"apply_seconds", exponent(&Costs::apply_seconds)},
          {"bytes_per_worker", exponent(&Costs::bytes)},
          {"memory_bytes_per_worker", exponent(&Costs::memory_bytes)}};
}

void print(const std::vector<Costs>& series, std::ostream& report) {
  report
      << "  boxes    chunks  place ms  decide ms  apply ms    moves  messages   MB sent  MB held\n";
  for (const Costs& costs : series) {
    report << std::fixed << std::setprecision(1) << std::setw(7) << costs.boxes << std::setw(10)
           << costs.chunks << std::setw(10) << costs.place_seconds * 1e3 << std::setw(11)
           << costs.decide_seconds * 1e3 << std::setw(10) << costs.apply_seconds * 1e3
           << std::setw(9) << costs.moves << std::setw(10) << costs.messages << std::setw(10)
           << static_cast<double>(costs.bytes) / 1e6 << std::setw(9)
           << static_cast<double>(costs.memory_bytes) / 1e6 << "\n";
  }
}

// Returns the sizes that today's messages and limits allow. Reports them, and whether admission
// would reject `workers`.
nlohmann::json breaks(const Costs& largest, size_t workers, std::ostream& report) {
  const size_t around_map = largest.session_bytes - largest.chunks;
  const size_t chunks_max = limits::kControlMessageBytesMax - around_map;
  const size_t boxes_max = kPlacesPerSession / kPipelinesPerBox;
  report << "a Session message can name " << kPlacesPerSession
         << " places of a chunk, which is enough for " << boxes_max << " boxes of "
         << kPipelinesPerBox << " pipelines, and it has room for " << chunks_max << " chunks\n";
  if (workers > limits::kWorkersPerJobMax) {
    report << "admission rejects a job of " << workers << " workers: the limit is "
           << limits::kWorkersPerJobMax << "\n";
  }
  return {{"places_per_session", kPlacesPerSession},
          {"boxes_of_4_pipelines", boxes_max},
          {"chunks_per_session", chunks_max},
          {"workers_per_job_limit", limits::kWorkersPerJobMax},
          {"chunks_per_job_limit", limits::kChunksPerJobMax}};
}

// Returns, for each setting and each fixed map, the simulated time under that map over the time
// under the rebalancer. Each ratio is the median over the seeds.
nlohmann::json compare_maps(std::ostream& report) {
  struct Other {
    const char* name;
    MapStrategy strategy;
  };
  constexpr Other kOthers[] = {{"static", MapStrategy::kStatic},
                               {"round_robin", MapStrategy::kRoundRobin},
                               {"byte_balanced", MapStrategy::kByteBalanced}};
  constexpr uint64_t kSeeds = 10;
  nlohmann::json figures;
  report << "simulated speed-up of rebalancing over    static  round-robin  byte-balanced\n"
         << std::setprecision(3);
  for (const StragglerSetting& setting : straggler_settings()) {
    std::vector<double> moving;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      moving.push_back(train(setting, MapStrategy::kRebalanced, seed).seconds);
    }
    report << "  " << std::left << std::setw(36) << setting.name << std::right;
    for (const Other& other : kOthers) {
      std::vector<double> fixed;
      for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        fixed.push_back(train(setting, other.strategy, seed).seconds);
      }
      const double speedup = median_ratio(fixed, moving);
      figures[setting.name][other.name] = speedup;
      report << std::setw(10) << speedup;
    }
    report << "\n";
  }
  return figures;
}

void add_options(po::options_description& options) {
  options.add_options()("boxes", po::value<size_t>()->default_value(64), "boxes of 4 pipelines")(
      "workers", po::value<size_t>()->default_value(1024), "workers of the job")(
      "chunks", po::value<size_t>()->default_value(limits::kChunksPerJobMax), "chunks of the job")(
      "repetitions", po::value<size_t>()->default_value(7),
      "repetitions of each timing; medians are reported");
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const auto boxes = options["boxes"].as<size_t>();
  const auto workers = options["workers"].as<size_t>();
  const auto chunks = options["chunks"].as<size_t>();
  const auto repetitions = options["repetitions"].as<size_t>();
  constexpr size_t kBoxesLeast = size_t{1} << (kSteps - 1);
  if (boxes < 2 * kBoxesLeast || boxes * kPipelinesPerBox > kPlacesPerSession) {
    throw std::runtime_error("--boxes " + std::to_string(boxes) +
                             ": use 32 to 64; a Session has "
                             "one byte for the place of a chunk");
  }
  if (chunks < 1000 * kBoxesLeast || chunks > limits::kChunksPerJobMax) {
    throw std::runtime_error("--chunks " + std::to_string(chunks) + ": use 16000 to " +
                             std::to_string(limits::kChunksPerJobMax));
  }
  if (workers == 0 || repetitions == 0) {
    throw std::runtime_error("--workers and --repetitions must be at least 1");
  }
  std::vector<Size> chunk_sizes;
  std::vector<Size> box_sizes;
  for (size_t step = kSteps; step-- > 0;) {
    chunk_sizes.emplace_back(boxes, chunks >> step);
    box_sizes.emplace_back(boxes >> step, chunks);
  }
  const std::vector<Costs> by_chunks = measure(std::move(chunk_sizes), repetitions);
  const std::vector<Costs> by_boxes = measure(std::move(box_sizes), repetitions);
  print(by_chunks, report);
  print(by_boxes, report);
  const Costs& largest = by_chunks.back();
  nlohmann::json figures = {{"workers", workers}, {"pipelines_per_box", kPipelinesPerBox}};
  for (const Costs& costs : by_chunks) figures["by_chunks"].push_back(to_json(costs));
  for (const Costs& costs : by_boxes) figures["by_boxes"].push_back(to_json(costs));
  figures["growth_by_chunks"] = growth(by_chunks, &Costs::chunks);
  figures["growth_by_boxes"] = growth(by_boxes, &Costs::boxes);
  report << "exponents of growth with chunks: " << figures["growth_by_chunks"].dump()
         << "\nexponents of growth with boxes: " << figures["growth_by_boxes"].dump() << "\n";
  const double all_bytes = static_cast<double>(largest.bytes * workers);
  figures["all_workers"] = {{"messages", largest.messages * workers}, {"bytes", all_bytes}};
  report << workers << " workers receive " << largest.messages * workers << " messages, "
         << all_bytes / 1e9 << " GB\n";
  figures["speedup_by_rebalancing"] = compare_maps(report);
  figures["breaks"] = breaks(largest, workers, report);
  return figures;
}

const ScenarioRegistration kRegistration(
    {.name = "scale",
     .summary = "cost of placing and rebalancing on many boxes",
     .add_options = add_options,
     .run = run});

}  // namespace
}  // namespace pbox::perf::placement_scale
