#include "worker/process/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "base/event.h"

namespace pbox::worker {
namespace {

constexpr int kFree = -1;
constexpr int kTableSize = 1024;  // further descriptors are inherited, as if there were no guard

struct Table {
  std::array<std::atomic<int>, kTableSize> fds;
  Table() {
    for (auto& fd : fds) fd.store(kFree, std::memory_order_relaxed);
    pthread_atfork(nullptr, nullptr, &Table::in_child);
  }
  static void in_child();
};

Table& table() {
  static Table instance;
  return instance;
}

void Table::in_child() {
  for (auto& slot : table().fds) {
    const int fd = slot.exchange(kFree, std::memory_order_relaxed);
    if (fd != kFree) close(fd);
  }
}

}  // namespace

void close_in_child(int fd) {
  for (auto& slot : table().fds) {
    int expected = kFree;
    if (slot.compare_exchange_strong(expected, fd)) return;
  }
}

void forget_in_child(int fd) {
  for (auto& slot : table().fds) {
    int expected = fd;
    if (slot.compare_exchange_strong(expected, kFree)) return;
  }
}

Result<Descriptor> create_own_event() {
  auto event = create_event();
  if (event) close_in_child(event->get());
  return event;
}

}  // namespace pbox::worker
