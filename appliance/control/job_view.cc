#include "appliance/control/job_view.h"

#include <algorithm>

namespace pbox::control {
namespace {

void add_worker_counts(WorkerView& worker, const WorkerView& part) {
  worker.bytes_received += part.bytes_received;
  worker.fragments_received += part.fragments_received;
  worker.duplicates += part.duplicates;
  worker.last_arrivals += part.last_arrivals;
  worker.late_s += part.late_s;
  if (part.dropped_fragments) {
    worker.dropped_fragments = worker.dropped_fragments.value_or(0) + *part.dropped_fragments;
  }
  if (part.missed_rounds) {
    worker.missed_rounds = worker.missed_rounds.value_or(0) + *part.missed_rounds;
  }
  worker.nonfinite_fragments += part.nonfinite_fragments;
}

void add_worker_state(WorkerView& worker, const WorkerView& part) {
  if (worker.state == "joined") {
    worker.state = part.state;
    worker.peer = part.peer;
  }
  worker.awaited_s = std::max(worker.awaited_s, part.awaited_s);
  const bool is_newer =
      worker.last_packet_age_s < 0 ||
      (part.last_packet_age_s >= 0 && part.last_packet_age_s < worker.last_packet_age_s);
  if (is_newer) worker.last_packet_age_s = part.last_packet_age_s;
  if (part.gradient_squares) {
    worker.gradient_squares = worker.gradient_squares.value_or(0) + *part.gradient_squares;
  }
  const auto& newest = worker.newest_nonfinite;
  if (part.newest_nonfinite && (!newest || part.newest_nonfinite->age_s < newest->age_s)) {
    worker.newest_nonfinite = part.newest_nonfinite;
  }
}

void add_histogram(HistogramView& histogram, const HistogramView& part) {
  histogram.counts.resize(std::max(histogram.counts.size(), part.counts.size()));
  for (size_t bucket = 0; bucket < part.counts.size(); ++bucket) {
    histogram.counts[bucket] += part.counts[bucket];
  }
  histogram.sum_s += part.sum_s;
}

}  // namespace

void add_counts(JobView& job, const JobView& part) {
  job.chunk_rounds += part.chunk_rounds;
  if (part.pulls && job.pulls) {
    job.pulls->pulls += part.pulls->pulls;
    job.pulls->delayed += part.pulls->delayed;
    job.pulls->parked_s += part.pulls->parked_s;
    job.pulls->lead_rounds = std::max(job.pulls->lead_rounds, part.pulls->lead_rounds);
  }
  if (part.grace && job.grace) job.grace->rounds_cut += part.grace->rounds_cut;
  if (part.backup && job.backup) job.backup->chunks_copied += part.backup->chunks_copied;
  if (part.upstream && job.upstream) job.upstream->chunks_relayed += part.upstream->chunks_relayed;
  add_histogram(job.arrival_skew, part.arrival_skew);
  add_histogram(job.round_times, part.round_times);
  for (size_t rank = 0; rank < std::min(job.workers.size(), part.workers.size()); ++rank) {
    add_worker_counts(job.workers[rank], part.workers[rank]);
  }
}

void add_part(JobView& job, const JobView& part) {
  add_counts(job, part);
  job.parts.insert(job.parts.end(), part.parts.begin(), part.parts.end());
  if (job.state == "running") job.state = part.state;
  job.tensor_count = std::max(job.tensor_count, part.tensor_count);
  job.element_count += part.element_count;
  job.chunk_count += part.chunk_count;
  job.fragment_bytes = std::max(job.fragment_bytes, part.fragment_bytes);
  job.memory_bytes += part.memory_bytes;
  job.age_s = std::max(job.age_s, part.age_s);
  if (part.grace && job.grace) {
    job.grace->grace_s = std::max(job.grace->grace_s, part.grace->grace_s);
    job.grace->is_unbounded = job.grace->is_unbounded || part.grace->is_unbounded;
  }
  if (part.backup && job.backup) {
    job.backup->boxes.insert(part.backup->boxes.begin(), part.backup->boxes.end());
    job.backup->parts_without += part.backup->parts_without;
    job.backup->chunks_in_flight += part.backup->chunks_in_flight;
  }
  job.sync.by_tensor.insert(part.sync.by_tensor.begin(), part.sync.by_tensor.end());
  job.sync.control.insert(job.sync.control.end(), part.sync.control.begin(),
                          part.sync.control.end());
  if (part.upstream && job.upstream) {
    job.upstream->is_joined = job.upstream->is_joined && part.upstream->is_joined;
    job.upstream->chunks_in_flight += part.upstream->chunks_in_flight;
  }
  auto& reads = job.reads_by_rounds_behind;
  const auto& more = part.reads_by_rounds_behind;
  reads.resize(std::max(reads.size(), more.size()));
  for (size_t index = 0; index < more.size(); ++index) reads[index] += more[index];
  for (size_t rank = 0; rank < std::min(job.workers.size(), part.workers.size()); ++rank) {
    add_worker_state(job.workers[rank], part.workers[rank]);
  }
}

}  // namespace pbox::control
