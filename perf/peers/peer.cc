#include "perf/peers/peer.h"

#include <fcntl.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include "perf/lists.h"
#include "perf/peers/work.h"

namespace pbox::perf {
namespace {

constexpr size_t kFloatsPerLine = 16;

Error bad_option(const std::string& option, const std::string& value, const std::string& remedy) {
  return Error{ErrorCode::kInvalidArgument, option + " '" + value + "': " + remedy};
}

Status parse_number(const std::string& option, std::string_view text, uint32_t& number) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size()) {
    return bad_option(option, std::string(text), "must be a number in [0, 2^32)");
  }
  return ok_status();
}

Status parse_hosts(const std::string& text, std::vector<PeerHost>& hosts) {
  for (const std::string& host : entries_of(text)) {
    const size_t at = host.find('@');
    if (at == std::string::npos) {
      return bad_option("--hosts", host, "must be PATH@ADDRESS; separate several by commas");
    }
    hosts.push_back({host.substr(0, at), host.substr(at + 1)});
  }
  return ok_status();
}

// Returns the field of an option that may be any text; null for other options.
std::string* text_field(PeerOptions& options, const std::string& option) {
  if (option == "--model") return &options.model;
  if (option == "--box") return &options.box;
  if (option == "--box-flags") return &options.box_flags;
  if (option == "--keys") return &options.keys;
  if (option == "--port") return &options.port;
  return nullptr;
}

Status set_option(PeerOptions& options, const std::string& option, const std::string& value) {
  if (std::string* const field = text_field(options, option)) {
    *field = value;
    return ok_status();
  }
  if (option == "--workers") return parse_number(option, value, options.worker_count);
  if (option == "--iterations") return parse_number(option, value, options.iterations);
  if (option == "--warmup") return parse_number(option, value, options.warmup);
  if (option == "--seed") return parse_number(option, value, options.seed);
  if (option == "--hosts") return parse_hosts(value, options.hosts);
  if (option == "--window-bytes") return parse_number(option, value, options.window_bytes);
  if (option == "--values") {
    constexpr std::string_view kValues[] = {"f32", "bf16", "q8", "q4", "auto", "zeros"};
    if (std::find(std::begin(kValues), std::end(kValues), value) == std::end(kValues)) {
      return bad_option(option, value, "must be f32, bf16, q8, q4, auto or zeros");
    }
    options.values = value;
    return ok_status();
  }
  if (option == "--memory") {
    if (value != "own" && value != "shared") {
      return bad_option(option, value, "must be own or shared");
    }
    options.memory = value;
    return ok_status();
  }
  if (option == "--recovery") {
    if (value != "none" && value != "copy") {
      return bad_option(option, value, "must be none or copy");
    }
    options.recovery = value;
    return ok_status();
  }
  if (option == "--call") {
    constexpr std::string_view kCalls[] = {"exchange", "all_reduce", "reduce_scatter",
                                           "all_gather"};
    if (std::find(std::begin(kCalls), std::end(kCalls), value) == std::end(kCalls)) {
      return bad_option(option, value,
                        "must be exchange, all_reduce, reduce_scatter or all_gather");
    }
    options.call = value;
    return ok_status();
  }
  if (option == "--layout") {
    if (value != "tensors" && value != "buffer") {
      return bad_option(option, value, "must be tensors or buffer");
    }
    options.layout = value;
    return ok_status();
  }
  return bad_option(
      option, value,
      "unknown option; use --model --layout --call --workers --iterations --warmup "
      "--seed --recovery --port --memory --box-flags --box --keys --values --window-bytes --hosts");
}

void print_sample(const Sample& sample) {
  std::printf("{\"ms\":%.4f,\"cpu_s\":%.6f,\"checked\":%s", sample.ms, sample.cpu_seconds,
              sample.wrong == 0 ? "true" : "false");
  if (sample.box_bytes != 0) std::printf(",\"box_bytes\":%" PRIu64, sample.box_bytes);
  if (sample.received_bytes != 0) {
    std::printf(",\"received_bytes\":%" PRIu64, sample.received_bytes);
  }
  std::printf("}\n");
  std::fflush(stdout);
}

// Prints the fields that identify the measurement, without the closing brace.
void print_head(const PeerOptions& options, const std::string& system, uint32_t worker_count) {
  std::printf("\"system\":\"%s\",\"model\":\"%s\",\"layout\":\"%s\",\"workers\":%u", system.c_str(),
              options.model.c_str(), options.layout.c_str(), worker_count);
}

int measure_alone(const PeerOptions& options, const std::string& system, uint32_t worker_count,
                  uint32_t first, const std::function<Sample(uint32_t)>& exchange) {
  std::vector<Sample> samples;
  for (uint32_t i = 0; i < options.iterations; ++i) samples.push_back(exchange(first + i));
  double cpu_seconds = 0;
  uint64_t wrong = 0;
  std::printf("{");
  print_head(options, system, worker_count);
  std::printf(",\"iterations_ms\":[");
  for (size_t i = 0; i < samples.size(); ++i) {
    std::printf("%s%.4f", i == 0 ? "" : ",", samples[i].ms);
    cpu_seconds += samples[i].cpu_seconds;
    wrong += samples[i].wrong;
  }
  std::printf("],\"cpu_seconds\":%.6f,\"checked\":%s}\n", cpu_seconds,
              wrong == 0 ? "true" : "false");
  std::fflush(stdout);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

Result<PeerOptions> parse_peer_options(int argc, char** argv) {
  PeerOptions options;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    if (i + 1 == argc) return bad_option(option, "", "the option needs a value");
    const Status set = set_option(options, option, argv[i + 1]);
    if (!set) return set.error();
  }
  if (options.worker_count == 0 || options.worker_count > kPatternRanksMax) {
    return bad_option("--workers", std::to_string(options.worker_count),
                      "must be in [1, " + std::to_string(kPatternRanksMax) + "]");
  }
  if (!options.hosts.empty() && options.hosts.size() != options.worker_count) {
    return bad_option("--hosts", to_text(options.hosts), "must name as many hosts as --workers");
  }
  return options;
}

std::string to_text(const std::vector<PeerHost>& hosts) {
  std::string text;
  for (const PeerHost& host : hosts) {
    text += (text.empty() ? "" : ",") + host.network_path + "@" + host.address;
  }
  return text;
}

void enter_host(const PeerOptions& options, uint32_t rank) {
  if (options.hosts.empty()) return;
  const std::string& path = options.hosts.at(rank).network_path;
  const int network = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (network < 0 || setns(network, CLONE_NEWNET) != 0) {
    throw std::runtime_error("cannot enter the network namespace " + path);
  }
  close(network);
}

void require_exchange(const PeerOptions& options) {
  if (options.call == "exchange") return;
  throw std::runtime_error("--call '" + options.call +
                           "': this system makes no other call than exchange; use pbox or gloo");
}

double process_cpu_seconds(pid_t process) {
  clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
  timespec used{};
  if (process != 0 && clock_getcpuclockid(process, &clock) != 0) return 0;
  clock_gettime(clock, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

Result<Gradient> Gradient::create(const PeerOptions& options) {
  const auto model = model_by_name(options.model);
  if (!model) return model.error();
  const auto tensors = options.layout == "buffer" ? as_one_buffer(*model) : *model;
  const bool has_segments = options.call == "reduce_scatter" || options.call == "all_gather";
  for (const ModelTensor& tensor : tensors) {
    if (!has_segments || tensor.elements % options.worker_count == 0) continue;
    return bad_option("--call", options.call,
                      "a tensor of " + std::to_string(tensor.elements) +
                          " elements has no equal segments for " +
                          std::to_string(options.worker_count) +
                          " workers; use --layout buffer, or another --workers");
  }
  const auto padded = [](uint64_t elements) {
    return (elements + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
  };
  uint64_t block_elements = kFloatsPerLine;
  for (const ModelTensor& tensor : tensors) block_elements += padded(tensor.elements);
  Gradient gradient;
  gradient.seed_ = options.seed;
  gradient.block_.resize(block_elements);
  const auto misplaced = reinterpret_cast<uintptr_t>(gradient.block_.data()) / sizeof(float);
  float* next = gradient.block_.data() + (kFloatsPerLine - misplaced % kFloatsPerLine);
  uint32_t first_index = 0;
  for (const ModelTensor& tensor : tensors) {
    gradient.tensors_.emplace_back(next, tensor.elements);
    gradient.first_indices_.push_back(first_index);
    next += padded(tensor.elements);
    first_index += static_cast<uint32_t>(tensor.elements);
  }
  return gradient;
}

void Gradient::move_to(std::byte* memory) {
  float* const first = tensors_[0].data();
  auto* const place = reinterpret_cast<float*>(memory);
  for (std::span<float>& tensor : tensors_) {
    tensor = {place + (tensor.data() - first), tensor.size()};
  }
  block_ = {};
}

void Gradient::fill(uint32_t iteration, uint32_t rank) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    fill_gradient(tensors_[i], seed_, iteration, rank, first_indices_[i]);
  }
}

void Gradient::leave_out(uint32_t iteration) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    for (size_t at = 0; at < tensors_[i].size(); ++at) {
      const uint32_t index = first_indices_[i] + static_cast<uint32_t>(at);
      if (is_left_out(seed_, iteration, index)) tensors_[i][at] = 0;
    }
  }
}

uint64_t Gradient::count_wrong_sparse(uint32_t iteration, uint32_t rank_count) const {
  const uint32_t weight = pattern_weight_sum(rank_count);
  uint64_t wrong = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    for (size_t at = 0; at < tensors_[i].size(); ++at) {
      const uint32_t index = first_indices_[i] + static_cast<uint32_t>(at);
      const uint32_t whole = weight * pattern_base(seed_, iteration, index);
      const uint32_t expected = is_left_out(seed_, iteration, index) ? 0 : whole;
      wrong += tensors_[i][at] != static_cast<float>(expected);
    }
  }
  return wrong;
}

uint64_t Gradient::count_wrong(uint32_t iteration, uint32_t rank_count) const {
  uint64_t wrong = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    wrong += count_wrong_sums(tensors_[i], seed_, iteration, rank_count, first_indices_[i]);
  }
  return wrong;
}

uint64_t Gradient::count_far(uint32_t iteration, uint32_t rank_count, double share) const {
  const double weight = pattern_weight_sum(rank_count);
  const double bound = share * weight * kPatternBaseMax;
  uint64_t far = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    for (size_t at = 0; at < tensors_[i].size(); ++at) {
      const uint32_t index = first_indices_[i] + static_cast<uint32_t>(at);
      const double expected = weight * pattern_base(seed_, iteration, index);
      far += !(std::fabs(double{tensors_[i][at]} - expected) <= bound);
    }
  }
  return far;
}

uint64_t Gradient::count_wrong_scattered(uint32_t iteration, uint32_t rank_count, uint32_t rank,
                                         bool at_front) const {
  uint64_t wrong = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const size_t elements = tensors_[i].size() / rank_count;
    const size_t first = rank * elements;
    wrong += count_wrong_sums(tensors_[i].subspan(at_front ? 0 : first, elements), seed_, iteration,
                              rank_count, first_indices_[i] + static_cast<uint32_t>(first));
  }
  return wrong;
}

uint64_t Gradient::count_wrong_gathered(uint32_t iteration, uint32_t rank_count) const {
  uint64_t wrong = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const size_t elements = tensors_[i].size() / rank_count;
    for (uint32_t rank = 0; rank < rank_count; ++rank) {
      const size_t first = rank * elements;
      wrong += count_wrong_values(tensors_[i].subspan(first, elements), pattern_weight(rank), seed_,
                                  iteration, first_indices_[i] + static_cast<uint32_t>(first));
    }
  }
  return wrong;
}

int drive_peer(const PeerOptions& options, const std::string& system, uint32_t worker_count,
               const std::function<Sample(uint32_t iteration)>& exchange) {
  uint32_t iteration = 0;
  uint64_t wrong = 0;
  while (iteration < options.warmup) wrong += exchange(iteration++).wrong;
  if (wrong != 0) return 1;
  if (options.iterations != 0) {
    return measure_alone(options, system, worker_count, iteration, exchange);
  }
  std::printf("{\"ready\":true,");
  print_head(options, system, worker_count);
  std::printf("}\n");
  std::fflush(stdout);
  std::string command;
  while (std::getline(std::cin, command) && command != "quit") {
    if (command != "run") {
      std::fprintf(stderr, "command '%s' is unknown: use run or quit\n", command.c_str());
      return 1;
    }
    const Sample sample = exchange(iteration++);
    print_sample(sample);
    wrong += sample.wrong;
  }
  return wrong == 0 ? 0 : 1;
}

int peer_main(int argc, char** argv, const std::string& system,
              const std::function<int(const PeerOptions&, Gradient&)>& run) {
  const auto options = parse_peer_options(argc, argv);
  auto gradient = options ? Gradient::create(*options) : Result<Gradient>(options.error());
  if (!gradient) {
    std::fprintf(stderr, "pbox-peer-%s: %s\n", system.c_str(), gradient.error().message.c_str());
    return 2;
  }
  try {
    return run(*options, *gradient);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pbox-peer-%s: %s\n", system.c_str(), error.what());
    return 1;
  }
}

}  // namespace pbox::perf
