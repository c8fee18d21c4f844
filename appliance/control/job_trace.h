// A trace of one part's rounds: recorded by its pipelines until a given time, then kept for a
// minute. Used on the control thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "appliance/control/job_shards.h"
#include "pipeline/observe/round_trace.h"

namespace pbox::control {

class JobTrace {
 public:
  // Begins a trace of a running part. Discards an earlier trace.
  void begin(PipelineHost& host, const JobShards& shards, size_t events_max, uint64_t now_ns,
             uint64_t until_ns);
  // Stops and discards the trace, if there is one.
  void end(PipelineHost& host, const JobShards& shards);
  // Discards the trace a minute after it has ended.
  void on_tick(PipelineHost& host, const JobShards& shards, uint64_t now_ns);
  // Makes the pipelines stop recording, so that traces() can be read.
  void stop(PipelineHost& host, const JobShards& shards) const;
  // Discards the trace of a part whose shards are gone.
  void clear() { traces_.clear(); }

  uint64_t begun_ns() const { return begun_ns_; }
  // Time at which the recording ends; 0 if there is no trace.
  uint64_t until_ns() const { return traces_.empty() ? 0 : until_ns_; }
  // By index in JobShards::pipelines(); empty if there is no trace.
  const std::vector<std::unique_ptr<pipeline::RoundTrace>>& traces() const { return traces_; }

 private:
  std::vector<std::unique_ptr<pipeline::RoundTrace>> traces_;
  uint64_t begun_ns_ = 0;
  uint64_t until_ns_ = 0;
};

}  // namespace pbox::control
