// pbox-peer-pbox: the exchange by PBox. It uses a real pboxd: its own on loopback, or a running
// one. The ranks use libpbox as any worker does, in place, with all tensors in flight at once. See
// peer.h for the commands.
#include "pbox/pbox.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "nic/wire/half.h"
#include "perf/lists.h"
#include "perf/peers/program.h"
#include "perf/peers/ranks.h"

namespace {

using pbox::perf::Gradient;
using pbox::perf::Program;
using pbox::perf::Sample;

class PboxRank : public pbox::perf::Rank {
 public:
  PboxRank(uint32_t rank, const pbox::perf::PeerOptions& peer, const std::string& box,
           Gradient& gradient)
      : gradient_(gradient),
        call_(peer.call),
        is_bf16_(peer.values == "bf16"),
        rank_count_(peer.worker_count) {
    const std::vector<std::string> boxes = pbox::perf::entries_of(box);
    const uint32_t ranks_of_a_rack = peer.worker_count / static_cast<uint32_t>(boxes.size());
    pbox_options options;
    pbox_options_init(&options);
    options.box = boxes.at(rank / ranks_of_a_rack).c_str();
    // With keys it must be a name of the tenant `perf`.
    const std::string job = "perf/exchange" + (peer.values == "f32" ? "" : "-" + peer.values);
    options.job = job.c_str();
    if (peer.values == "q8") options.compression = PBOX_COMPRESSION_Q8;
    if (peer.values == "q4") options.compression = PBOX_COMPRESSION_Q4;
    if (peer.values == "auto") options.compression = PBOX_COMPRESSION_AUTO;
    options.keys = peer.keys.c_str();
    options.port = peer.port.c_str();
    options.rank = rank % ranks_of_a_rack;
    options.world_size = ranks_of_a_rack;
    options.window_bytes = peer.window_bytes;
    options.recovery = peer.recovery == "copy" ? PBOX_RECOVERY_COPY : PBOX_RECOVERY_NONE;
    options.mode = is_collective() ? PBOX_MODE_COLLECTIVE : PBOX_MODE_AGGREGATE;
    rank_ = options.rank;
    require(pbox_create(&options, &context_));
    if (!is_collective()) register_tensors();
    require(pbox_join(context_));
    if (peer.memory == "shared") {
      require(pbox_alloc(context_, gradient_.bytes(), &memory_));
      gradient_.move_to(static_cast<std::byte*>(memory_));
    }
  }
  ~PboxRank() override {
    pbox_destroy(context_);
    static_cast<void>(pbox_free(memory_));
  }
  PboxRank(const PboxRank&) = delete;
  PboxRank& operator=(const PboxRank&) = delete;

  void barrier() override { require(pbox_barrier(context_, 0)); }

  // The bf16 values lie in the first half of each tensor's memory.
  void prepare() override {
    if (!is_bf16_) return;
    for (const std::span<float> tensor : gradient_.tensors()) {
      auto* const halves = reinterpret_cast<std::byte*>(tensor.data());
      for (size_t at = 0; at < tensor.size(); ++at) {
        const uint16_t half = pbox::wire::narrow_bf16(tensor[at]);
        std::memcpy(halves + at * sizeof(half), &half, sizeof(half));
      }
    }
  }
  void finish() override {
    if (!is_bf16_) return;
    for (const std::span<float> tensor : gradient_.tensors()) {
      const auto* const halves = reinterpret_cast<const std::byte*>(tensor.data());
      for (size_t left = tensor.size(); left > 0; --left) {
        uint16_t half = 0;
        std::memcpy(&half, halves + (left - 1) * sizeof(half), sizeof(half));
        tensor[left - 1] = pbox::wire::widen_bf16(half);
      }
    }
  }

  void exchange() override {
    for (size_t index = 0; index < gradient_.tensors().size(); ++index) {
      float* data = gradient_.tensors()[index].data();
      if (is_collective()) {
        start(index);
      } else {
        require(
            pbox_push_pull(context_, static_cast<uint32_t>(index), data, data, nullptr, nullptr));
      }
    }
    require(pbox_wait_all(context_, 0));
  }

  uint64_t received_bytes() const override {
    pbox_statistics statistics{};
    statistics.struct_size = sizeof(statistics);
    require(pbox_get_statistics(context_, &statistics));
    return statistics.bytes_pulled;
  }

 private:
  bool is_collective() const { return call_ != "exchange"; }

  // The first layers have the highest priority, because the next forward pass needs them first.
  static int32_t priority(size_t index) { return -static_cast<int32_t>(index); }

  void register_tensors() {
    for (size_t index = 0; index < gradient_.tensors().size(); ++index) {
      uint32_t id = 0;  // equal to index
      require(pbox_register_tensor(context_, ("tensor " + std::to_string(index)).c_str(),
                                   gradient_.tensors()[index].size(),
                                   is_bf16_ ? PBOX_BF16 : PBOX_F32, priority(index), &id));
    }
  }

  void start(size_t index) {
    const std::span<float> tensor = gradient_.tensors()[index];
    const size_t segment = tensor.size() / rank_count_;
    float* const whole = tensor.data();
    float* const own = whole + rank_ * segment;
    const bool scatters = call_ == "reduce_scatter", gathers = call_ == "all_gather";
    require(pbox_collective(context_,
                            scatters  ? PBOX_REDUCE_SCATTER
                            : gathers ? PBOX_ALL_GATHER
                                      : PBOX_ALL_REDUCE,
                            gathers ? own : whole, scatters ? own : whole,
                            scatters || gathers ? segment : tensor.size(), PBOX_F32, PBOX_OP_SUM, 0,
                            priority(index), nullptr, nullptr, nullptr));
  }

  void require(pbox_status status) const {
    if (status != PBOX_OK) throw std::runtime_error(pbox_last_error(context_));
  }

  Gradient& gradient_;
  std::string call_;
  bool is_bf16_ = false;
  uint32_t rank_count_ = 1;
  uint32_t rank_ = 0;
  pbox_context* context_ = nullptr;
  void* memory_ = nullptr;  // from pbox_alloc
};

// Returns the resident memory of a process. Adds huge pages, which VmRSS does not include.
uint64_t resident_bytes(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  uint64_t resident_kib = 0;
  for (std::string word; status >> word;) {
    uint64_t kib = 0;
    if ((word == "VmRSS:" || word == "HugetlbPages:") && status >> kib) resident_kib += kib;
  }
  return resident_kib << 10;
}

std::vector<std::string> box_command(const std::string& own_path, const std::string& flags) {
  std::vector<std::string> command{std::filesystem::path(own_path).parent_path() / "pboxd",
                                   "--control.port=0",
                                   "--data.port_first=0",
                                   "--cluster.state_directory=none",
                                   "--admin.enabled=false",
                                   "--log.level=warn"};
  std::istringstream words(flags);
  for (std::string flag; words >> flag;) command.push_back(flag);
  return command;
}

// "pboxd ready control=ADDRESS:PORT ..." is the first line a box prints.
std::string control_address(Program& box) {
  constexpr int kStartLimitMs = 30'000;
  const std::string line = box.read_line(kStartLimitMs);
  std::istringstream words(line);
  const std::string key = "control=";
  for (std::string word; words >> word;) {
    if (word.rfind(key, 0) == 0) return word.substr(key.size());
  }
  throw std::runtime_error("pboxd did not become ready: '" + line + "'");
}

int run(const pbox::perf::PeerOptions& options, Gradient& gradient) {
  std::unique_ptr<Program> own_box;
  std::string address = options.box;
  if (address.empty()) {
    own_box = std::make_unique<Program>(
        box_command(std::filesystem::read_symlink("/proc/self/exe"), options.box_flags));
    address = control_address(*own_box);
  }
  return pbox::perf::run_ranks(options, gradient,
                               {"pbox",
                                [&](uint32_t rank, Gradient& own) {
                                  return std::make_unique<PboxRank>(rank, options, address, own);
                                },
                                [&](Sample& sample) {
                                  if (own_box == nullptr)
                                    return;  // the process that started the box measures it
                                  sample.cpu_seconds +=
                                      pbox::perf::process_cpu_seconds(own_box->pid());
                                  sample.box_bytes = resident_bytes(own_box->pid());
                                }});
}

}  // namespace

int main(int argc, char** argv) {
  return pbox::perf::peer_main(argc, argv, "pbox", run);
}
