// One job on this box: its members, and, once all have joined, its shards on the pipelines. Control
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "appliance/control/job_spec.h"
#include "appliance/control/job_view.h"
#include "appliance/control/pipeline_host.h"
#include "appliance/control/spi_allocator.h"

namespace pbox::appliance {

using ConnectionId = uint64_t;  // 0: none

struct Member {
  enum class State { kAbsent, kJoined, kLost, kLeft };
  State state = State::kAbsent;
  ConnectionId connection = 0;
  std::string peer;
  uint32_t path_mtu = 0;
  bool ipv6 = false;
  uint64_t lost_ns = 0;
  std::string lost_reason;
  uint64_t barrier_sequence = 0;
};

class Job {
 public:
  Job(JobSpec spec, uint64_t created_ns);

  const JobSpec& spec() const { return spec_; }
  std::vector<Member>& members() { return members_; }
  const std::vector<Member>& members() const { return members_; }
  bool running() const { return !shards_.empty(); }
  uint64_t created_ns() const { return created_ns_; }

  // What the shards take, over all pipelines, also while the job is still gathering.
  size_t footprint() const { return footprint_; }
  bool all_joined() const { return count(Member::State::kJoined) == members_.size(); }
  uint32_t count(Member::State state) const;
  // "rank 3" or "ranks 0, 2, 5": those in a state.
  std::string ranks(Member::State state) const;

  // Builds the shards and installs them. `loads`: bytes per round each pipeline carries already.
  Status open(PipelineHost& host, SpiAllocator& spis, const std::vector<uint64_t>& loads);
  // Takes the shards back from the pipelines and frees them.
  void close(PipelineHost& host, SpiAllocator& spis);
  void set_learning_rate(PipelineHost& host, float learning_rate);
  void set_credit(PipelineHost& host, uint32_t pipeline, uint32_t credit_bytes);

  uint32_t fragment_bytes() const { return fragment_bytes_; }
  // Fills everything of a SESSION that the job knows, for one rank.
  void describe(uint32_t rank, const PipelineHost& host, control::Session& session) const;
  uint64_t bytes_on(uint32_t pipeline) const;
  JobView view(uint64_t now_ns) const;

  uint64_t join_timeout_ns = 0;
  uint64_t lost_timeout_ns = 0;

 private:
  Result<uint32_t> choose_fragment_bytes(const PipelineHost& host) const;
  std::vector<pipeline::ShardSpec> shard_specs(uint32_t pipeline_count) const;

  JobSpec spec_;
  std::vector<Member> members_;
  uint64_t created_ns_ = 0;
  size_t footprint_ = 0;
  uint64_t chunk_count_ = 0;
  uint32_t fragment_bytes_ = 0;
  std::vector<uint8_t> chunk_pipeline_;
  std::vector<uint64_t> pipeline_bytes_;
  std::vector<std::unique_ptr<pipeline::JobShard>>
      shards_;  // by pipeline; null: owns nothing there
};

}  // namespace pbox::appliance
