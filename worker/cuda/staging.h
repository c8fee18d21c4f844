// Runs operations on the memory of one CUDA device. Data passes through pinned host memory, on two
// streams of the caller. The calling thread does not wait.
//
// An operation takes its turn with the call. Behind the caller's stream, the stream `to_host`
// copies the input in slices. Behind each slice a host function tells the client that the slice may
// be sent. The stream `to_device` waits at a gate for each slice of the result and copies it back.
// So the copies out, the network, and the copies back of one operation overlap, and whatever the
// caller queues behind `to_device` sees the result.
//
// If the job fails, all gates open. Slices of floating-point results that have not arrived then
// hold NaN, because work that is queued behind them runs all the same.
//
// Locks: host functions and the I/O thread take a transfer's lock and the gate's, and never mutex_,
// under which CUDA functions are called.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "worker/client.h"
#include "worker/cuda/gate.h"
#include "worker/cuda/pinned_pool.h"
#include "worker/cuda/tensor_transfer.h"
#include "worker/cuda/transfer.h"

namespace pbox::worker::cuda {

class Staging {
 public:
  struct Options {
    int device = 0;
    Stream to_host = nullptr;
    Stream to_device = nullptr;
    uint32_t rank = 0;
    uint32_t world_size = 1;
  };

  // The streams belong to the caller, are not the default stream, and outlive this object. kSystem:
  // memory cannot be pinned.
  static Result<std::unique_ptr<Staging>> make(const Runtime& runtime, Client& client,
                                               const Options& options);
  // Waits until the device has passed everything that was queued. The client must have left its
  // job.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Like pbox_cuda_collective, pbox_cuda_push and pbox_cuda_pull. Any thread except the I/O thread
  // may call them.
  Result<uint64_t> start_collective(const CollectiveRequest& request, Stream current);
  Status push(uint32_t tensor, const void* input, bool initial_weights, Stream current);
  Status pull(uint32_t tensor, void* output, Stream current);

 private:
  Staging(const Runtime& runtime, Client& client, const Options& options);

  Status check_stream(Stream current) const;
  // Makes `follower` wait for what has been queued on `leader`.
  Status follow(Stream follower, Stream leader);
  Status queue_input(Transfer& transfer, const void* input);
  Status queue_output(Transfer& transfer, void* output);
  Status mark_end(const Transfer& transfer);
  Status queue_gate(uint64_t ticket);
  Status check(int error, const char* function) const;
  void reclaim();
  Result<TensorTransfer*> transfer_of(uint32_t tensor);

  const Runtime& runtime_;
  Client& client_;
  const Options options_;
  std::mutex mutex_;
  PinnedPool pool_;
  std::unique_ptr<PinnedBlock> gate_memory_;  // the gate's word; its event marks points of streams
  std::unique_ptr<Gate> gate_;
  std::deque<std::unique_ptr<Transfer>> transfers_;  // in the order of the calls
  std::map<uint32_t, std::unique_ptr<TensorTransfer>> tensors_;
};

}  // namespace pbox::worker::cuda
