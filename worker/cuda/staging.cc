#include "worker/cuda/staging.h"

#include <new>
#include <string>
#include <utility>

#include "base/check.h"

namespace pbox::worker::cuda {
namespace {

constexpr const char* kUnusableDevice =
    "An earlier error of CUDA may have left the device unusable: CUDA_LAUNCH_BLOCKING=1 shows "
    "where; restart the process";

// Makes a device the calling thread's current one for as long as this object exists.
class DeviceScope {
 public:
  DeviceScope(const Runtime& runtime, int device) : runtime_(runtime) {
    if (runtime_.get_device(&before_) != 0) before_ = device;
    if (before_ != device) static_cast<void>(runtime_.set_device(device));
    is_changed_ = before_ != device;
  }
  ~DeviceScope() {
    if (is_changed_) static_cast<void>(runtime_.set_device(before_));
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const Runtime& runtime_;
  int before_ = 0;
  bool is_changed_ = false;
};

}  // namespace

Staging::Staging(const Runtime& runtime, Client& client, const Options& options)
    : runtime_(runtime),
      client_(client),
      options_(options),
      // Lets an RDMA device read the block. If it refuses, payloads are copied, and statistics say
      // so.
      pool_(runtime, [&client](const PinnedBlock& block) {
        static_cast<void>(client.register_memory(block.memory(), block.bytes()));
      }) {}

Result<std::unique_ptr<Staging>> Staging::make(const Runtime& runtime, Client& client,
                                               const Options& options) {
  if (options.to_host == nullptr || options.to_device == nullptr ||
      options.to_host == options.to_device) {
    return Error{ErrorCode::kInvalidArgument,
                 "to_host and to_device must be two different streams, and neither may be the "
                 "default stream"};
  }
  const DeviceScope scope(runtime, options.device);
  std::unique_ptr<Staging> staging(new Staging(runtime, client, options));
  auto memory = PinnedBlock::make(runtime, sizeof(uint32_t));
  if (!memory) return memory.error();
  staging->gate_memory_ = std::move(*memory);
  staging->gate_ = std::make_unique<Gate>(new (staging->gate_memory_->memory()) uint32_t(0));
  return staging;
}

Staging::~Staging() {
  const DeviceScope scope(runtime_, options_.device);
  // A stream that reports an error runs nothing any more, so errors do not matter here.
  static_cast<void>(runtime_.stream_synchronize(options_.to_host));
  static_cast<void>(runtime_.stream_synchronize(options_.to_device));
}

Status Staging::check(int error, const char* function) const {
  if (error == 0) return ok_status();
  return runtime_.check(
      error, std::string(function) + " on CUDA device " + std::to_string(options_.device),
      kUnusableDevice);
}

Status Staging::check_stream(Stream current) const {
  int is_capturing = 0;
  if (const Status asked =
          check(runtime_.stream_is_capturing(current, &is_capturing), "cudaStreamIsCapturing");
      !asked) {
    return asked;
  }
  if (is_capturing == 0) return ok_status();
  return Error{ErrorCode::kInvalidArgument,
               "the stream is being captured into a CUDA graph, but a graph cannot contain an "
               "exchange with the box; make this call outside of torch.cuda.graph()"};
}

Status Staging::follow(Stream follower, Stream leader) {
  const Event mark = gate_memory_->event();
  if (const Status marked = check(runtime_.event_record(mark, leader), "cudaEventRecord"); !marked)
    return marked;
  return check(runtime_.stream_wait_event(follower, mark, 0), "cudaStreamWaitEvent");
}

// Gives back the memory of transfers that have ended.
void Staging::reclaim() {
  while (!transfers_.empty() && transfers_.front()->has_ended()) {
    auto block = transfers_.front()->take_block();
    transfers_.pop_front();
    // The pool hands it out once its event has passed, which is after the last host function.
    if (block != nullptr) pool_.give_back(std::move(block));
  }
}

Result<uint64_t> Staging::start_collective(const CollectiveRequest& request, Stream current) {
  const std::lock_guard lock(mutex_);
  const DeviceScope scope(runtime_, options_.device);
  if (const Status sound = check_stream(current); !sound) return sound.error();
  const Result<SliceShape> slices = client_.slices(request.call);
  if (!slices) return slices.error();
  const TransferLayout layout = layout_of(request.call, options_.rank, options_.world_size);
  if ((layout.input_rows > 0 && request.input == nullptr) ||
      (layout.output_rows > 0 && request.output == nullptr)) {
    return Error{ErrorCode::kInvalidArgument, "in and out must not be NULL"};
  }
  reclaim();
  std::unique_ptr<PinnedBlock> block;
  if (layout.bytes > 0) {
    auto taken = pool_.take(layout.bytes);
    if (!taken) return taken.error();
    block = std::move(*taken);
  }
  for (const Stream stream : {options_.to_host, options_.to_device}) {
    if (const Status behind = follow(stream, current); !behind) return behind.error();
  }
  transfers_.push_back(
      std::make_unique<Transfer>(client_, *gate_, request.call, *slices, layout, std::move(block)));
  Transfer& transfer = *transfers_.back();
  if (const Status started = transfer.start(request.priority); !started) return started.error();
  Status queued = queue_input(transfer, request.input);
  if (queued) {
    queued = queue_output(transfer, request.output);
  } else {
    transfer.open_all();
  }
  // This is needed after an error too, because what has been queued uses the memory.
  const Status marked = mark_end(transfer);
  if (!queued) return queued.error();
  if (!marked) return marked.error();
  return transfer.operation();
}

Status Staging::queue_input(Transfer& transfer, const void* input) {
  const TransferLayout& layout = transfer.layout();
  if (layout.input_rows == 0) return ok_status();
  const auto* from = static_cast<const std::byte*>(input);
  std::byte* to = transfer.memory() + layout.input_offset;
  for (uint64_t slice = 0; slice < transfer.slice_count(); ++slice) {
    const auto [offset, bytes] = transfer.range(slice);
    const int error = layout.input_rows == 1
                          ? runtime_.memcpy_async(to + offset, from + offset, bytes, kDeviceToHost,
                                                  options_.to_host)
                          : runtime_.memcpy_2d_async(to + offset, layout.row_bytes, from + offset,
                                                     layout.row_bytes, bytes, layout.input_rows,
                                                     kDeviceToHost, options_.to_host);
    if (const Status copied = check(error, "a copy to host memory"); !copied) return copied;
    if (const Status told = check(runtime_.launch_host_func(options_.to_host, &Transfer::on_copied,
                                                            transfer.copied(slice)),
                                  "cudaLaunchHostFunc");
        !told) {
      return told;
    }
  }
  return ok_status();
}

Status Staging::queue_gate(uint64_t ticket) {
  return runtime_.check(
      runtime_.stream_wait_value(options_.to_device, gate_->address(), Gate::value_of(ticket),
                                 kWaitGreaterEqual),
      "cuStreamWaitValue32 on CUDA device " + std::to_string(options_.device),
      "If the driver does not support it, install the driver of CUDA 12 or newer");
}

Status Staging::queue_output(Transfer& transfer, void* output) {
  const TransferLayout& layout = transfer.layout();
  auto* to = static_cast<std::byte*>(output);
  const bool writes = layout.output_rows > 0;
  // Without a copy back the stream waits only for the end of the operation.
  for (uint64_t slice = writes ? 0 : transfer.slice_count() - 1; slice < transfer.slice_count();
       ++slice) {
    if (const Status queued = queue_gate(transfer.ticket(slice)); !queued) return queued;
    if (!writes) continue;
    const auto [offset, bytes] = transfer.range(slice);
    const std::byte* from = transfer.memory() + layout.output_offset + offset;
    const int error =
        layout.output_rows == 1
            ? runtime_.memcpy_async(to + offset, from, bytes, kHostToDevice, options_.to_device)
            : runtime_.memcpy_2d_async(to + offset, layout.row_bytes, from, layout.row_bytes, bytes,
                                       layout.output_rows, kHostToDevice, options_.to_device);
    if (const Status copied = check(error, "a copy to the device"); !copied) return copied;
  }
  return ok_status();
}

// Records the event of the transfer's memory, if it has any, behind all copies and host functions.
Status Staging::mark_end(const Transfer& transfer) {
  if (transfer.layout().bytes == 0) return ok_status();
  if (const Status behind = follow(options_.to_device, options_.to_host); !behind) return behind;
  return check(runtime_.event_record(transfer.event(), options_.to_device), "cudaEventRecord");
}

Result<TensorTransfer*> Staging::transfer_of(uint32_t tensor) {
  if (const auto known = tensors_.find(tensor); known != tensors_.end()) {
    return known->second.get();
  }
  const Result<TensorSpec> spec = client_.tensor_spec(tensor);
  if (!spec) return spec.error();
  const uint64_t bytes = spec->elements * wire::dtype_bytes(spec->dtype);
  PBOX_CHECK(bytes > 0);
  auto block = pool_.take(2 * bytes);
  if (!block) return block.error();
  auto& made = tensors_[tensor];
  made = std::make_unique<TensorTransfer>(client_, *gate_, tensor, bytes, std::move(*block));
  return made.get();
}

Status Staging::push(uint32_t tensor, const void* input, bool initial_weights, Stream current) {
  const std::lock_guard lock(mutex_);
  const DeviceScope scope(runtime_, options_.device);
  if (const Status sound = check_stream(current); !sound) return sound;
  if (input == nullptr) return Error{ErrorCode::kInvalidArgument, "input must not be NULL"};
  const Result<TensorTransfer*> found = transfer_of(tensor);
  if (!found) return found.error();
  TensorTransfer& transfer = **found;
  if (const Status behind = follow(options_.to_host, current); !behind) return behind;
  // The new weights must not arrive before the last ones were copied back.
  if (const Status behind = check(runtime_.stream_wait_event(options_.to_host, transfer.event(), 0),
                                  "cudaStreamWaitEvent");
      !behind) {
    return behind;
  }
  if (const Status started = transfer.start(initial_weights); !started) return started;
  if (const Status copied =
          check(runtime_.memcpy_async(transfer.gradient(), input, transfer.bytes(), kDeviceToHost,
                                      options_.to_host),
                "a copy to host memory");
      !copied) {
    return copied;
  }
  return check(runtime_.launch_host_func(options_.to_host, &TensorTransfer::on_copied, &transfer),
               "cudaLaunchHostFunc");
}

Status Staging::pull(uint32_t tensor, void* output, Stream current) {
  const std::lock_guard lock(mutex_);
  const DeviceScope scope(runtime_, options_.device);
  if (const Status sound = check_stream(current); !sound) return sound;
  const auto known = tensors_.find(tensor);
  if (output == nullptr || known == tensors_.end()) {
    return Error{
        ErrorCode::kInvalidArgument,
        "tensor " + std::to_string(tensor) +
            (output == nullptr ? ": output must not be NULL"
                               : " was not pushed from this device; call pbox_cuda_push first")};
  }
  TensorTransfer& transfer = *known->second;
  if (const Status behind = follow(options_.to_device, current); !behind) return behind;
  const Result<uint64_t> ticket = transfer.draw();
  if (!ticket) return ticket.error();
  if (const Status queued = queue_gate(*ticket); !queued) return queued;
  if (const Status copied =
          check(runtime_.memcpy_async(output, transfer.weights(), transfer.bytes(), kHostToDevice,
                                      options_.to_device),
                "a copy to the device");
      !copied) {
    return copied;
  }
  return check(runtime_.event_record(transfer.event(), options_.to_device), "cudaEventRecord");
}

}  // namespace pbox::worker::cuda
