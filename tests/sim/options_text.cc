// Describes the options that a seed has drawn.
#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "tests/sim/options.h"

namespace pbox::sim {

namespace {

class Line {
 public:
  template <typename... Arguments>
  Line& add(const char* format, Arguments... arguments) {
    if constexpr (sizeof...(arguments) == 0) {
      text += format;
    } else {
      char buffer[160];
      const int length = std::snprintf(buffer, sizeof(buffer), format, arguments...);
      text.append(buffer, static_cast<size_t>(std::clamp(length, 0, 159)));
    }
    return *this;
  }
  std::string text;
};

double ms(uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e6;
}

void add_model(Line& line, const JobOptions& job) {
  constexpr const char* kStraggling[] = {"", "one-rank", "in-turns", "by-chance"};
  if (job.is_relaxed()) line.add(" %s", wire::sync_text(job.sync).c_str());
  if (job.straggling == Straggling::kNone) return;
  line.add(" stragglers=%s*%u", kStraggling[static_cast<size_t>(job.straggling)],
           job.straggler_factor);
}

void add_calls(Line& line, const std::vector<CallOptions>& calls) {
  for (const CallOptions& call : calls) {
    line.add(" %s", wire::kVerbNames[static_cast<size_t>(call.verb)]);
    if (call.verb == wire::Verb::kBarrier) continue;
    line.add("/%s/%u", wire::to_string(call.dtype), call.count);
    line.add("/%s/%u", wire::kCombineNames[static_cast<size_t>(call.combine)], call.root);
  }
}

void add_job(Line& line, const JobOptions& job) {
  line.add(" | job box=%u workers=%u rounds=%u %s %s%s", job.box, job.workers, job.rounds,
           wire::to_string(job.dtype),
           job.mode == pipeline::Mode::kOptimize ? "optimize:" : "aggregate",
           job.mode == pipeline::Mode::kOptimize
               ? std::to_string(static_cast<int>(job.optimizer)).c_str()
               : "");
  if (job.weighted) line.add(" weighted");
  line.add("%s chunk=%u mtu=%u", job.reduction == pipeline::Reduction::kMean ? " mean" : " sum",
           job.chunk_bytes, job.path_mtu);
  if (job.window_bytes != limits::kCreditBytesMax) line.add(" window=%u", job.window_bytes);
  constexpr const char* kPolicies[] = {"wait", "partial", "abort"};
  line.add(" %s%s%s", kPolicies[static_cast<size_t>(job.on_worker_lost)],
           job.patient ? "" : " impatient",
           job.recovery == control::Recovery::kNone ? " no-recovery" : "");
  line.add(" %s%s", wire::kPriorityPolicyNames[static_cast<size_t>(job.priority_policy)],
           job.delivery == wire::Delivery::kPull ? " pull" : "");
  if (job.numerics == wire::Numerics::kOrdered) line.add(" ordered");
  if (job.guard != wire::GuardSpec{}) {
    line.add(" guard=%s/%g", wire::kGuardNames[static_cast<size_t>(job.guard.policy)],
             static_cast<double>(job.guard.max_abs));
  }
  if (job.pushes_zeros) line.add(" zeros");
  add_model(line, job);
  line.add(" tensors=");
  for (const TensorOptions& tensor : job.tensors) {
    line.add("%u^%d", tensor.elements, tensor.priority);
    if (tensor.row_elements > 0) line.add("/%u", tensor.row_elements);
    if (tensor.compression != wire::Compression::kNone) {
      line.add(":%s", to_string(tensor.compression));
    }
    if (tensor.sync) line.add("/%s", wire::sync_text(*tensor.sync).c_str());
    if (&tensor != &job.tensors.back()) line.add(",");
  }
  line.add("%s%s%s%s%s think=%.3fms", job.by_steps ? " steps" : " free",
           job.same_order ? "" : " any-order", job.in_place ? " in-place" : "",
           job.barrier_at_end ? " barrier" : "", job.rogue ? " ROGUE" : "", ms(job.think_max_ns));
  if (!job.racks.empty()) line.add(" RACKS of");
  for (const uint32_t ranks : job.racks) line.add(" %u", ranks);
  if (job.racks_disagree) line.add(" disagree");
  if (job.parts > 1) line.add(" part=%u/%u of job%u", job.part, job.parts, job.number);
  if (job.may_move) line.add(" MOVES");
  if (job.has_copy) line.add(" COPIED");
  if (job.has_snapshots) line.add(job.restores ? " SAVED RESTORED" : " SAVED");
  if (job.is_elastic()) line.add(" ELASTIC from %u, at", job.workers_min);
  for (const uint64_t arrival_ns : job.arrivals_ns) line.add(" %.3fms", ms(arrival_ns));
  if (!job.is_collective) return;
  line.add(" COLLECTIVE calls:");
  add_calls(line, job.calls);
  if (!job.disagreement) return;
  line.add(", but rank %u:", job.disagreement->rank);
  add_calls(line, job.disagreement->calls);
}

void add_cable(Line& line, const Cable& cable) {
  line.add(" | cable of host %u: %.1fMB/s %.3fms queue=%llu%s%s", cable.host,
           static_cast<double>(cable.bytes_per_second) / 1e6, ms(cable.delay_ns),
           static_cast<unsigned long long>(cable.queue_bytes),
           cable.tcp_to_box ? " tcp-to-box" : "", cable.tcp_from_box ? " tcp-from-box" : "");
}

}  // namespace

std::string to_string(const Options& options) {
  Line line;
  line.add(
      "seed=%llu boxes=%u pipelines=%u ring=%u/%u crc=%d burst=%u/%u latency=%.3fms jitter=%.3fms",
      static_cast<unsigned long long>(options.seed), options.boxes, options.pipelines,
      options.ring_bytes, options.ring_slots, int(options.payload_crc), options.burst_packets,
      options.send_packets, ms(options.latency_ns), ms(options.jitter_ns));
  line.add(" rto_floor=%.1fms dead_after=%.0fms%s", ms(options.rto_floor_ns),
           ms(options.dead_after_ns), options.same_sessions ? " same-sessions" : "");
  if (options.suite != seal::Suite::kNone) {
    line.add(" %s/%llu", options.suite == seal::Suite::kGcm256 ? "gcm" : "gmac",
             static_cast<unsigned long long>(options.key_packets));
  }
  if (options.has_cluster) line.add(" CLUSTER");
  if (options.has_levels) line.add(" LEVELS top-pipelines=%u", options.top_pipelines);
  if (options.has_control_network) line.add(" control-network");
  if (options.link_bytes_per_us > 0) {
    line.add(" link=%lluMB/s/%u/%.3fms", static_cast<unsigned long long>(options.link_bytes_per_us),
             options.send_divisor, ms(options.send_ahead_ns));
  }
  if (options.is_tight) {
    line.add(" room=%llu/%llu/%u", static_cast<unsigned long long>(options.memory_bytes),
             static_cast<unsigned long long>(options.arena_bytes), options.job_slots);
  }
  for (const JobOptions& job : options.jobs) add_job(line, job);
  for (const Cable& cable : options.cables) add_cable(line, cable);
  const PacketFaults& faults = options.faults;
  line.add(" | faults until %.3fms drop=%g burst=%g duplicate=%g reorder=%g",
           ms(options.faults_end_ns), faults.drop, faults.burst_begin, faults.duplicate,
           faults.reorder);
  line.add(" delay=%g<%.0fms flip=%g truncate=%g wrong_queue=%g", faults.delay,
           ms(faults.delay_max_ns), faults.flip, faults.truncate, faults.wrong_queue);
  for (const ModelChange& change : options.model_changes) {
    line.add(" | job%u tensor %d: %s at %.3fms", change.job,
             change.tensor ? static_cast<int>(*change.tensor) : -1,
             wire::sync_text(change.sync).c_str(), ms(change.begin_ns));
  }
  if (options.has_snapshots) line.add(" | snapshots every %.0fms", ms(options.snapshot_every_ns));
  if (options.has_former_run) line.add(" after a former run");
  for (const SnapshotCall& call : options.snapshot_calls) {
    line.add(" | snapshot of job%u by box %u at %.3fms within %.0fms", call.job, call.box,
             ms(call.begin_ns), ms(call.timeout_ns));
  }
  for (const ChunkMove& move : options.chunk_moves) {
    line.add(" | chunks of box %u move at %.3fms", move.box, ms(move.begin_ns));
  }
  for (const Episode& episode : options.episodes) {
    line.add(" | %s at %.3fms for %.3fms", name_of(episode.kind), ms(episode.begin_ns),
             ms(episode.length_ns));
  }
  return line.text;
}

}  // namespace pbox::sim
