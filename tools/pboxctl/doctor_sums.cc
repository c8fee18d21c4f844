#include <cstring>
#include <iomanip>
#include <optional>
#include <sstream>

#include "base/clock.h"
#include "base/rng.h"
#include "pipeline/optimizer/reference.h"
#include "tools/pboxctl/doctor_checks.h"
#include "tools/pboxctl/doctor_job.h"

namespace pboxctl {
namespace {

using pbox::wire::Dtype;

constexpr uint64_t kTimeoutNs = 3 * pbox::kNanosPerSecond;
constexpr char kRemedy[] =
    "the network or memory damages data. With data.payload_crc = on at the box, damaged packets "
    "are sent again. See ethtool -S at both ends, and test the memory";

// Returns a random element that is neither an infinity nor a NaN: its exponent is not all ones.
uint32_t random_element(pbox::Rng& rng, Dtype dtype) {
  const uint32_t exponent = dtype == Dtype::kF32   ? 0x7f800000
                            : dtype == Dtype::kF16 ? 0x7c00
                                                   : 0x7f80;
  for (;;) {
    const auto bits =
        static_cast<uint32_t>(rng.below(uint64_t{1} << (dtype == Dtype::kF32 ? 32 : 16)));
    if ((bits & exponent) != exponent) return bits;
  }
}

void fill(std::vector<std::byte>& bytes, Dtype dtype, pbox::Rng& rng) {
  const size_t width = pbox::wire::dtype_bytes(dtype);
  for (size_t at = 0; at < bytes.size(); at += width) {
    const uint32_t bits = random_element(rng, dtype);
    std::memcpy(bytes.data() + at, &bits, width);
  }
}

std::string hexadecimal(const std::byte* element, size_t width) {
  std::ostringstream text;
  text << "0x" << std::hex << std::setfill('0');
  for (size_t index = width; index-- > 0;) {
    text << std::setw(2) << std::to_integer<unsigned>(element[index]);
  }
  return text.str();
}

// Describes the first element in which the two differ; nothing if they are equal.
std::optional<std::string> difference(const std::vector<std::byte>& expected,
                                      const std::vector<std::byte>& actual, Dtype dtype) {
  const size_t width = pbox::wire::dtype_bytes(dtype);
  for (size_t at = 0; at < expected.size(); at += width) {
    if (std::memcmp(expected.data() + at, actual.data() + at, width) == 0) continue;
    return std::string(pbox::wire::to_string(dtype)) + " element " + std::to_string(at / width) +
           " is not " + hexadecimal(expected.data() + at, width) + " but " +
           hexadecimal(actual.data() + at, width);
  }
  return std::nullopt;
}

// Exchanges a tensor. If the exchange itself fails, reports that and returns false.
bool exchange(ProbeJob& job, uint32_t tensor, bool initial_weights, const char* check,
              Report& report) {
  pbox::Status status = job.start(tensor, initial_weights);
  if (status) status = job.wait(tensor, pbox::monotonic_ns() + kTimeoutNs);
  if (!status && !stop_requested) {
    report.fail(check, status.error().message, "journalctl -u pboxd on the box");
  }
  return status.ok();
}

void check_aggregate(const BoxPath& path, Report& report) {
  constexpr uint64_t kElements = 100'003;  // a prime, so that the last chunk is not full
  constexpr int kRounds = 3;               // uses both slots of each chunk, and one of them again
  constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kF16, Dtype::kBf16};
  std::vector<ProbeTensor> tensors;
  for (const Dtype dtype : kDtypes) tensors.push_back({kElements, dtype});
  const auto job = ProbeJob::join(path.probe("sums"), tensors);
  if (!job) {
    report.fail("sums", job.error().message, "journalctl -u pboxd on the box");
    return;
  }
  pbox::Rng rng(pbox::monotonic_ns());
  for (int round = 0; round < kRounds; ++round) {
    for (uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
      fill((*job)->input(tensor), kDtypes[tensor], rng);
      if (!exchange(**job, tensor, false, "sums", report)) return;
      const auto wrong = difference((*job)->input(tensor), (*job)->output(tensor), kDtypes[tensor]);
      if (!wrong) continue;
      report.fail("sums", "a sum is wrong: " + *wrong, kRemedy);
      return;
    }
  }
  report.ok("sums", "all " + std::to_string(kRounds * kElements * tensors.size()) +
                        " sums in f32, f16 and bf16 are correct, bit for bit");
}

// Returns the weights after one step of SGD, computed from the definition of the step.
std::vector<std::byte> expected_weights(const std::vector<std::byte>& weights,
                                        const std::vector<std::byte>& gradient,
                                        float learning_rate) {
  using namespace pbox::optimizer;
  const OptimizerSpec spec{.kind = OptimizerKind::kSgd, .learning_rate = learning_rate};
  const auto coefficients = step_coefficients(spec, step_parameters(spec, 1, 0, 1, 1));
  std::vector<std::byte> expected = weights;
  for (size_t at = 0; at < expected.size(); at += sizeof(float)) {
    float weight = 0, slope = 0;
    std::memcpy(&weight, weights.data() + at, sizeof(weight));
    std::memcpy(&slope, gradient.data() + at, sizeof(slope));
    reference::sgd(coefficients, weight, slope);
    std::memcpy(expected.data() + at, &weight, sizeof(weight));
  }
  return expected;
}

void fill_with_weights(std::vector<std::byte>& bytes, pbox::Rng& rng) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(float)) {
    const float value = static_cast<float>(rng.below(2'000'001)) / 1e6f - 1;  // in [-1, 1]
    std::memcpy(bytes.data() + at, &value, sizeof(value));
  }
}

void check_optimizer(const BoxPath& path, Report& report) {
  constexpr uint64_t kElements = 50'021;
  constexpr float kLearningRate = 0.1f;
  ProbeOptions options = path.probe("optimizer");
  options.optimizer.set_kind(static_cast<uint32_t>(pbox::optimizer::OptimizerKind::kSgd));
  options.optimizer.set_learning_rate(kLearningRate);
  const auto job = ProbeJob::join(options, {ProbeTensor{kElements}});
  if (!job) {
    report.fail("optimizer", job.error().message, "journalctl -u pboxd on the box");
    return;
  }
  pbox::Rng rng(pbox::monotonic_ns());
  fill_with_weights((*job)->input(0), rng);
  const std::vector<std::byte> weights = (*job)->input(0);
  if (!exchange(**job, 0, true, "optimizer", report)) return;
  auto wrong = difference(weights, (*job)->output(0), Dtype::kF32);
  if (!wrong) {
    fill_with_weights((*job)->input(0), rng);
    if (!exchange(**job, 0, false, "optimizer", report)) return;
    const auto expected = expected_weights(weights, (*job)->input(0), kLearningRate);
    wrong = difference(expected, (*job)->output(0), Dtype::kF32);
  }
  if (wrong) {
    report.fail("optimizer", "weights are wrong: " + *wrong, kRemedy);
    return;
  }
  report.ok("optimizer", "one step of SGD at the box gives " + std::to_string(kElements) +
                             " correct weights, bit for bit");
}

}  // namespace

void check_sums(const BoxPath& path, Report& report) {
  check_aggregate(path, report);
  if (!stop_requested) check_optimizer(path, report);
}

}  // namespace pboxctl
