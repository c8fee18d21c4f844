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
  // Places the chunks: nothing is allocated. `loads_bytes`: per pipeline, what other jobs move
  // there in a round.
  Job(JobSpec spec, uint64_t created_ns, const std::vector<uint64_t>& loads_bytes);

  const JobSpec& spec() const { return spec_; }
  std::vector<Member>& members() { return members_; }
  const std::vector<Member>& members() const { return members_; }
  bool running() const { return !shards_.empty(); }
  uint64_t created_ns() const { return created_ns_; }

  // What the shards take, also while the job is still gathering: on all pipelines, and on one.
  uint64_t footprint() const;
  uint64_t footprint_on(uint32_t pipeline) const { return footprints_[pipeline]; }
  bool all_joined() const { return count(Member::State::kJoined) == members_.size(); }
  uint32_t count(Member::State state) const;
  // "rank 3" or "ranks 0, 2, 5": those in a state.
  std::string ranks(Member::State state) const;

  // Builds the shards and installs them.
  Status open(PipelineHost& host, SpiAllocator& spis);
  // Takes the shards back from the pipelines and frees them.
  void close(PipelineHost& host, SpiAllocator& spis);
  void set_learning_rate(PipelineHost& host, float learning_rate);
  void set_credit(PipelineHost& host, uint32_t pipeline, uint32_t credit_bytes);

  uint32_t fragment_bytes() const { return fragment_bytes_; }
  // Fills everything of a SESSION that the job knows, for one rank.
  void describe(uint32_t rank, const PipelineHost& host, control::Session& session) const;
  uint64_t bytes_on(uint32_t pipeline) const { return pipeline_bytes_[pipeline]; }  // per round
  JobView view(uint64_t now_ns) const;
  // "4 chunks of at most 32256 bytes; pipeline 0: 2 chunks, 40014 bytes a round, 80156 of memory;
  // ..."
  std::string placement() const;

  uint64_t join_timeout_ns = 0;
  uint64_t lost_timeout_ns = 0;

 private:
  Result<uint32_t> choose_fragment_bytes(const PipelineHost& host) const;
  std::vector<pipeline::ShardSpec> shard_specs() const;

  JobSpec spec_;
  std::vector<Member> members_;
  uint64_t created_ns_ = 0;
  uint32_t fragment_bytes_ = 0;
  std::vector<uint8_t> chunk_pipeline_;   // by chunk
  std::vector<uint64_t> pipeline_bytes_;  // by pipeline
  std::vector<uint64_t> footprints_;      // by pipeline
  std::vector<std::unique_ptr<pipeline::JobShard>>
      shards_;  // by pipeline; null: owns nothing there
};

}  // namespace pbox::appliance
