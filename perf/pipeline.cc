// Scenario `pipeline`: the speed of a whole pipeline over the speed of the bare sum kernel. It has
// one core, an in-memory port, and W workers that push ResNet-50's 161 tensors.
//
// Both sides read the same prebuilt packets of one round of all workers, in their order of arrival,
// and add to the same accumulators. The kernel side stores the first worker's fragment and adds the
// others. The pipeline side runs the product's loop: parse, session, tag, checks, claim, add,
// finish, and the headers and tags of all results. The port then drops the results.
//
// The pipeline that is compared with the kernel has a flight recorder, as by default. Four further
// pipelines have none: a plain one, one whose counters another thread reads, one that adds in the
// order of ranks, and one whose guard zeroes unsound values.
//
// A pipeline measures the gradients of a job's first rounds and of every 16th later one. Those
// rounds are compared with the others; all other figures leave them out.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iomanip>
#include <optional>
#include <stdexcept>
#include <thread>

#include "base/numa_arena.h"
#include "config/config.h"
#include "nic/wire/chunk_layout.h"
#include "perf/measure.h"
#include "perf/models.h"
#include "perf/scenario.h"
#include "pipeline/loop.h"
#include "pipeline/observe/flight_image.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kWindowChunks = 16;  // chunks by which a worker runs ahead of the slowest

struct Fragment {
  std::byte* packet = nullptr;
  uint32_t bytes = 0;
  uint32_t chunk = 0;
  uint32_t rank = 0;
  uint32_t offset_elements = 0;
  uint32_t elements = 0;
};

// A port that receives a prebuilt list of packets and drops all packets that are sent.
class MemoryPort {
 public:
  explicit MemoryPort(const std::vector<Fragment>& fragments) : fragments_(&fragments) {}
  void rewind() { next_ = 0; }
  bool drained() const { return next_ == fragments_->size(); }

  size_t rx_burst(std::span<nic::RxPacket> packets) {
    const size_t count = std::min(packets.size(), fragments_->size() - next_);
    for (size_t index = 0; index < count; ++index, ++next_) {
      packets[index].data = (*fragments_)[next_].packet;
      packets[index].bytes = (*fragments_)[next_].bytes;
    }
    return count;
  }
  size_t tx_burst(std::span<const nic::TxPacket> packets) {
    sent_ += packets.size();
    return packets.size();
  }
  int event_fd() const { return -1; }
  nic::Capabilities capabilities() const { return {}; }
  const nic::PortCounters& counters() const { return counters_; }
  uint64_t sent() const { return sent_; }
  uint64_t size() const { return fragments_->size(); }

 private:
  const std::vector<Fragment>* fragments_;
  size_t next_ = 0;
  uint64_t sent_ = 0;
  nic::PortCounters counters_;
};

// Returns the memory of a flight recorder of the default size.
NumaArena flight_memory() {
  const uint64_t capacity = config::Recorder().records;
  auto arena = NumaArena::create(pipeline::flight_image_bytes(capacity), kAnyNumaNode);
  if (!arena) throw std::runtime_error(arena.error().message);
  pipeline::make_flight_head({.capacity = capacity}, arena->data());
  return std::move(*arena);
}

pipeline::ShardSpec shard_spec(uint32_t workers, uint32_t fragment_bytes, wire::Numerics numerics,
                               wire::Guard guard);

// A thread that reads the counters as a scrape does, up to a thousand times per second.
class Watcher {
 public:
  Watcher(const pipeline::Engine& core, const pipeline::JobShard& shard)
      : thread_([this, &core, &shard] {
          while (!stopped_) {
            uint64_t sum = 0;
            for (size_t index = 0; index < std::size(pipeline::kCounterTable); ++index) {
              sum += core.counters().get(static_cast<pipeline::Counter>(index));
            }
            for (const pipeline::Session& session : shard.sessions()) {
              sum += session.bytes_received.get() + session.late_ns.get() +
                     session.last_packet_ns.get() + session.nonfinite.get();
            }
            seen_ = sum;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        }) {}
  ~Watcher() {
    stopped_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stopped_ = false;
  std::atomic<uint64_t> seen_ = 0;
  std::thread thread_;
};

// The pipeline of one core, which has all chunks of the job.
class Pipeline {
 public:
  enum class Kind { kRecorded, kPlain, kScraped, kOrdered, kGuarded };
  Pipeline(uint32_t workers, uint32_t fragment_bytes, const std::vector<Fragment>& fragments,
           Kind kind);
  void run_round();
  // Throws unless every chunk finished `round`, every sum is right, and every result was sent.
  void check(uint32_t workers, uint32_t fragment_bytes, uint32_t round) const;
  pipeline::JobShard& shard() { return *shard_; }

 private:
  std::unique_ptr<pipeline::JobShard> shard_;
  NumaArena flight_;
  pipeline::Engine engine_;
  MemoryPort port_;
  pipeline::Mailbox mailbox_;
  pipeline::Loop<MemoryPort> loop_;
  std::optional<Watcher> watcher_;
};

Pipeline::Pipeline(uint32_t workers, uint32_t fragment_bytes,
                   const std::vector<Fragment>& fragments, Kind kind)
    : shard_(std::move(*pipeline::JobShard::create(
          shard_spec(workers, fragment_bytes,
                     kind == Kind::kOrdered ? wire::Numerics::kOrdered : wire::Numerics::kFast,
                     kind == Kind::kGuarded ? wire::Guard::kZero : wire::Guard::kFlag)))),
      flight_(kind == Kind::kRecorded ? flight_memory() : NumaArena()),
      engine_({.pipeline_index = 0, .tag = {}, .flight = {flight_.data(), flight_.size()}}),
      port_(fragments),
      loop_(engine_, port_, mailbox_, pipeline::PollPolicy{.busy = true}) {
  engine_.execute({.kind = pipeline::CommandKind::kInstall, .shard = shard_.get()});
  if (kind == Kind::kScraped) watcher_.emplace(engine_, *shard_);
}

void Pipeline::run_round() {
  port_.rewind();
  while (loop_.turn(monotonic_ns())) {
  }
}

constexpr std::array kKinds = {Pipeline::Kind::kRecorded, Pipeline::Kind::kPlain,
                               Pipeline::Kind::kScraped, Pipeline::Kind::kOrdered,
                               Pipeline::Kind::kGuarded};

class Bench {
 public:
  Bench(uint32_t workers, uint32_t fragment_bytes);

  void run_kernel();
  Pipeline& pipeline(Pipeline::Kind kind) { return *pipelines_[static_cast<size_t>(kind)]; }
  void next_round();  // stamps the packets for the next round; not timed
  double gradient_bytes() const { return gradient_bytes_; }
  uint64_t packet_count() const { return fragments_.size(); }
  void check() const;

 private:
  void build_packets();
  void build_fragment(const pipeline::Chunk& chunk, uint32_t rank, uint32_t fragment);
  void stamp(Fragment& fragment);

  uint32_t workers_;
  uint32_t fragment_bytes_;
  uint32_t round_ = 0;
  double gradient_bytes_ = 0;
  NumaArena packets_;
  std::vector<Fragment> fragments_;
  std::vector<std::unique_ptr<Pipeline>> pipelines_;  // by kind
  std::vector<float*> kernel_targets_;                // by chunk: accumulator of slot 0
};

pipeline::ShardSpec shard_spec(uint32_t workers, uint32_t fragment_bytes, wire::Numerics numerics,
                               wire::Guard guard) {
  pipeline::ShardSpec spec;
  spec.guard.policy = guard;
  spec.numerics = numerics;
  spec.fragment_bytes = fragment_bytes;
  for (const ModelTensor& tensor : tensors_of(resnet50_layers())) {
    for (uint64_t first = 0; first < tensor.elements; first += limits::kChunkBytesDefault / 4) {
      pipeline::ChunkSpec chunk;
      chunk.chunk = static_cast<uint32_t>(spec.chunks.size());
      chunk.elements = static_cast<uint32_t>(
          std::min<uint64_t>(limits::kChunkBytesDefault / 4, tensor.elements - first));
      spec.chunks.push_back(chunk);
    }
  }
  spec.job_chunk_count = static_cast<uint32_t>(spec.chunks.size());
  for (uint32_t rank = 0; rank < workers; ++rank) spec.sessions.push_back({rank, 1u << 20});
  return spec;
}

Bench::Bench(uint32_t workers, uint32_t fragment_bytes)
    : workers_(workers), fragment_bytes_(fragment_bytes) {
  for (const auto kind : kKinds) {
    pipelines_.push_back(std::make_unique<Pipeline>(workers, fragment_bytes, fragments_, kind));
  }
  build_packets();
  for (const auto& chunk : pipelines_[0]->shard().chunks()) {
    kernel_targets_.push_back(chunk.accumulator[0]);
  }
}

void Bench::build_packets() {
  size_t bytes = 0;
  for (const auto& chunk : pipelines_[0]->shard().chunks()) {
    const uint32_t packets = chunk.fragment_count;
    bytes += workers_ * (size_t{chunk.wire_bytes} + packets * size_t{192});
    gradient_bytes_ += double(workers_) * chunk.wire_bytes;
  }
  auto arena = NumaArena::create(bytes, kAnyNumaNode);
  if (!arena) throw std::runtime_error(arena.error().message);
  packets_ = std::move(*arena);
  // Workers send chunks in the same order and stay within a window of each other, so their chunks
  // interleave.
  const auto& chunks = pipelines_[0]->shard().chunks();
  for (size_t first = 0; first < chunks.size(); first += kWindowChunks) {
    const size_t last = std::min(chunks.size(), first + kWindowChunks);
    for (uint32_t rank = 0; rank < workers_; ++rank) {
      for (size_t index = first; index < last; ++index) {
        for (uint32_t fragment = 0; fragment < chunks[index].fragment_count; ++fragment) {
          build_fragment(chunks[index], rank, fragment);
        }
      }
    }
  }
}

void Bench::build_fragment(const pipeline::Chunk& chunk, uint32_t rank, uint32_t index) {
  Fragment fragment;
  const uint32_t payload = wire::fragment_length(chunk.wire_bytes, fragment_bytes_, index);
  fragment.bytes = limits::kPacketOverheadBytes + payload;
  fragment.packet = packets_.take(fragment.bytes);
  fragment.chunk = chunk.id;
  fragment.rank = rank;
  fragment.offset_elements = index * fragment_bytes_ / 4;
  fragment.elements = payload / 4;
  wire::Header header;
  header.set_type(wire::PacketType::kPush);
  header.payload_bytes = static_cast<uint16_t>(payload);
  header.spi = rank;
  header.epoch = pipelines_[0]->shard().epoch;
  header.generation = pipelines_[0]->shard().generation;
  header.chunk = chunk.id;
  header.fragment = static_cast<uint16_t>(index);
  std::memcpy(fragment.packet, &header, sizeof(header));
  auto* values = reinterpret_cast<float*>(fragment.packet + limits::kHeaderBytes);
  for (uint32_t i = 0; i < fragment.elements; ++i) values[i] = float(1 + (i + chunk.id) % 7);
  fragments_.push_back(fragment);
  stamp(fragments_.back());
}

void Bench::stamp(Fragment& fragment) {
  wire::Header header;
  std::memcpy(&header, fragment.packet, sizeof(header));
  header.round = round_;
  header.packet_number = uint64_t{round_} * fragments_.size() + 1;
  std::memcpy(fragment.packet, &header, sizeof(header));
  const std::byte* payload = fragment.packet + limits::kHeaderBytes;
  const wire::Tag tag = wire::make_tag({}, header, payload);
  std::memcpy(fragment.packet + limits::kHeaderBytes + header.payload_bytes, tag.data(),
              tag.size());
}

void Bench::next_round() {
  ++round_;
  for (Fragment& fragment : fragments_) stamp(fragment);
}

void Bench::run_kernel() {
  const auto& kernels = reduce::kernels();
  const auto store = kernels.store[0];
  const auto add = kernels.add[0];
  for (const Fragment& fragment : fragments_) {
    const auto function = fragment.rank == 0 ? store : add;
    function(kernel_targets_[fragment.chunk] + fragment.offset_elements,
             fragment.packet + limits::kHeaderBytes, fragment.elements, FLT_MAX);
  }
}

void Bench::check() const {
  for (const auto& pipeline : pipelines_) pipeline->check(workers_, fragment_bytes_, round_);
}

void Pipeline::check(uint32_t workers, uint32_t fragment_bytes, uint32_t round) const {
  for (const auto& chunk : shard_->chunks()) {
    const float* sums = chunk.accumulator[round & 1];
    for (uint32_t i = 0; i < chunk.elements; ++i) {
      const uint32_t within = i % (fragment_bytes / 4);
      const float expected = float(workers) * float(1 + (within + chunk.id) % 7);
      if (chunk.open_round() != round + 1 || sums[i] != expected) {
        throw std::runtime_error(
            "the pipeline's sum is wrong or its round is not finished at chunk " +
            std::to_string(chunk.id));
      }
    }
  }
  if (port_.sent() != uint64_t{round + 1} * port_.size()) {
    throw std::runtime_error("the pipeline did not send every result to every worker");
  }
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

nlohmann::json measure(uint32_t workers, uint32_t fragment_bytes, uint32_t repetitions,
                       std::ostream& report) {
  Bench bench(workers, fragment_bytes);
  std::vector<double> kernel, kernel_beside_measured, measured;
  std::array<std::vector<double>, kKinds.size()> pipeline;
  for (uint32_t repetition = 0; kernel.size() < repetitions; ++repetition) {
    if (repetition > 0) bench.next_round();
    const double kernel_s = seconds_of([&] { bench.run_kernel(); });
    std::array<double, kKinds.size()> pipeline_s{};
    for (size_t turn = 0; turn < kKinds.size(); ++turn) {  // each kind comes first equally often
      const size_t kind = (repetition + turn) % kKinds.size();
      pipeline_s[kind] = seconds_of([&] { bench.pipeline(kKinds[kind]).run_round(); });
    }
    bench.check();
    if (repetition == 0) continue;  // warm-up: the first touch of all memory
    if (pipeline::GradientSquares::measures(repetition)) {
      kernel_beside_measured.push_back(kernel_s);
      measured.push_back(pipeline_s[0]);
      continue;
    }
    kernel.push_back(kernel_s);
    for (size_t kind = 0; kind < kKinds.size(); ++kind) pipeline[kind].push_back(pipeline_s[kind]);
  }
  const auto& [recorded, plain, scraped, ordered, guarded] = pipeline;
  const double gigabytes = bench.gradient_bytes() / 1e9;
  nlohmann::json figures = {
      {"fragment_bytes", fragment_bytes},
      {"kernel_gbps", gigabytes / median(kernel)},
      {"pipeline_gbps", gigabytes / median(recorded)},
      {"pipeline_over_kernel", median_ratio(kernel, recorded)},
      {"recorded_over_plain", median_ratio(plain, recorded)},
      {"scraped_over_plain", median_ratio(plain, scraped)},
      {"ordered_over_plain", median_ratio(plain, ordered)},
      {"guarded_over_plain", median_ratio(plain, guarded)},
      {"measured_over_recorded",
       median_ratio(kernel_beside_measured, measured) / median_ratio(kernel, recorded)},
      {"nanoseconds_per_packet", median(recorded) * 1e9 / double(bench.packet_count())}};
  report << std::setw(10) << fragment_bytes << std::fixed << std::setprecision(2) << std::setw(12)
         << figures["kernel_gbps"].get<double>() << std::setw(12)
         << figures["pipeline_gbps"].get<double>() << std::setw(10)
         << figures["pipeline_over_kernel"].get<double>() << std::setprecision(0) << std::setw(12)
         << figures["nanoseconds_per_packet"].get<double>() << std::setprecision(3) << std::setw(10)
         << figures["recorded_over_plain"].get<double>() << std::setw(10)
         << figures["scraped_over_plain"].get<double>() << std::setw(10)
         << figures["ordered_over_plain"].get<double>() << std::setw(10)
         << figures["guarded_over_plain"].get<double>() << std::setw(10)
         << figures["measured_over_recorded"].get<double>() << std::endl;
  return figures;
}

void add_options(po::options_description& options) {
  options.add_options()("workers", po::value<uint32_t>()->default_value(4),
                        "workers that push, 1 to 64")(
      "repetitions", po::value<uint32_t>()->default_value(15), "timed rounds");
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const auto workers = options["workers"].as<uint32_t>();
  const auto repetitions = std::max(1u, options["repetitions"].as<uint32_t>());
  if (workers == 0 || workers > 64) throw std::runtime_error("--workers must be in [1, 64]");
  report << "GB/s of gradients that one core adds, ResNet-50 in 161 tensors, " << workers
         << " workers\n  fragment      kernel    pipeline     ratio   ns/packet  recorded   "
            "scraped   ordered   guarded  measured\n";
  nlohmann::json figures;
  for (const uint32_t fragment_bytes :
       {limits::kFragmentBytesJumbo, limits::kFragmentBytesEthernet}) {
    figures["points"].push_back(measure(workers, fragment_bytes, repetitions, report));
  }
  figures["workers"] = workers;
  figures["pipeline_over_kernel"] = figures["points"][0]["pipeline_over_kernel"];
  figures["pipeline_over_kernel_1408"] = figures["points"][1]["pipeline_over_kernel"];
  return figures;
}

const ScenarioRegistration kRegistration(
    {.name = "pipeline",
     .summary = "one core's pipeline, compared with the bare sum kernel",
     .add_options = add_options,
     .run = run});

}  // namespace
}  // namespace pbox::perf
