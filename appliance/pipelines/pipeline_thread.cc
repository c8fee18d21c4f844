#include "appliance/pipelines/pipeline_thread.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <future>

#include "base/cpu_set.h"
#include "base/event.h"

namespace pbox::pipelines {

Result<std::unique_ptr<PipelineThread>> PipelineThread::create(const topology::PipelinePlan& plan,
                                                               const config::Config& config,
                                                               AnyPort port,
                                                               std::span<std::byte> flight) {
  std::unique_ptr<PipelineThread> thread(new PipelineThread(plan, config, std::move(port), flight));
  auto event = create_event();
  if (!event) return event.error();
  thread->wake_ = std::move(*event);
  thread->mailbox_.wake_fd = thread->wake_.get();
  return thread;
}

PipelineThread::PipelineThread(const topology::PipelinePlan& plan, const config::Config& config,
                               AnyPort port, std::span<std::byte> flight)
    : plan_(plan),
      port_(std::move(port)),
      capabilities_(std::visit([](const auto& any) { return any.capabilities(); }, port_)),
      engine_({.pipeline_index = plan.index, .tag = {config.data.payload_crc}, .flight = flight}),
      policy_{.busy = config.pipeline.poll == config::PollMode::kBusy,
              .spin_ns = config.pipeline.spin_us * uint64_t{1000}} {}

PipelineThread::~PipelineThread() {
  mailbox_.stop.store(true, std::memory_order_release);
  if (thread_.joinable()) {
    wake();
    thread_.join();
  }
}

Status PipelineThread::start() {
  std::promise<Status> started;
  auto outcome = started.get_future();
  thread_ = std::thread([this, &started] {
    name_current_thread("pipeline-" + std::to_string(plan_.index));
    prctl(PR_SET_TIMERSLACK, 1);  // otherwise pauses last twice as long as requested
    const Status pinned = plan_.pinned ? pin_current_thread({{plan_.cpu}}) : ok_status();
    std::visit(
        [&](auto& port) {
          const PortThread<std::decay_t<decltype(port)>> on_port;
          const Status ready = pinned ? on_port.status() : pinned;
          started.set_value(ready);
          if (ready) pipeline::Loop(engine_, port, mailbox_, policy_).run();
        },
        port_);
  });
  return outcome.get();
}

uint16_t PipelineThread::udp_port() const {
  return std::visit([](const auto& port) { return port.local().port; }, port_);
}

const nic::PortCounters& PipelineThread::port_counters() const {
  return std::visit([](const auto& port) -> const nic::PortCounters& { return port.counters(); },
                    port_);
}

Status PipelineThread::add_memory(const NumaArena& memory) {
  return std::visit(
      [&](auto& port) {
        if constexpr (ReadsInPlace<std::decay_t<decltype(port)>>) {
          return port.add_memory(memory.data(), memory.size());
        } else {
          return ok_status();
        }
      },
      port_);
}

bool PipelineThread::remove_memory(const NumaArena& memory) {
  return std::visit(
      [&](auto& port) {
        if constexpr (ReadsInPlace<std::decay_t<decltype(port)>>) {
          return port.remove_memory(memory.data(), memory.size());
        } else {
          return true;
        }
      },
      port_);
}

Result<wire::QueuePairAddress> PipelineThread::connect(uint64_t owner,
                                                       const wire::QueuePairAddress& peer) {
  return std::visit(
      [&](auto& port) -> Result<wire::QueuePairAddress> {
        if constexpr (ConnectsPeers<std::decay_t<decltype(port)>>) {
          return port.connect(owner, peer);
        } else {
          return Error{ErrorCode::kUnavailable,
                       "this box has no RDMA port: set data.port = rdma there, or choose the "
                       "worker's port 'socket'"};
        }
      },
      port_);
}

Status PipelineThread::attach(uint64_t owner, const nic::LaneGrant& grant,
                              const nic::ReceivedHello& hello, Descriptor& connection) {
  const Status attached = std::visit(
      [&](auto& port) -> Status {
        if constexpr (SharesMemory<std::decay_t<decltype(port)>>) {
          return port.attach(owner, grant, hello, connection);
        } else {
          return Error{ErrorCode::kUnavailable,
                       "this box shares memory only with data.port = socket; choose the worker's "
                       "port 'socket'"};
        }
      },
      port_);
  if (attached) wake();  // it may be asleep, and not yet wait for this lane's bell
  return attached;
}

void PipelineThread::disconnect(uint64_t owner) {
  std::visit(
      [&](auto& port) {
        if constexpr (HasConnections<std::decay_t<decltype(port)>>) {
          if (!port.close(owner) || !thread_.joinable()) return;
          do {
            wake();
            std::this_thread::yield();
          } while (port.reap() > 0);
        }
      },
      port_);
}

std::optional<std::string> PipelineThread::next_port_event() {
  return std::visit(
      [](auto& port) -> std::optional<std::string> {
        if constexpr (TellsEvents<std::decay_t<decltype(port)>>) {
          return port.next_event();
        } else {
          return std::nullopt;
        }
      },
      port_);
}

void PipelineThread::wake() {
  set_event(mailbox_.wake_fd);
}

void PipelineThread::execute(pipeline::Command command) {
  command.ticket = next_ticket_++;
  PBOX_CHECK(mailbox_.commands.push(
      command));  // the caller waits for each command, so the ring is never full
  wake();
  while (mailbox_.completed_ticket.load(std::memory_order_acquire) < command.ticket) {
    std::this_thread::yield();
  }
}

}  // namespace pbox::pipelines
