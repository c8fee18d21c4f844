#include "appliance/pipelines/prefaulter.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "base/cpu_set.h"
#include "base/event.h"
#include "base/thread.h"

namespace pbox::pipelines {
namespace {

// The kernel takes about a millisecond for a piece, and ~Order() may have to wait for it.
constexpr size_t kPieceBytes = 2u << 20;

}  // namespace

class Prefaulter::Order : public Prefault {
 public:
  Order(Prefaulter& prefaulter, std::span<std::byte> memory)
      : rest_(memory), prefaulter_(prefaulter) {}
  ~Order() override {
    std::unique_lock lock(prefaulter_.mutex_);
    prefaulter_.orders_.remove(this);
    prefaulter_.changed_.wait(lock, [this] { return prefaulter_.current_ != this; });
  }
  bool is_over() const override { return is_over_.load(std::memory_order_acquire); }

  // The caller holds the prefaulter's mutex.
  std::span<std::byte> take_piece() {
    const auto piece = rest_.first(std::min(rest_.size(), kPieceBytes));
    rest_ = rest_.subspan(piece.size());
    return piece;
  }
  bool has_rest() const { return !rest_.empty(); }
  void end() { is_over_.store(true, std::memory_order_release); }

 private:
  std::span<std::byte> rest_;
  std::atomic<bool> is_over_{false};
  Prefaulter& prefaulter_;
};

Prefaulter::~Prefaulter() {
  {
    const std::lock_guard lock(mutex_);
    PBOX_CHECK(orders_.empty());  // an order would refer to this object
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::unique_ptr<Prefault> Prefaulter::begin(const NumaArena& memory) {
  if (memory.has_hugepages()) return nullptr;
  if (!thread_.joinable()) {
    auto thread = start_thread("prefault memory", [this] {
      name_current_thread("prefaulter");
      run();
    });
    if (!thread) return nullptr;  // the memory gets its pages when it is first written
    thread_ = std::move(*thread);
  }
  auto order = std::make_unique<Order>(*this, std::span(memory.data(), memory.size()));
  {
    const std::lock_guard lock(mutex_);
    orders_.push_back(order.get());
  }
  changed_.notify_all();
  return order;
}

void Prefaulter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !orders_.empty(); });
    if (stop_) return;
    Order& order = *orders_.front();
    const std::span<std::byte> piece = order.take_piece();
    current_ = &order;
    lock.unlock();
    const bool has_pages = madvise(piece.data(), piece.size(), MADV_POPULATE_WRITE) == 0;
    lock.lock();
    current_ = nullptr;
    if (!orders_.empty()) orders_.splice(orders_.end(), orders_, orders_.begin());
    // If the kernel cannot give one piece its pages, it could not give the rest theirs either.
    if (!has_pages || !order.has_rest()) {
      orders_.remove(&order);
      order.end();
      set_event(done_fd_);
    }
    changed_.notify_all();
  }
}

}  // namespace pbox::pipelines
