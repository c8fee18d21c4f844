#include "tools/pboxctl/doctor_job.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>

#include "base/check.h"
#include "base/clock.h"
#include "tools/pboxctl/doctor_report.h"

namespace pboxctl {

using pbox::Error;
using pbox::ErrorCode;
using pbox::Result;
using pbox::Status;

namespace {

// Filled with this byte, a tensor of any dtype holds ordinary numbers. Zeros would not be sent.
constexpr auto kFill = std::byte{0x3c};

// Returns a new name each time, because the box may not know yet that the previous job is over.
std::string job_name(const std::string& pattern, const std::string& purpose) {
  static std::atomic<uint32_t> jobs = 0;
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, sizeof(host) - 1);
  const std::string name = "doctor-" + std::string(host) + "-" + std::to_string(getpid()) + "-" +
                           std::to_string(++jobs) + "-" + purpose;
  const size_t star = pattern.find('*');
  PBOX_CHECK(star != std::string::npos);
  return pattern.substr(0, star) + name + pattern.substr(star + 1);
}

}  // namespace

Result<std::unique_ptr<ProbeJob>> ProbeJob::join(const ProbeOptions& options,
                                                 const std::vector<ProbeTensor>& tensors) {
  pbox::worker::ClientOptions chosen;
  chosen.box = options.box;
  chosen.port = options.port;
  chosen.keys = options.keys;
  chosen.job = job_name(options.job_pattern, options.purpose);
  chosen.optimize = options.optimizer.kind() != 0;
  chosen.chunk_bytes = options.chunk_bytes;
  chosen.window_bytes = kProbeWindowBytes;
  chosen.path_mtu = options.path_mtu;
  chosen.probes_path = false;  // so that the job joins on a narrow path, which check_mtu reports
  chosen.join_timeout_ms = kJoinTimeoutMs;
  chosen.recovery = pbox::worker::Recovery::kNone;  // the loss of the box must show as a fault
  std::unique_ptr<ProbeJob> job(new ProbeJob(chosen));
  for (const ProbeTensor& tensor : tensors) {
    const std::string name = "tensor-" + std::to_string(job->tensor_count());
    const auto added = job->client_.register_tensor(
        {.name = name, .elements = tensor.elements, .dtype = tensor.dtype});
    if (!added) return added.error();
    job->input_.emplace_back(tensor.bytes(), kFill);
    job->output_.emplace_back(tensor.bytes());
  }
  if (chosen.optimize) {
    if (const Status set = job->client_.set_optimizer(options.optimizer); !set) return set.error();
  }
  if (const Status joined = job->client_.join(); !joined) return joined.error();
  return job;
}

Status ProbeJob::start(uint32_t tensor, bool initial_weights) {
  const pbox::worker::Operation operation{.tensor = tensor,
                                          .input = input_[tensor].data(),
                                          .output = output_[tensor].data(),
                                          .initial_weights = initial_weights};
  return client_.start_many({&operation, 1}, {});
}

Status ProbeJob::wait(uint32_t tensor, uint64_t deadline_ns) {
  constexpr uint64_t kSliceMs = 100;  // longest delay before a signal takes effect
  for (;;) {
    if (stop_requested) return Error{ErrorCode::kClosed, "interrupted"};
    const uint64_t now_ns = pbox::monotonic_ns();
    const uint64_t left_ms =
        deadline_ns > now_ns ? (deadline_ns - now_ns) / pbox::kNanosPerMilli : 0;
    const auto slice_ms = static_cast<uint32_t>(std::clamp<uint64_t>(left_ms, 1, kSliceMs));
    const Status status = client_.wait(tensor, slice_ms);
    if (status || status.error().code != ErrorCode::kTimeout || left_ms <= kSliceMs) return status;
  }
}

std::vector<uint32_t> ProbeJob::tensor_of_pipelines() const {
  const std::string& owners = client_.session().chunk_pipeline();
  std::vector<uint32_t> tensors;
  for (int pipeline = 0; pipeline < client_.session().pipelines_size(); ++pipeline) {
    const size_t first = owners.find(static_cast<char>(pipeline));
    tensors.push_back(static_cast<uint32_t>(std::min(first, tensor_count())));
  }
  return tensors;
}

Result<std::unique_ptr<ProbeJob>> join_on_all(const ProbeOptions& options, size_t pipelines,
                                              size_t per_pipeline) {
  constexpr size_t kJobBytesMax = 32u << 20;
  constexpr size_t kGrowth = 4;
  const ProbeTensor tensor{options.chunk_bytes / 4};
  for (size_t count = pipelines * per_pipeline;; count *= kGrowth) {
    auto job = ProbeJob::join(options, std::vector<ProbeTensor>(count, tensor));
    if (!job) return job;
    const auto tensors = (*job)->tensor_of_pipelines();
    const bool all = std::all_of(tensors.begin(), tensors.end(),
                                 [&](uint32_t each) { return each < (*job)->tensor_count(); });
    if (all || count * kGrowth * tensor.bytes() > kJobBytesMax) return job;
  }
}

}  // namespace pboxctl
