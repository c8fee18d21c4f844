#include <poll.h>

#include <catch2/catch.hpp>
#include <future>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "worker/transport/lane_opener.h"

namespace pbox::worker {
namespace {

constexpr int kPatienceMs = 60'000;

// State that a test shares with its transport on the other thread.
struct Device {
  std::promise<void> may_open;
  std::mutex mutex;
  std::vector<std::thread::id> registering_threads;
  std::vector<const std::byte*> registered;  // by the transport, and not removed
  std::promise<void> is_registering;         // the first region
  std::promise<void> may_register;
  bool refuses = false;
};

class Registrar : public MemoryRegistrar {
 public:
  explicit Registrar(Device& device) : device_(device) {}
  Result<std::unique_ptr<DeviceMemory>> add(const std::byte*, size_t) override {
    bool is_first = false;
    {
      const std::lock_guard lock(device_.mutex);
      is_first = device_.registering_threads.empty();
      device_.registering_threads.push_back(std::this_thread::get_id());
    }
    if (is_first) {
      device_.is_registering.set_value();
      device_.may_register.get_future().wait();
    }
    if (device_.refuses) return Error{ErrorCode::kSystem, "refused"};
    return std::make_unique<DeviceMemory>();
  }

 private:
  Device& device_;
};

// Opens when it may; until then it asks the box a question in each turn.
class SlowTransport : public Transport {
 public:
  explicit SlowTransport(Device& device)
      : device_(device),
        may_open_(device.may_open.get_future()),
        registrar_(std::make_shared<Registrar>(device)) {}

  Result<uint32_t> path_mtu(const nic::Endpoint&) override { return 1500u; }
  Status open(const SessionSpec&, const Opening& opening) override {
    while (may_open_.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
      if (const Status alive = opening.keep_alive(); !alive) return alive;
    }
    return ok_status();
  }
  uint32_t receivable_bytes(uint32_t) const override { return 4096; }
  uint64_t rto_floor_ns() const override { return 5; }
  int event_fd(uint32_t) const override { return -1; }
  bool take_request(proto::QueuePairs& request) override {
    if (has_asked_) return false;
    request.set_sequence(1);
    return has_asked_ = true;
  }
  void on_answer(const proto::QueuePairs& answer) override { answers += answer.sequence(); }
  std::shared_ptr<MemoryRegistrar> memory_registrar() override { return registrar_; }
  void add_memory(const std::byte* memory, size_t,
                  Result<std::unique_ptr<DeviceMemory>> registered) override {
    const std::lock_guard lock(device_.mutex);
    if (registered) device_.registered.push_back(memory);
  }
  bool remove_memory(const std::byte* memory, bool, std::unique_ptr<DeviceMemory>&) override {
    const std::lock_guard lock(device_.mutex);
    std::erase(device_.registered, memory);
    return true;
  }
  size_t rx_burst(uint32_t, std::span<nic::RxPacket>) override { return 0; }
  size_t tx_burst(uint32_t, std::span<const nic::TxPacket>) override { return 0; }

  uint64_t answers = 0;

 private:
  Device& device_;
  std::future<void> may_open_;
  std::shared_ptr<Registrar> registrar_;
  bool has_asked_ = false;
};

LaneOpener::Order order_for(Device& device, std::map<const std::byte*, size_t> memory = {}) {
  LaneOpener::Order order;
  order.choice.ports = {"slow"};
  order.transport = std::make_unique<SlowTransport>(device);
  order.session.pipelines.resize(1);
  order.deadline_ns = UINT64_MAX;
  order.memory = std::move(memory);
  return order;
}

LaneOpener::Outcome await_outcome(LaneOpener& opener) {
  for (;;) {
    if (auto outcome = opener.take()) return std::move(*outcome);
    pollfd wait{opener.fd(), POLLIN, 0};
    REQUIRE(poll(&wait, 1, kPatienceMs) == 1);
    static_cast<void>(opener.take_request());
  }
}

}  // namespace

TEST_CASE("a transport is opened on another thread, and asks the box through the opener") {
  Device device;
  LaneOpener opener(order_for(device));
  pollfd wait{opener.fd(), POLLIN, 0};
  REQUIRE(poll(&wait, 1, kPatienceMs) == 1);
  const auto request = opener.take_request();
  REQUIRE(request.has_value());
  CHECK(request->sequence() == 1);
  CHECK_FALSE(opener.take_request().has_value());
  CHECK_FALSE(opener.take().has_value());
  proto::QueuePairs answer;
  answer.set_sequence(1);
  opener.give_answer(answer);
  device.may_open.set_value();
  LaneOpener::Outcome outcome = await_outcome(opener);
  REQUIRE(outcome.facts.ok());
  CHECK(outcome.facts->receivable_bytes == std::vector<uint32_t>{4096});
  CHECK(outcome.facts->rto_floor_ns == 5);
  // The answer reached the transport, or is left for it.
  const auto& transport = static_cast<SlowTransport&>(*outcome.transport);
  CHECK(transport.answers + outcome.answers.size() == 1);
}

TEST_CASE("an opening that is not needed any more ends with an error, and so does its object") {
  Device device;
  {
    LaneOpener opener(order_for(device));
    opener.cancel();
    const LaneOpener::Outcome outcome = await_outcome(opener);
    REQUIRE_FALSE(outcome.facts.ok());
    CHECK(outcome.facts.error().code == ErrorCode::kClosed);
    CHECK(outcome.transport != nullptr);
  }
  Device other;
  const LaneOpener destroyed(order_for(other));
}

TEST_CASE("memory is registered on the opener's thread, and may come and go meanwhile") {
  Device device;
  const std::byte memory[3] = {};
  LaneOpener opener(order_for(device, {{&memory[0], 1}}));
  opener.add_memory(&memory[1], 1);
  CHECK(opener.remove_memory(&memory[1]));  // nothing is registered before the lanes are open
  device.may_open.set_value();
  device.is_registering.get_future().wait();
  opener.add_memory(&memory[2], 1);
  CHECK_FALSE(opener.remove_memory(&memory[0]));  // it is being registered now
  CHECK_FALSE(opener.take().has_value());
  device.may_register.set_value();
  const LaneOpener::Outcome outcome = await_outcome(opener);
  REQUIRE(outcome.facts.ok());
  CHECK(device.registered == std::vector<const std::byte*>{&memory[2]});
  for (const std::thread::id thread : device.registering_threads) {
    CHECK(thread != std::this_thread::get_id());
  }
}

TEST_CASE("memory that the device refuses does not fail the opening") {
  Device device;
  device.refuses = true;
  device.may_open.set_value();
  device.may_register.set_value();
  const std::byte memory{};
  LaneOpener opener(order_for(device, {{&memory, 1}}));
  CHECK(await_outcome(opener).facts.ok());
  CHECK(device.registering_threads.size() == 1);
  CHECK(device.registered.empty());
}

}  // namespace pbox::worker
