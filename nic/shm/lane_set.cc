#include "nic/shm/lane_set.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "base/event.h"

namespace pbox::nic {

LaneSet::LaneSet()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)),
      copies_(new std::byte[limits::kBurstPackets * limits::kPacketBytesMax]) {
  if (auto event = create_event(true)) ready_ = std::move(*event);
}

LaneSet::~LaneSet() = default;

Status LaneSet::attach(uint64_t owner, uint32_t spi, std::unique_ptr<ShmLane> lane, Descriptor bell,
                       PortCounters& counters) {
  PBOX_CHECK(lane != nullptr && bell.ok());
  if (!epoll_.ok() || !ready_.ok()) {
    return Error{ErrorCode::kResourceExhausted, "the box has no descriptors left for lanes"};
  }
  close(owner);
  reap();
  const auto free = std::find_if(places_.begin(), places_.end(), [](const Place& place) {
    return place.state.load(std::memory_order_acquire) == State::kFree;
  });
  if (free == places_.end()) {
    return Error{ErrorCode::kResourceExhausted,
                 "the pipeline serves " + std::to_string(kLanesMax) +
                     " workers by shared memory, which is the maximum; use the port 'socket'"};
  }
  // Edge-triggered, so that the box never has to read the bell, whose state the worker shares.
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, bell.get(), &event) != 0) {
    return system_error("cannot wait for a lane's bell", errno);
  }
  const auto index = static_cast<uint32_t>(free - places_.begin());
  free->owner = owner;
  free->spi = spi;
  free->endpoint = lane_endpoint(static_cast<uint16_t>(index), ++number_);
  free->lane = std::move(lane);
  free->bell = std::move(bell);
  free->is_dead = false;
  free->places_counted = 0;
  counters.add(PortCounter::kLanes);
  free->state.store(State::kReady, std::memory_order_release);
  if (index >= used_.load(std::memory_order_relaxed)) {
    used_.store(index + 1, std::memory_order_release);
  }
  return ok_status();
}

bool LaneSet::close(uint64_t owner) {
  bool any = false;
  for (Place& place : places_) {
    if (place.owner != owner || place.state.load(std::memory_order_relaxed) != State::kReady) {
      continue;
    }
    closing_.fetch_add(1, std::memory_order_relaxed);
    place.state.store(State::kClosing, std::memory_order_release);
    any = true;
  }
  return any;
}

// The worker shares the bell, so closing it would not remove it from the epoll instance.
size_t LaneSet::reap() {
  size_t left = 0;
  for (Place& place : places_) {
    const State state = place.state.load(std::memory_order_acquire);
    if (state == State::kClosing) ++left;
    if (state != State::kReleased) continue;
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, place.bell.get(), nullptr);
    place.bell = Descriptor();
    place.lane.reset();
    place.state.store(State::kFree, std::memory_order_release);
  }
  return left;
}

}  // namespace pbox::nic
