// Tensors on a CUDA device at a real box, by the C ABI, with a fake libcudart: results, what the
// streams run and in which order, and errors of CUDA.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <thread>

#include "pbox/cuda.h"
#include "tests/support/box_cluster.h"
#include "tests/support/daemon.h"
#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/worker_process.h"

extern "C" {
int cudaStreamCreateWithFlags(void** stream, unsigned flags);
int cudaStreamDestroy(void* stream);
int cudaStreamSynchronize(void* stream);
int cudaSetDevice(int device);
int cudaGetDevice(int* device);
}

namespace pbox::test {
namespace {

constexpr int kDevice = 1;
constexpr uint64_t kManySlices = (10u << 20) / sizeof(float) + 3;  // three of 4 MiB

// A rank in mode collective, with a device and its three streams.
class CudaRank {
 public:
  CudaRank(const std::string& box, uint32_t rank, uint32_t ranks, uint32_t wait_timeout_ms = 60'000)
      : worker_({.box = box, .rank = rank, .world_size = ranks, .adjust = [&](pbox_options& all) {
                   all.mode = PBOX_MODE_COLLECTIVE;
                   all.wait_timeout_ms = wait_timeout_ms;
                 }}) {
    fake_cuda_reset();
    for (void*& stream : streams_) cudaStreamCreateWithFlags(&stream, 1);
    worker_.join();
    worker_.must(pbox_cuda_attach(context(), kDevice, streams_[1], streams_[2]));
  }

  const AbiWorker& worker() const { return worker_; }
  pbox_context* context() const { return worker_.context(); }
  void* stream() const { return streams_[0]; }

  pbox_status start(pbox_verb verb, const void* in, void* out, uint64_t count,
                    uint64_t* operation = nullptr, pbox_dtype dtype = PBOX_F32,
                    uint32_t root = 0) const {
    return pbox_cuda_collective(context(), kDevice, stream(), verb, in, out, count, dtype,
                                PBOX_OP_SUM, root, 0, operation);
  }
  // Returns when the device has the result.
  void run(pbox_verb verb, const void* in, void* out, uint64_t count, pbox_dtype dtype = PBOX_F32,
           uint32_t root = 0) const {
    worker_.must(start(verb, in, out, count, nullptr, dtype, root));
    await_device();
  }
  void await_device() const { cudaStreamSynchronize(streams_[2]); }

 private:
  AbiWorker worker_;
  void* streams_[3] = {};  // never destroyed, like torch's streams
};

template <typename T>
std::vector<T> values_of(uint32_t rank, uint64_t count, uint64_t first = 0) {
  std::vector<T> values(count);
  for (uint64_t index = 0; index < count; ++index) {
    values[index] = static_cast<T>(((first + index) * 3 + rank * 5) % 23);
  }
  return values;
}

template <typename T>
std::vector<T> sums_of(uint32_t ranks, uint64_t count, uint64_t first = 0) {
  std::vector<T> sums(count);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const auto values = values_of<T>(rank, count, first);
    for (uint64_t index = 0; index < count; ++index) {
      sums[index] = static_cast<T>(sums[index] + values[index]);
    }
  }
  return sums;
}

template <typename T>
void check_verbs(const CudaRank& device, uint32_t rank, uint32_t ranks, uint64_t count,
                 pbox_dtype dtype) {
  const std::string where = " of " + std::to_string(count);
  const auto own = values_of<T>(rank, count);
  auto reduced = own;
  device.run(PBOX_ALL_REDUCE, reduced.data(), reduced.data(), count, dtype);
  require(reduced == sums_of<T>(ranks, count), "all_reduce in place" + where);
  std::vector<T> apart(count);
  device.run(PBOX_ALL_REDUCE, own.data(), apart.data(), count, dtype);
  require(apart == reduced && own == values_of<T>(rank, count), "all_reduce" + where);
  const auto wide = values_of<T>(rank, count * ranks);
  std::vector<T> scattered(count);
  device.run(PBOX_REDUCE_SCATTER, wide.data(), scattered.data(), count, dtype);
  require(scattered == sums_of<T>(ranks, count, rank * count), "reduce_scatter" + where);
  std::vector<T> gathered(count * ranks), expected;
  device.run(PBOX_ALL_GATHER, own.data(), gathered.data(), count, dtype);
  for (uint32_t from = 0; from < ranks; ++from) {
    const auto values = values_of<T>(from, count);
    expected.insert(expected.end(), values.begin(), values.end());
  }
  require(gathered == expected, "all_gather" + where);
  auto told = own;
  device.run(PBOX_BROADCAST, told.data(), told.data(), count, dtype, 1);
  require(told == values_of<T>(1, count), "broadcast" + where);
}

void require_no_violation() {
  const char* last = nullptr;
  const uint64_t violations = fake_cuda_violations(&last);
  require(violations == 0, last);
}

bool has_run(const std::string& kind) {
  std::vector<FakeCudaEntry> entries(1000);
  entries.resize(fake_cuda_entries(entries.data(), entries.size()));
  return std::any_of(entries.begin(), entries.end(),
                     [&](const auto& entry) { return entry.kind == kind; });
}

void await_run(const std::string& kind) {
  require(await([&] { return has_run(kind); }), "no stream has run " + kind);
}

// Runs `body` as each of two ranks.
template <typename F>
void run_two_ranks(const F& body) {
  const Daemon daemon;
  std::vector<WorkerProcess> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&daemon, &body, rank](Line& line) { body(daemon.control(), rank, line); });
  }
  for (auto& rank : ranks) CHECK(rank.finish() == "");
}

}  // namespace

TEST_CASE("tensors on a device get the results of every collective, by memory pinned once") {
  const uint32_t ranks = GENERATE(1u, 3u);
  const Daemon daemon;
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    workers.emplace_back([&daemon, rank, ranks](Line&) {
      const CudaRank device(daemon.control(), rank, ranks);
      cudaSetDevice(0);
      fake_cuda_delay_host_functions(rank == 0 ? 2 : 0);
      if (ranks == 1) return device.run(PBOX_BARRIER, nullptr, nullptr, 0);
      uint64_t pins = 0;
      for (int repeat = 0; repeat < 3; ++repeat) {
        for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{1001}}) {
          check_verbs<float>(device, rank, ranks, count, PBOX_F32);
          check_verbs<int8_t>(device, rank, ranks, count, PBOX_I8);
          check_verbs<double>(device, rank, ranks, count, PBOX_F64);
        }
        check_verbs<float>(device, rank, ranks, kManySlices, PBOX_F32);
        device.run(PBOX_BARRIER, nullptr, nullptr, 0);
        if (repeat == 1) pins = fake_cuda_pins();
      }
      require(fake_cuda_pins() == pins, "memory was pinned again for the same sizes");
      int current = -1;
      cudaGetDevice(&current);
      require(current == 0, "the thread's device has changed");
      require_no_violation();
    });
  }
  for (auto& worker : workers) CHECK(worker.finish() == "");
}

TEST_CASE("copies out, network and copies back of one operation overlap, and no call waits") {
  run_two_ranks([](const std::string& box, uint32_t rank, Line&) {
    const CudaRank device(box, rank, 2);
    auto tensor = values_of<float>(rank, kManySlices);
    fake_cuda_hold_after(1);
    uint64_t operation = 0;
    device.worker().must(
        device.start(PBOX_ALL_REDUCE, tensor.data(), tensor.data(), kManySlices, &operation));
    // The first slice is back before the second one was copied out.
    await_run("to_device");
    fake_cuda_release();
    device.worker().must(pbox_wait_collective(device.context(), operation, 0));
    device.await_device();
    require(tensor == sums_of<float>(2, kManySlices), "the result is wrong");
    require_no_violation();
  });
}

TEST_CASE("an operation takes its turn with the call, although its input comes later") {
  run_two_ranks([](const std::string& box, uint32_t rank, Line&) {
    const CudaRank device(box, rank, 2);
    auto first = values_of<float>(rank, 100), second = values_of<float>(rank + 2, 100);
    if (rank == 0) fake_cuda_hold_after(0);
    uint64_t operations[2] = {};
    device.worker().must(
        device.start(PBOX_ALL_REDUCE, first.data(), first.data(), 100, &operations[0]));
    device.worker().must(pbox_collective(device.context(), PBOX_ALL_REDUCE, second.data(),
                                         second.data(), 100, PBOX_F32, PBOX_OP_SUM, 0, 0, nullptr,
                                         nullptr, &operations[1]));
    if (rank == 0) {
      for (const uint64_t operation : operations) {
        const std::string late = device.worker().must_be(
            PBOX_TIMEOUT, pbox_wait_collective(device.context(), operation, 20));
        require_contains(late, "input that the device has not copied to host memory yet");
      }
      fake_cuda_release();
    }
    for (const uint64_t operation : operations) {
      device.worker().must(pbox_wait_collective(device.context(), operation, 0));
    }
    device.await_device();
    require(first == sums_of<float>(2, 100), "the device's result is wrong");
    require(second[1] == values_of<float>(2, 100)[1] + values_of<float>(3, 100)[1],
            "the host's result is wrong");
  });
}

TEST_CASE("an operation is ordered behind the caller's stream, its input and its output") {
  run_two_ranks([](const std::string& box, uint32_t rank, Line&) {
    const CudaRank device(box, rank, 2);
    struct Kernel {
      uint32_t rank;
      std::vector<float> reduced, told;
      bool has_seen_early_result = false;
    } kernel{rank, std::vector<float>(100, -1.0f), std::vector<float>(100, -2.0f)};
    const auto compute = [](void* user) {
      auto& self = *static_cast<Kernel*>(user);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      self.has_seen_early_result = self.told != std::vector<float>(100, -2.0f);
      std::ranges::copy(values_of<float>(self.rank, 100), self.reduced.begin());
      if (self.rank == 0) std::ranges::copy(values_of<float>(7, 100), self.told.begin());
    };
    fake_cuda_launch(device.stream(), compute, &kernel);
    auto& [number, reduced, told, has_seen_early_result] = kernel;
    device.worker().must(device.start(PBOX_BROADCAST, told.data(), told.data(), 100));
    device.run(PBOX_ALL_REDUCE, reduced.data(), reduced.data(), 100);
    require(!has_seen_early_result, "a result has come before the work that reads the last one");
    require(reduced == sums_of<float>(2, 100), "the sum has an input that was not computed yet");
    require(told == values_of<float>(7, 100), "the broadcast has such an input");
  });
}

TEST_CASE("pinned memory is not used again before it was copied back") {
  run_two_ranks([](const std::string& box, uint32_t rank, Line&) {
    constexpr uint64_t kCount = 1u << 19;  // 2 MiB
    const CudaRank device(box, rank, 2);
    std::vector<std::vector<float>> tensors;
    for (uint32_t index = 0; index < 4; ++index) tensors.push_back(values_of<float>(index, kCount));
    if (rank == 1) {
      for (auto& tensor : tensors) tensor.assign(kCount, -1.0f);
      fake_cuda_slow_copies(50'000);
    }
    for (auto& tensor : tensors) {
      uint64_t operation = 0;
      device.worker().must(
          device.start(PBOX_BROADCAST, tensor.data(), tensor.data(), kCount, &operation));
      device.worker().must(pbox_wait_collective(device.context(), operation, 0));
    }
    device.await_device();
    for (uint32_t index = 0; index < 4; ++index) {
      require(tensors[index] == values_of<float>(index, kCount),
              "tensor " + std::to_string(index) + " has values of another one");
    }
    require_no_violation();
  });
}

TEST_CASE("errors of CUDA before an operation has begun are named, and the job goes on") {
  run_two_ranks([](const std::string& box, uint32_t rank, Line&) {
    const CudaRank device(box, rank, 2);
    auto tensor = values_of<float>(rank, 1000);
    const auto all_reduce = [&] {
      return device.start(PBOX_ALL_REDUCE, tensor.data(), tensor.data(), 1000);
    };
    fake_cuda_fail("cudaHostAlloc", 0, 2, 0);
    const std::string pinned = device.worker().must_be(PBOX_SYSTEM, all_reduce());
    require_contains(pinned, "cudaHostAlloc cannot pin 65536 bytes of host memory: out of memory");
    require_contains(pinned, "raise the memory limit");
    fake_cuda_capture(1);
    require_contains(device.worker().must_be(PBOX_INVALID_ARGUMENT, all_reduce()),
                     "captured into a CUDA graph");
    fake_cuda_capture(0);
    fake_cuda_fail("cudaEventRecord", 0, 700, 0);
    require_contains(device.worker().must_be(PBOX_SYSTEM, all_reduce()),
                     "cudaEventRecord on CUDA device 1: an illegal memory access");
    require_contains(
        device.worker().must_be(PBOX_INVALID_ARGUMENT,
                                pbox_cuda_collective(device.context(), 7, nullptr, PBOX_BARRIER,
                                                     nullptr, nullptr, 0, 0, 0, 0, 0, nullptr)),
        "CUDA device 7 is not attached");
    device.worker().must(all_reduce());
    device.await_device();
    require(tensor == sums_of<float>(2, 1000), "the result is wrong");
    require_no_violation();
  });
}

TEST_CASE("after an error of CUDA in an operation the ranks end, and no stream waits for ever") {
  const std::string function =
      GENERATE("cudaMemcpyAsync", "cudaLaunchHostFunc", "cuStreamWaitValue32");
  run_two_ranks([function](const std::string& box, uint32_t rank, Line&) {
    auto tensor = values_of<float>(rank, kManySlices);
    {
      const CudaRank device(box, rank, 2);
      if (rank == 0) fake_cuda_fail(function.c_str(), 1, 801, 1);
      const pbox_status started =
          device.start(PBOX_ALL_REDUCE, tensor.data(), tensor.data(), kManySlices);
      if (rank == 0) {
        const std::string text = device.worker().must_be(PBOX_SYSTEM, started);
        require_contains(text, "on CUDA device 1: operation not supported (801)");
        device.worker().leave();
      } else {
        device.worker().must(started);
        device.await_device();
        // If only the gate of rank 0 fails, rank 0 has sent all that this rank needs.
        if (function != "cuStreamWaitValue32") {
          require(std::isnan(tensor.back()), "a result that has not come is not NaN");
        }
      }
    }
    require_no_violation();
  });
}

TEST_CASE("after the loss of a rank streams go on, with NaN in place of floating-point results") {
  run_two_ranks([](const std::string& box, uint32_t rank, Line&) {
    auto floats = values_of<float>(rank, kManySlices);
    auto integers = values_of<int32_t>(rank, 1000);
    std::vector<double> gathered(2000);
    {
      const CudaRank device(box, rank, 2);
      if (rank == 1) return device.worker().leave();
      // One slice has been copied to the host when the job fails. The others are copied later.
      fake_cuda_hold_after(1);
      uint64_t operation = 0;
      device.worker().must(
          device.start(PBOX_ALL_REDUCE, floats.data(), floats.data(), kManySlices, &operation));
      device.worker().must(
          device.start(PBOX_ALL_REDUCE, integers.data(), integers.data(), 1000, nullptr, PBOX_I32));
      device.worker().must_be(PBOX_WORKER_LOST,
                              pbox_wait_collective(device.context(), operation, 0));
      fake_cuda_release();
      device.await_device();
      const std::vector<double> own(1000, 1.0);
      device.worker().must_be(
          PBOX_WORKER_LOST,
          device.start(PBOX_ALL_GATHER, own.data(), gathered.data(), 1000, nullptr, PBOX_F64));
    }
    for (const float value : floats) require(std::isnan(value), "a result that has not come");
    require(integers == values_of<int32_t>(rank, 1000), "integers are not poisoned");
    require(gathered == std::vector<double>(2000), "an operation that was refused has written");
    require_no_violation();
  });
}

TEST_CASE("the box steps weights of a device, and they stay the last ones when a rank is lost") {
  run_two_ranks([](const std::string& box, uint32_t rank, Line&) {
    constexpr uint64_t kElements = 100'001;
    fake_cuda_reset();
    void* streams[3] = {};
    for (void*& stream : streams) cudaStreamCreateWithFlags(&stream, 1);
    std::vector<float> weights(kElements, 8.0f);
    {
      const AbiWorker worker(
          {.box = box, .rank = rank, .world_size = 2, .adjust = [](pbox_options& all) {
             all.mode = PBOX_MODE_OPTIMIZE;
             all.reduction = PBOX_MEAN;
           }});
      const uint32_t tensor = worker.tensor("weights", kElements);
      worker.join_with_sgd(0.5f, tensor, weights);
      worker.must(pbox_cuda_attach(worker.context(), kDevice, streams[1], streams[2]));
      require_contains(
          worker.must_be(PBOX_INVALID_ARGUMENT, pbox_cuda_pull(worker.context(), kDevice,
                                                               streams[0], tensor, weights.data())),
          "was not pushed from this device");
      const std::vector<float> gradient(kElements, static_cast<float>(2 * rank));  // the mean is 1
      const auto push = [&] {
        return pbox_cuda_push(worker.context(), kDevice, streams[0], tensor, gradient.data(), 0);
      };
      const auto pull = [&] {
        return pbox_cuda_pull(worker.context(), kDevice, streams[0], tensor, weights.data());
      };
      for (int step = 1; step <= 3; ++step) {
        worker.must(push());
        if (step == 2) worker.must(pbox_wait(worker.context(), tensor, 0));
        worker.must(pull());
        worker.must(pbox_wait(worker.context(), tensor, 0));
        cudaStreamSynchronize(streams[2]);
        require(weights == std::vector<float>(kElements, 8.0f - 0.5f * static_cast<float>(step)),
                "the weights after step " + std::to_string(step));
      }
      if (rank == 1) return worker.leave();
      fake_cuda_hold_after(0);
      worker.must(push());
      require_contains(worker.must_be(PBOX_TIMEOUT, pbox_wait(worker.context(), tensor, 20)),
                       "the device has not copied its gradient to host memory yet");
      require_contains(worker.must_be(PBOX_TIMEOUT, pbox_wait_all(worker.context(), 20)),
                       "the device has not copied its gradient to host memory yet");
      worker.must(pull());
      require_contains(worker.must_be(PBOX_INVALID_ARGUMENT, pull()), "once for each");
      fake_cuda_release();
      worker.must_be(PBOX_WORKER_LOST, pbox_wait(worker.context(), tensor, 0));
      cudaStreamSynchronize(streams[2]);
    }
    require(weights == std::vector<float>(kElements, 6.5f), "the last weights");
    require_no_violation();
  });
}

}  // namespace pbox::test
