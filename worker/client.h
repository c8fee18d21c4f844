// A worker of a job, for callers on any thread: its parts (part_set.h) and their drivers, a clock,
// the one I/O thread, and the passage of calls from the callers' threads to that thread. The C ABI
// (abi/) is a thin layer over this class.
//
// Threads. mutex_ guards what callers and the I/O thread share: operations, requests and the
// failure. After join() the parts and their drivers belong to the I/O thread alone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "pbox/base.h"
#include "worker/choice/caller_tensors.h"
#include "worker/collective/collectives.h"
#include "worker/io_waits.h"
#include "worker/membership/part_set.h"
#include "worker/part_driver.h"
#include "worker/transport/address_watch.h"
#include "worker/transport/registered_memory.h"
#include "worker/transport/shared_heap.h"

namespace pbox::worker {

// `box` may name several boxes of a cluster, separated by commas; any one of them suffices.
struct ClientOptions : MembershipOptions {
  std::string port = "socket";  // in the syntax of open_transport; several are separated by |
  uint32_t wait_timeout_ms = 60'000;
  std::string keys = {};  // folder of keys, or token, for boxes that have keys; empty: none
  uint64_t collective_bytes = kSlotBytesDefault;  // memory of the slots of a job of collectives
  // Compression of f32 tensors with at least wire::kCompressedElementsMin elements; a tensor may
  // have its own.
  wire::Compression compression = wire::Compression::kNone;
  // Whether compression is chosen while the job runs, for tensors with at least
  // ChosenTensors::kElementsMin elements.
  bool chooses_compression = false;
};

// The I/O thread calls this once, when all operations of a start_many() have ended: with the first
// tensor and kOk, or with the first that has failed and why. A null callback is not called.
struct Completion {
  pbox_callback callback = nullptr;
  void* user = nullptr;
};

// Operations that the I/O thread takes by itself, instead of calls that start them. The I/O thread
// makes all calls.
class OperationSource {
 public:
  virtual ~OperationSource() = default;
  // Takes the next operation; false if there is none.
  virtual bool next(Operation& operation) = 0;
  // The I/O thread is about to sleep until fd() is readable. Returns false if it must ask for
  // operations again first.
  virtual bool may_sleep() = 0;
  virtual int fd() const = 0;  // an eventfd
  virtual void done(uint32_t tensor) = 0;
  virtual void failed(ErrorCode status) = 0;  // called once, as the last call
};

class Client {
 public:
  explicit Client(ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Only before join().
  Result<uint32_t> register_tensor(TensorSpec tensor);
  Status set_optimizer(const proto::Optimizer& optimizer);
  // Changes a registered tensor. `change` returns an error if it cannot.
  Status change_tensor(uint32_t tensor, const std::function<Status(TensorSpec&)>& change);
  // May be called again after it has failed.
  Status join();

  // Like pbox_box_pipelines and pbox_run_source. `source` must outlive the I/O thread.
  Result<uint32_t> box_pipelines();
  Status run_source(OperationSource& source);
  // In client_memory.cc: like pbox_register_memory and pbox_unregister_memory.
  Status register_memory(const std::byte* address, uint64_t bytes);
  Status unregister_memory(const std::byte* address);
  // In client_memory.cc: like pbox_alloc.
  Result<std::byte*> allocate(uint64_t bytes);
  // Like pbox_push_pull, pbox_push_pull_many and pbox_init_weights. After an error none was
  // started. `input_follows`: the tensors are pending, but each is sent only after give_input() for
  // it.
  Status start_many(std::span<const Operation> operations, const Completion& completion,
                    bool input_follows = false);
  // Reports that the input of tensor `operation` is in host memory. In a job of collectives: that
  // the first `slices` slices of that operation's input are. Any thread may call it. No effect if
  // the operation has failed.
  void give_input(uint64_t operation, uint64_t slices);
  // In client_collective.cc: like pbox_collective and pbox_wait_collective.
  Result<uint64_t> start_collective(const CollectiveRequest& request);
  // Like Collectives::slices.
  Result<SliceShape> slices(const CollectiveCall& call);
  Status wait_collective(uint64_t operation, uint32_t timeout_ms);
  Status wait(uint32_t tensor, uint32_t timeout_ms);
  Status wait_all(uint32_t timeout_ms);
  // Like pbox_set_priorities.
  Status set_priorities(wire::PriorityPolicy policy, const int32_t* by_tensor);
  Status set_learning_rate(float learning_rate);
  // In client_join.cc: like pbox_set_sync; an empty `tensors` means all.
  Status set_sync(const std::string& tensors, const wire::SyncSpec& sync);
  // Like pbox_set_loss_scale and pbox_last_step; nullopt before the first verdict.
  Status set_loss_scale(float loss_scale, uint64_t age);
  Result<std::optional<proto::StepVerdict>> last_step();
  Status barrier(uint32_t timeout_ms);
  // In client_io.cc: like pbox_leave. `reason`: see Membership::leave.
  Status leave(const std::string& reason = "");
  // Like pbox_tensor_round and pbox_contributors.
  Result<uint32_t> round(uint32_t tensor);
  Result<uint32_t> contributors(uint32_t tensor);

  struct Report {
    Statistics exchange;
    PayloadCounts payloads;
    uint64_t recoveries = 0, optimizer_restarts = 0, ports_given_up = 0;
    Membership::Restored restored, optimizer_state;
    uint64_t operations_completed = 0, operations_failed = 0;
    uint32_t fragment_bytes = 0, pipeline_count = 0;
    // The values of pbox_tensor_compression.
    struct Compression {
      wire::Compression now = wire::Compression::kNone;
      double seconds_plain = 0, seconds_compressed = 0;
    };
    std::vector<Compression> compressions;  // by tensor
    uint32_t chosen_tensors = 0, chosen_compressed = 0;
    uint64_t compression_changes = 0;
  };
  Result<Report> report();
  // Like pbox_trace_chunks and pbox_take_chunk_times. The latter returns the number of entries.
  Status trace_chunks(uint32_t capacity);
  Result<size_t> take_chunk_times(std::span<ChunkTimes> times);

  std::string last_error() const;
  void set_last_error(const std::string& message);
  // The session that the box granted in the join. Any thread may read it after join() has
  // succeeded.
  const proto::Session& session() const { return session_; }
  // Returns a registered tensor, or an error if it is unknown.
  Result<TensorSpec> tensor_spec(uint32_t tensor) const;
  // Returns whether this process is a forked child, which may not use the client.
  bool forked() const;

 private:
  enum class Phase { kNew, kJoined, kLeft };
  // The operations of one start_many().
  struct Batch {
    size_t left = 0;      // operations that have not ended
    uint32_t tensor = 0;  // passed to the completion
    ErrorCode status = ErrorCode::kOk;
    Completion completion;
  };
  struct TensorState {
    bool pending = false;
    bool awaits_input = false;  // started with `input_follows`; the input is not there yet
    bool initialised = false;
    uint32_t round = 0;         // as pbox_tensor_round returns it
    uint32_t contributors = 0;  // ranks in the last result; 0: there was none
    ErrorCode status = ErrorCode::kOk;
    Operation operation;
    std::shared_ptr<Batch> batch;  // while it is pending
  };

  // In client_join.cc.
  Result<proto::PartMap> ask_part_map(MembershipOptions& joining,
                                      const std::vector<TensorSpec>& tensors, uint64_t end_ns);
  Status join_parts(const MembershipOptions& joining, const std::vector<TensorSpec>& tensors,
                    const proto::PartMap& map);
  Status drive_join();
  Status start_io();

  // In client_io.cc, on the I/O thread.
  void run_io();
  void finish_io();
  bool exchange_packets(uint64_t now_ns);
  void take_requests();
  void serve_control(uint64_t now_ns);
  void pass_verdict_on();
  void complete(const std::vector<uint32_t>& tensors);
  void publish();
  void end_operation(uint32_t tensor, ErrorCode status, std::vector<Batch>& finished);
  static void run_callbacks(const std::vector<Batch>& finished);
  bool may_spin(uint64_t now_ns);
  uint64_t sleep_limit_ns(uint64_t now_ns);
  void sleep(uint64_t now_ns);
  void wake();

  Status check_phase(Phase wanted) const;
  Status check_operation(const Operation& operation) const;
  Status wait_until(std::unique_lock<std::mutex>& lock, uint32_t timeout_ms,
                    const std::function<bool()>& done);
  // `what`: for example "tensor 'bias' is not complete".
  Error timeout_error(std::unique_lock<std::mutex>& lock, uint32_t tensor, uint32_t timeout_ms,
                      const std::string& what);
  Status call_on_io(std::unique_lock<std::mutex>& lock, const std::function<void()>& function,
                    uint32_t limit_ms = UINT32_MAX);

  const ClientOptions options_;
  wire::SyncSpec sync_;  // for tensors that have no model of their own
  std::vector<TensorSpec> tensors_;
  proto::Optimizer optimizer_;
  proto::Session session_;  // set by join(), then constant
  int owner_pid_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_ = Phase::kNew;
  std::optional<Error> failure_;
  std::string last_error_;
  std::vector<TensorState> tensor_states_;  // empty in a job of collectives
  std::optional<Collectives> collectives_;  // set by the join of such a job
  RegisteredMemory memory_;
  std::shared_ptr<SharedHeap> heap_;  // made in join(); null: the box reads no input in place
  std::set<const std::byte*> being_registered_;
  std::vector<uint32_t> submitted_;
  std::vector<const std::function<void()>*> calls_;
  std::vector<std::function<void()>> requests_;  // calls to the parts, in order
  uint64_t barriers_asked_ = 0, barriers_released_ = 0;
  uint64_t learning_rates_asked_ = 0, learning_rates_set_ = 0;
  uint64_t syncs_asked_ = 0, syncs_answered_ = 0;
  std::optional<PartSet::Loss> loss_;
  std::optional<proto::StepVerdict> verdict_;
  std::vector<uint32_t> absent_ranks_;
  uint64_t completed_ = 0, failed_ = 0;
  bool stop_ = false;                  // asks the I/O thread to send LEAVE and end
  std::string leave_reason_;           // set before stop_
  std::atomic<bool> leaving_ = false;  // ends a join, which holds the lock
  bool io_done_ = false;               // the I/O thread has ended

  // Used by the I/O thread only.
  BoxAddresses addresses_;
  std::shared_ptr<const WorkerKeys> keys_;  // opened in join(); null: control connections are plain
  std::optional<PartSet> parts_;
  std::optional<CallerTensors> job_tensors_;          // over parts_, once they have joined
  OperationSource* source_ = nullptr;                 // null: operations are started by calls
  std::vector<std::unique_ptr<PartDriver>> drivers_;  // indexed by part
  SendTurns turns_;
  IoWaits waits_;
  uint64_t busy_ns_ = 0;  // when a packet last arrived or left
  uint64_t nap_ns_ = 0;   // length of the last nap; used if must_poll()
  uint64_t control_due_ns_ = 0;
  std::optional<AddressWatch> address_watch_;  // nullopt if the kernel offers no such watch
  Descriptor wake_;                            // event that wakes the I/O thread
  std::thread thread_;
};

}  // namespace pbox::worker
