#include "tests/sim/congestion.h"

#include <algorithm>
#include <cstdio>

#include "nic/wire/chunk_layout.h"
#include "tests/sim/world.h"

namespace pbox::sim {
namespace {

enum class Tcp : uint8_t { kNone, kToBox, kFromBox };

struct CongestionRow {
  uint64_t megabits = 0;  // rate per second
  uint64_t delay_ms = 0;  // in one direction
  double queue_bdp = 1;   // the queue, in products of rate and round-trip time
  Tcp tcp = Tcp::kNone;
  double loss = 0;  // probability that the network loses a packet
  double least = 0.4, most = 0.6;
};

constexpr double kAlone = 0.9;

constexpr CongestionRow kCongestionRows[] = {
    {.megabits = 250, .delay_ms = 1, .queue_bdp = 0.25, .least = kAlone, .most = 1},
    {.megabits = 250, .delay_ms = 10, .queue_bdp = 1, .least = kAlone, .most = 1},
    {.megabits = 100, .delay_ms = 50, .queue_bdp = 1, .least = kAlone, .most = 1},
    {.megabits = 100, .delay_ms = 50, .queue_bdp = 1, .loss = 0.001, .least = 0.85, .most = 1},
    {.megabits = 100, .delay_ms = 50, .queue_bdp = 1, .loss = 0.01, .least = 0.6, .most = 1},
    {.megabits = 1000, .delay_ms = 50, .queue_bdp = 1, .least = kAlone, .most = 1},
    {.megabits = 250, .delay_ms = 1, .queue_bdp = 0.25, .tcp = Tcp::kToBox},
    {.megabits = 250, .delay_ms = 1, .queue_bdp = 1, .tcp = Tcp::kToBox},
    {.megabits = 250, .delay_ms = 1, .queue_bdp = 4, .tcp = Tcp::kToBox},
    {.megabits = 250, .delay_ms = 10, .queue_bdp = 1, .tcp = Tcp::kToBox},
    {.megabits = 100, .delay_ms = 10, .queue_bdp = 4, .tcp = Tcp::kToBox},
    {.megabits = 100, .delay_ms = 50, .queue_bdp = 0.25, .tcp = Tcp::kToBox},
    {.megabits = 100, .delay_ms = 50, .queue_bdp = 1, .tcp = Tcp::kToBox},
    {.megabits = 250, .delay_ms = 1, .queue_bdp = 4, .tcp = Tcp::kFromBox},
    {.megabits = 250, .delay_ms = 10, .queue_bdp = 1, .tcp = Tcp::kFromBox},
    {.megabits = 100, .delay_ms = 50, .queue_bdp = 1, .tcp = Tcp::kFromBox},
};

constexpr uint32_t kTensors = 4;
constexpr uint64_t kSettlesWithinNs = 2 * kNanosPerSecond;
constexpr uint64_t kQueueBytesLeast = 32 << 10;

double bytes_per_second(const CongestionRow& row) {
  return static_cast<double>(row.megabits) * 1e6 / 8;
}

double bandwidth_delay_bytes(const CongestionRow& row) {
  return bytes_per_second(row) * 2 * static_cast<double>(row.delay_ms) / 1e3;
}

std::string name_of(const CongestionRow& row) {
  constexpr const char* kTcpNames[] = {"no TCP", "TCP to the box", "TCP from the box"};
  char text[96];
  std::snprintf(text, sizeof(text), "%u Mbit/s, %u ms, %g BDP, %s",
                static_cast<unsigned>(row.megabits), static_cast<unsigned>(row.delay_ms),
                row.queue_bdp, kTcpNames[static_cast<size_t>(row.tcp)]);
  std::string name = text;
  if (row.loss > 0) {
    std::snprintf(text, sizeof(text), ", loss %g", row.loss);
    name += text;
  }
  return name;
}

// Tensors go on independently, so the job always has something to push. A tensor that waits for
// its results costs nothing if the others fill the path meanwhile.
JobOptions job_on(const CongestionRow& row) {
  JobOptions job;
  job.workers = 2;
  job.chunk_bytes = limits::kChunkBytesDefault;
  job.by_steps = false;
  const bool is_long = bandwidth_delay_bytes(row) > (4u << 20);
  for (uint32_t index = 0; index < kTensors; ++index) {
    job.tensors.push_back({.elements = is_long ? 4u << 20 : 1u << 20});
  }
  // A job alone needs less time to settle than one that shares its cable.
  const double seconds = row.tcp != Tcp::kNone ? 25 : is_long ? 10 : 20;
  const double share = row.tcp == Tcp::kNone ? 0.9 : 0.45;
  const double rounds = seconds * share * bytes_per_second(row) / static_cast<double>(job.bytes());
  job.rounds = static_cast<uint32_t>(rounds) + 2;
  return job;
}

Options rack_of(const CongestionRow& row) {
  Options options;
  options.pipelines = 2;
  options.ring_bytes = 128u << 20;
  options.faults.drop = row.loss;
  options.faults_end_ns = UINT64_MAX / 4;  // the faults and the TCP flow never end
  options.dead_after_ns = 60 * kNanosPerSecond;
  options.events_max = 1'000'000'000;
  options.jobs.push_back(job_on(row));
  // The product's window of 1 MiB cannot fill the longest path.
  if (bandwidth_delay_bytes(row) > (4u << 20)) options.window_bytes = 32u << 20;
  for (uint32_t worker = 0; worker < options.jobs.front().workers; ++worker) {
    const auto queue_bytes = static_cast<uint64_t>(bandwidth_delay_bytes(row) * row.queue_bdp);
    Cable cable{.host = options.boxes + worker,
                .bytes_per_second = static_cast<uint64_t>(bytes_per_second(row)),
                .delay_ns = row.delay_ms * kNanosPerMilli,
                .queue_bytes = std::max(queue_bytes, kQueueBytesLeast)};
    cable.tcp_to_box = worker == 0 && row.tcp == Tcp::kToBox;
    cable.tcp_from_box = worker == 0 && row.tcp == Tcp::kFromBox;
    options.cables.push_back(cable);
  }
  return options;
}

// Returns how many fragments all rounds of the job need in one direction of a worker's cable.
uint64_t fragments_of(const JobOptions& job) {
  const uint32_t fragment_bytes = wire::fragment_bytes_for_mtu(job.path_mtu, false);
  uint64_t fragments = 0;
  for (const TensorOptions& tensor : job.tensors) {
    uint64_t left = uint64_t{tensor.elements} * wire::dtype_bytes(job.dtype);
    while (left > 0) {
      const auto chunk_bytes = static_cast<uint32_t>(std::min<uint64_t>(left, job.chunk_bytes));
      fragments += wire::fragment_count(chunk_bytes, fragment_bytes);
      left -= chunk_bytes;
    }
  }
  return fragments * job.rounds;
}

Congestion measure_row(const CongestionRow& row) {
  const Options options = rack_of(row);
  const Outcome outcome = World(options).run();
  Congestion figures{
      .name = name_of(row), .least = row.least, .most = row.most, .has_tcp = row.tcp != Tcp::kNone};
  figures.violation = outcome.violation;
  if (outcome.jobs_failed > 0) figures.violation += " the job failed";
  if (!figures.violation.empty()) return figures;
  const auto direction =
      row.tcp == Tcp::kFromBox ? CableDirection::kFromBox : CableDirection::kToBox;
  const CableUse& use = outcome.cables.front()[static_cast<size_t>(direction)];
  // Whole slices of time between the beginning of the measurement and the end of the job.
  const uint64_t since_ns = outcome.began_ns - EventQueue::kBeginNs;
  const uint64_t settled_ns = since_ns + std::max(outcome.first_round_ns, kSettlesWithinNs);
  const uint64_t first = settled_ns / CableUse::kSliceNs + 1;
  const uint64_t last = std::max(first + 1, (since_ns + outcome.work_ns) / CableUse::kSliceNs);
  const double possible_bytes = static_cast<double>((last - first) * CableUse::kSliceNs) / 1e9 *
                                static_cast<double>(options.cables.front().bytes_per_second);
  const auto share_of = [&](CableUser user) {
    return static_cast<double>(use.bytes(user, first, last)) / possible_bytes;
  };
  figures.sent_again =
      static_cast<double>(use.fragments) / static_cast<double>(fragments_of(options.jobs.front())) -
      1;
  figures.share = share_of(CableUser::kJob) / (1 + figures.sent_again);
  figures.tcp_share = share_of(CableUser::kTcp);
  figures.first_round_ms = static_cast<double>(outcome.first_round_ns) / 1e6;
  figures.seconds = static_cast<double>(outcome.work_ns) / 1e9;
  return figures;
}

}  // namespace

std::vector<Congestion> measure_congestion(const std::string& part_of_name) {
  std::vector<Congestion> measured;
  for (const CongestionRow& row : kCongestionRows) {
    if (name_of(row).find(part_of_name) == std::string::npos) continue;
    measured.push_back(measure_row(row));
  }
  return measured;
}

}  // namespace pbox::sim
