// pbox-peer-gloo: the exchange by Gloo's default all-reduce (a ring) over its TCP transport, in
// place, one call per tensor; or its reduce-scatter (by halves) or its all-gather (a ring). It runs
// on loopback or between the machines of a rack. See peer.h for the commands.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>

#include "perf/peers/ranks.h"

namespace {

using pbox::perf::Gradient;

// Much longer than any exchange. Idle time does not count, because an idle rank waits on its pipe
// and not inside Gloo.
constexpr std::chrono::milliseconds kGlooTimeout{120'000};

class GlooRank : public pbox::perf::Rank {
 public:
  GlooRank(uint32_t rank, uint32_t rank_count, const std::string& address,
           const std::string& rendezvous_folder, const std::string& call, Gradient& gradient)
      : gradient_(gradient), call_(call) {
    gloo::rendezvous::FileStore store(rendezvous_folder);
    std::shared_ptr<gloo::transport::Device> device =
        gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address.c_str()));
    auto context = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(rank),
                                                               static_cast<int>(rank_count));
    context->setTimeout(kGlooTimeout);
    context->connectFullMesh(store, device);
    context_ = context;
    if (call_ != "reduce_scatter") return;
    for (const auto& tensor : gradient_.tensors()) {
      const std::vector<int> segments(rank_count, static_cast<int>(tensor.size() / rank_count));
      scatters_.push_back(std::make_unique<ReduceScatter>(
          context_, std::vector<float*>{tensor.data()}, static_cast<int>(tensor.size()), segments));
    }
  }

  void barrier() override {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }

  void exchange() override {
    if (call_ == "reduce_scatter") {
      for (const auto& scatter : scatters_) scatter->run();
    } else if (call_ == "all_gather") {
      gather();
    } else {
      reduce();
    }
  }

 private:
  using ReduceScatter = gloo::ReduceScatterHalvingDoubling<float>;

  void gather() {
    for (const auto& tensor : gradient_.tensors()) {
      gloo::AllgatherOptions options(context_);
      options.setOutput(tensor.data(), tensor.size());
      gloo::allgather(options);
    }
  }

  void reduce() {
    for (const auto& tensor : gradient_.tensors()) {
      gloo::AllreduceOptions options(context_);
      options.setOutput(tensor.data(), tensor.size());
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      gloo::allreduce(options);
    }
  }

  Gradient& gradient_;
  std::string call_;
  std::vector<std::unique_ptr<ReduceScatter>> scatters_;  // one per tensor; they keep their buffers
  std::shared_ptr<gloo::Context> context_;
};

int run(const pbox::perf::PeerOptions& options, Gradient& gradient) {
  std::string folder = std::filesystem::temp_directory_path() / "pbox-peer-gloo.XXXXXX";
  if (mkdtemp(folder.data()) == nullptr)
    throw std::runtime_error("cannot create the folder " + folder);
  const pid_t first = getpid();
  const auto make_rank = [&](uint32_t rank, Gradient& own) {
    const std::string address = options.hosts.empty() ? "127.0.0.1" : options.hosts[rank].address;
    return std::make_unique<GlooRank>(rank, options.worker_count, address, folder, options.call,
                                      own);
  };
  const int status = pbox::perf::run_ranks(
      options, gradient, {.system = "gloo", .make_rank = make_rank, .scatters_to_front = true});
  if (getpid() == first) std::filesystem::remove_all(folder);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  return pbox::perf::peer_main(argc, argv, "gloo", run);
}
