// Gives the memory of jobs its pages before the first round needs them. A pipeline that is the
// first to touch a page waits until the kernel has filled it with zeros, which makes a first round
// two to four times as long as later ones.
//
// A thread takes one piece of memory after the other, of each job in turn, so that a small job does
// not wait for all of a large one. Contents do not change, so the memory may already be in use.
// Where pages cannot be had, such as beyond the limit of a control group, the memory stays as it
// is.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "base/numa_arena.h"

namespace pbox::pipelines {

class Prefaulter {
 public:
  // Writes to the eventfd `done_fd` when a Prefault is over.
  explicit Prefaulter(int done_fd) : done_fd_(done_fd) {}
  // Every Prefault that begin() returned must be destroyed before.
  ~Prefaulter();
  Prefaulter(const Prefaulter&) = delete;
  Prefaulter& operator=(const Prefaulter&) = delete;

  // See PipelineHost::prefault(). The first call starts the thread, on the CPUs of the caller, so
  // that it takes no time from pipelines that have CPUs of their own. Control thread.
  std::unique_ptr<Prefault> begin(const NumaArena& memory);

 private:
  class Order;

  void run();

  int done_fd_;
  std::mutex mutex_;  // guards the members below; not held while the kernel works
  std::condition_variable changed_;
  std::list<Order*> orders_;
  const Order* current_ = nullptr;  // the thread works on a piece of its memory
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace pbox::pipelines
