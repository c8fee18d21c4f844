// A throw-away job of one worker, through which the doctor exchanges tensors with a box: with a
// world size of 1 the box sends back what it was sent, summed with nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/client.h"

namespace pboxctl {

// Small, so that running jobs keep their share: per pipeline, in flight at most.
inline constexpr uint32_t kProbeWindowBytes = 256 * 1024;

struct ProbeTensor {
  uint64_t elements = 0;
  pbox::wire::Dtype dtype = pbox::wire::Dtype::kF32;

  size_t bytes() const { return elements * pbox::wire::dtype_bytes(dtype); }
};

struct ProbeOptions {
  std::string box;      // "HOST:PORT"
  std::string port;     // as pbox_options.port
  std::string purpose;  // ends the job's name, for the box's journal: "mtu"
  uint32_t path_mtu = 0;
  uint32_t chunk_bytes = pbox::limits::kChunkBytesDefault;  // 0: the box's default
  pbox::proto::Optimizer optimizer = {};                    // kind 0: mode aggregate
};

// One thread, which also destroys it; that leaves the job.
class ProbeJob {
 public:
  // Within about kJoinTimeoutMs of each address the box's name has.
  static pbox::Result<std::unique_ptr<ProbeJob>> join(const ProbeOptions& options,
                                                      const std::vector<ProbeTensor>& tensors);

  const pbox::proto::Session& session() const { return client_.session(); }
  pbox::worker::Client& client() { return client_; }
  size_t tensor_count() const { return input_.size(); }
  // The buffers of a tensor; not to be touched while it is under way.
  std::vector<std::byte>& input(uint32_t tensor) { return input_[tensor]; }
  std::vector<std::byte>& output(uint32_t tensor) { return output_[tensor]; }

  pbox::Status start(uint32_t tensor, bool initial_weights = false);
  // kTimeout at the deadline, kClosed when stop_requested.
  pbox::Status wait(uint32_t tensor, uint64_t deadline_ns);

  // The first tensor whose first chunk a pipeline owns, for each pipeline; tensor_count() where it
  // owns none. For tensors of one chunk each.
  std::vector<uint32_t> tensor_of_pipelines() const;

  static constexpr uint32_t kJoinTimeoutMs = 3'000;

 private:
  explicit ProbeJob(pbox::worker::ClientOptions options) : client_(std::move(options)) {}

  std::vector<std::vector<std::byte>> input_;
  std::vector<std::vector<std::byte>> output_;
  pbox::worker::Client client_;  // the last member: its end frees the buffers above
};

// A joined job of tensors of one chunk each, at least `per_pipeline` for each of `pipelines`. Jobs
// that load the box unevenly draw the chunks of others away from its busy pipelines: then there are
// more tensors, up to a bound, beyond which a pipeline may be left with none.
pbox::Result<std::unique_ptr<ProbeJob>> join_on_all(const ProbeOptions& options, size_t pipelines,
                                                    size_t per_pipeline);

}  // namespace pboxctl
