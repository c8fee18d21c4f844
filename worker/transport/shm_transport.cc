#include "worker/transport/shm_transport.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "base/event.h"
#include "nic/socket/address.h"
#include "nic/wire/control.pb.h"
#include "worker/process/fork_guard.h"
#include "worker/transport/shared_heap.h"

namespace pbox::worker {
namespace {

// The size of each ring. Smaller ones stay in the caches, larger ones lose nothing when results
// come in a burst. Found with `pbox-perf exchange`: 1 MiB takes 1.4 times as long with two workers,
// and 4 MiB 1.2 times with two or four.
constexpr uint64_t kRingBytes = 2 << 20;
constexpr uint32_t kShmPathMtu = 65'535;
// Nothing is lost on the way, so a late packet only means that the box is busy.
constexpr uint64_t kShmRtoFloorNs = 10 * kNanosPerMilli;
constexpr int kShmPollMs = 1;
// How long a lane may be closed before the transport counts as failed. If the box has ended, its
// control connection shows that earlier.
constexpr uint64_t kClosedMaxNs = kNanosPerSecond;

// Passes requests and answers on. Returns an error if nobody needs the lanes any more, or the
// deadline has passed.
Status go_on(const Opening& opening, const char* awaited) {
  if (const Status alive = opening.keep_alive(); !alive) return alive;
  if (monotonic_ns() < opening.deadline_ns) return ok_status();
  return Error{ErrorCode::kTimeout, std::string("the box has not ") + awaited + " in time"};
}

}  // namespace

ShmTransport::~ShmTransport() {
  for (const Lane& lane : lanes_) forget_in_child(lane.ends->connection());
}

Result<uint32_t> ShmTransport::path_mtu(const nic::Endpoint& /*box*/) {
  return kShmPathMtu;
}

Status ShmTransport::open(const SessionSpec& session, const Opening& opening) {
  PBOX_CHECK(lanes_.empty());
  fragment_bytes_ = session.fragment_bytes;
  auto ready = create_event(true);
  if (!ready) return ready.error();
  ready_ = std::move(*ready);
  const nic::Endpoint& box = session.pipelines[0].box;
  if (!nic::host_has_address(box)) {
    return Error{ErrorCode::kNotFound,
                 "the box is not on this host, which does not have its address " +
                     nic::address_string(box) + "; use the port 'socket'"};
  }
  ask_ = Ask::kToAsk;
  if (const Status offered = await_offer(opening); !offered) return offered;
  for (uint32_t index = 0; index < session.pipelines.size(); ++index) {
    if (const Status opened = open_lane(index, opening); !opened) return opened;
  }
  return ok_status();
}

Status ShmTransport::await_offer(const Opening& opening) {
  while (ask_ != Ask::kAnswered) {
    const Status on = go_on(opening, "answered the request for lanes");
    if (!on) return on;
    usleep(kShmPollMs * 1000);
  }
  if (refusal_.empty()) return ok_status();
  return Error{ErrorCode::kNotFound, refusal_};
}

Result<Descriptor> ShmTransport::connect(const Opening& opening) const {
  for (;;) {
    bool would_block = false;
    auto socket = nic::connect_lane(socket_, would_block);
    if (socket) return socket;
    if (!would_block) {
      return Error{ErrorCode::kNotFound,
                   "the box is not on this host, or in another network namespace (" +
                       socket.error().message + "); use the port 'socket'"};
    }
    if (const Status on = go_on(opening, "accepted a lane"); !on) return on.error();
    usleep(kShmPollMs * 1000);
  }
}

Status ShmTransport::open_lane(uint32_t index, const Opening& opening) {
  auto connection = connect(opening);
  if (!connection) return connection.error();
  const int fd = connection->get();
  close_in_child(fd);
  const Status made = make_lane(index, opening, *connection);
  if (!made) forget_in_child(fd);
  return made;
}

// Takes over the connection if it succeeds.
Status ShmTransport::make_lane(uint32_t index, const Opening& opening, Descriptor& connection) {
  auto own = nic::OwnSegment::make(kRingBytes);
  if (!own) return own.error();
  nic::LaneHello hello{.pipeline = index, .token = token_, .ring_bytes = kRingBytes};
  std::vector<int> files{own->file().get()};
  if (opening.heap != nullptr) {
    hello.memory_bytes = opening.heap->memory().bytes;
    files.push_back(opening.heap->file().get());
  }
  if (const Status sent = nic::send_hello(connection.get(), hello, files); !sent) return sent;
  own->close_file();
  for (;;) {
    auto answer = nic::receive_answer(connection.get());
    if (!answer) return answer.error();
    if (*answer) {
      if ((*answer)->answer.refusal[0] != 0) {
        return Error{ErrorCode::kUnavailable, (*answer)->answer.refusal.data()};
      }
      return take_lane(std::move(**answer), opening.heap, std::move(*own), connection);
    }
    if (const Status on = go_on(opening, "made a lane"); !on) return on;
    pollfd wait{connection.get(), POLLIN, 0};
    poll(&wait, 1, kShmPollMs);
  }
}

// The box is trusted not to shrink its memory while this end uses it.
Status ShmTransport::take_lane(nic::ReceivedAnswer received, const SharedHeap* heap,
                               nic::OwnSegment own, Descriptor& connection) {
  auto other = nic::OtherSegment::map(received.segment, kRingBytes);
  if (!other) return other.error();
  Mapping results;
  if (received.answer.memory_bytes > 0) {
    auto mapped = map_memory_file(received.memory, received.answer.memory_bytes, "the box's memory",
                                  /*may_shrink=*/true);
    if (!mapped) return mapped.error();
    results = std::move(*mapped);
  }
  nic::LaneMemory inputs;
  if (heap != nullptr && received.answer.reads_memory != 0) {
    inputs = heap->memory();
    unread_ = {inputs.data, inputs.bytes};
  }
  lanes_.push_back(
      {std::make_unique<nic::ShmLane>(std::move(own), std::move(*other), std::move(connection),
                                      std::move(received.bell), inputs, std::move(results))});
  return ok_status();
}

PayloadCounts ShmTransport::payload_counts() const {
  PayloadCounts counts;
  for (const Lane& lane : lanes_) {
    counts.direct += lane.ends->places();
    counts.staged += lane.ends->copies();
  }
  return counts;
}

bool ShmTransport::take_request(proto::QueuePairs& request) {
  if (ask_ != Ask::kToAsk) return false;
  request.mutable_shared_memory();
  ask_ = Ask::kAsked;
  return true;
}

void ShmTransport::on_answer(const proto::QueuePairs& answer) {
  if (ask_ != Ask::kAsked) return;
  ask_ = Ask::kAnswered;
  const proto::SharedMemory& shared = answer.shared_memory();
  refusal_ = answer.refusal();
  if (!refusal_.empty()) return;
  if (shared.socket().empty() || shared.socket().size() > nic::kLaneSocketBytesMax ||
      shared.token().size() != token_.size()) {
    refusal_ = "the box offers no shared memory; it may be of an older release";
    return;
  }
  socket_ = shared.socket();
  std::memcpy(token_.data(), shared.token().data(), token_.size());
}

// Returns three quarters of the ring, because results sent again, STATUS and GRANT need room too.
uint32_t ShmTransport::receivable_bytes(uint32_t /*lane*/) const {
  const uint64_t record = nic::ring_record_bytes(fragment_bytes_ + limits::kPacketOverheadBytes);
  return static_cast<uint32_t>(kRingBytes / record * fragment_bytes_ / 4 * 3);
}

uint64_t ShmTransport::rto_floor_ns() const {
  return kShmRtoFloorNs;
}

std::optional<Error> ShmTransport::failure() {
  const bool is_broken = std::any_of(lanes_.begin(), lanes_.end(),
                                     [](const Lane& lane) { return lane.ends->is_broken(); });
  const bool is_closed = closed_ns_ != 0 && monotonic_ns() - closed_ns_ >= kClosedMaxNs;
  if (!is_closed && !is_broken) return std::nullopt;
  return Error{ErrorCode::kUnavailable, "the box has closed a lane of shared memory"};
}

}  // namespace pbox::worker
