#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "nic/dpdk/grace_period.h"

namespace pbox::test {

TEST_CASE("a grace period ends once every poller that was inside has left") {
  nic::GracePeriodPoller first;
  nic::GracePeriodPoller second;
  nic::wait_for_grace_period();  // no poller is inside
  first.enter();
  second.enter();
  std::atomic<bool> is_over{false};
  std::thread waiter([&] {
    nic::wait_for_grace_period();
    is_over.store(true);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(is_over.load());
  first.leave();
  first.enter();  // a new visit does not count
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(is_over.load());
  second.leave();
  waiter.join();
  CHECK(is_over.load());
  first.leave();
}

TEST_CASE("munmap on other threads does not wait") {
  void* memory = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  nic::GracePeriodPoller poller;
  poller.enter();
  CHECK(munmap(memory, 4096) == 0);  // not DPDK's interrupt thread, so no wait
  poller.leave();
}

}  // namespace pbox::test
