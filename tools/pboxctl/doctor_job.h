// A temporary job of one worker, through which the doctor exchanges tensors with a box. With a
// world size of 1 the sum is the worker's own data, so the box returns it unchanged.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/client.h"

namespace pboxctl {

// Largest number of bytes in flight per pipeline. It is small, so that running jobs keep their
// bandwidth.
inline constexpr uint32_t kProbeWindowBytes = 256 * 1024;

struct ProbeTensor {
  uint64_t elements = 0;
  pbox::wire::Dtype dtype = pbox::wire::Dtype::kF32;

  size_t bytes() const { return elements * pbox::wire::dtype_bytes(dtype); }
};

struct ProbeOptions {
  std::string box;          // "HOST:PORT"
  std::string port;         // see pbox_options.port
  std::string purpose;      // suffix of the job's name in the box's journal, such as "mtu"
  std::string keys;         // see pbox_options.keys
  std::string job_pattern;  // the doctor's name for a job takes the place of its '*'
  uint32_t path_mtu = 0;
  uint32_t chunk_bytes = pbox::limits::kChunkBytesDefault;  // 0: the box's default
  pbox::proto::Optimizer optimizer = {};                    // kind 0: mode aggregate
};

// Used and destroyed by one thread. The destructor leaves the job.
class ProbeJob {
 public:
  // Joins a job. Takes at most about kJoinTimeoutMs for each address that the box's name has.
  static pbox::Result<std::unique_ptr<ProbeJob>> join(const ProbeOptions& options,
                                                      const std::vector<ProbeTensor>& tensors);

  const pbox::proto::Session& session() const { return client_.session(); }
  pbox::worker::Client& client() { return client_; }
  size_t tensor_count() const { return input_.size(); }
  // The buffers of a tensor. Do not access them while the tensor is in flight.
  std::vector<std::byte>& input(uint32_t tensor) { return input_[tensor]; }
  std::vector<std::byte>& output(uint32_t tensor) { return output_[tensor]; }

  pbox::Status start(uint32_t tensor, bool initial_weights = false);
  // Waits for the tensor's operation. Fails with kTimeout at the deadline, and with kClosed when
  // stop_requested is set.
  pbox::Status wait(uint32_t tensor, uint64_t deadline_ns);

  // Returns, for each pipeline, the first tensor that it owns; tensor_count() if it owns none. Each
  // tensor must be a single chunk.
  std::vector<uint32_t> tensor_of_pipelines() const;

  static constexpr uint32_t kJoinTimeoutMs = 3'000;

 private:
  explicit ProbeJob(pbox::worker::ClientOptions options) : client_(std::move(options)) {}

  std::vector<std::vector<std::byte>> input_;
  std::vector<std::vector<std::byte>> output_;
  pbox::worker::Client client_;  // last, so that it is destroyed before the buffers that it uses
};

// Joins a job of tensors of one chunk each, at least `per_pipeline` for each of `pipelines`. A box
// places new chunks on its less loaded pipelines. If other jobs load it unevenly, the job gets more
// tensors until every pipeline owns one, up to a bound; beyond it a pipeline may own none.
pbox::Result<std::unique_ptr<ProbeJob>> join_on_all(const ProbeOptions& options, size_t pipelines,
                                                    size_t per_pipeline);

}  // namespace pboxctl
