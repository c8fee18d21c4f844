#include "appliance/pipeline_thread.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <future>

#include "base/cpu_set.h"

namespace pbox::appliance {

Result<std::unique_ptr<PipelineThread>> PipelineThread::open(const PipelinePlan& plan,
                                                             const config::Config& config) {
  const auto local = nic::parse_endpoint(plan.address, plan.udp_port);
  if (!local) return local.error();
  auto port =
      nic::SocketPort::open({.local = *local,
                             .receive_buffer_bytes = config.data.receive_buffer_bytes,
                             .send_buffer_bytes = config.data.send_buffer_bytes,
                             .mtu = config.data.mtu,
                             .segmentation_offload = config.data.gso != config::OnOffAuto::kOff});
  if (!port) return port.error();
  std::unique_ptr<PipelineThread> thread(new PipelineThread(plan, config, std::move(*port)));
  thread->mailbox_.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (thread->mailbox_.wake_fd < 0) return system_error("cannot make an eventfd", errno);
  return thread;
}

PipelineThread::PipelineThread(const PipelinePlan& plan, const config::Config& config,
                               nic::SocketPort port)
    : plan_(plan),
      port_(std::move(port)),
      capabilities_(port_.capabilities()),
      core_({.pipeline_index = plan.index, .tag = {config.data.payload_crc}}),
      policy_{.busy = config.pipeline.poll == config::PollMode::kBusy,
              .spin_ns = config.pipeline.spin_us * uint64_t{1000}} {}

PipelineThread::~PipelineThread() {
  mailbox_.stop.store(true, std::memory_order_release);
  if (thread_.joinable()) {
    wake();
    thread_.join();
  }
  if (mailbox_.wake_fd >= 0) close(mailbox_.wake_fd);
}

Status PipelineThread::start() {
  std::promise<Status> started;
  auto outcome = started.get_future();
  thread_ = std::thread([this, &started] {
    name_current_thread("pipeline-" + std::to_string(plan_.index));
    const Status pinned = plan_.pinned ? pin_current_thread({{plan_.cpu}}) : ok_status();
    started.set_value(pinned);
    if (!pinned) return;
    pipeline::Loop loop(core_, port_, mailbox_, policy_);
    loop.run();
  });
  return outcome.get();
}

void PipelineThread::wake() {
  const uint64_t one = 1;
  while (write(mailbox_.wake_fd, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void PipelineThread::execute(pipeline::Command command) {
  command.ticket = next_ticket_++;
  PBOX_CHECK(mailbox_.commands.push(command));  // one at a time: never full
  wake();
  while (mailbox_.completed_ticket.load(std::memory_order_acquire) < command.ticket) {
    std::this_thread::yield();
  }
}

}  // namespace pbox::appliance
