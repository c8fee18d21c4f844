#include "tests/sim/burst_check.h"

#include <string>

#include "tests/sim/violation.h"

namespace pbox::sim {
namespace {

// Returns the size in bytes of the largest chunk for which the path has room although it is not
// urgent; -1 if there is room for none, nothing if there is no bound.
std::optional<int64_t> room_on(const worker::SendPath& path, uint64_t now_ns) {
  if (path.has_room(UINT32_MAX, INT32_MIN, now_ns)) return std::nullopt;
  int64_t fits = -1, too_large = UINT32_MAX;
  while (too_large - fits > 1) {
    const int64_t bytes = (fits + too_large) / 2;
    (path.has_room(static_cast<uint32_t>(bytes), INT32_MIN, now_ns) ? fits : too_large) = bytes;
  }
  return fits;
}

}  // namespace

void BurstCheck::before(const worker::Exchange& exchange, uint32_t lane,
                        const worker::SendPath& path, uint64_t now_ns) {
  named_ = exchange.next_priority(lane, now_ns);
  if (!named_) return;
  room_bytes_ = room_on(path, now_ns);
  is_urgent_ = room_bytes_ && path.has_room(UINT32_MAX, *named_, now_ns);
}

void BurstCheck::check_count(size_t count) const {
  // A lane that names kProbePriority may send nothing, because its PULL is no longer needed.
  const bool is_right = named_ ? count > 0 || *named_ == worker::kProbePriority : count == 0;
  require(is_right, [&] {
    return "order: a lane that names " +
           (named_ ? "priority " + std::to_string(*named_) : "nothing") + " to send has " +
           std::to_string(count) + " packets in its burst";
  });
}

void BurstCheck::check_first(const wire::Header& header, const std::optional<Chunk>& chunk) const {
  if (!chunk || *named_ == worker::kProbePriority) return;
  require(chunk->priority == *named_, [&] {
    return "order: a lane that names priority " + std::to_string(*named_) +
           " begins with a packet of chunk " + std::to_string(header.chunk) +
           ", whose priority is " + std::to_string(chunk->priority);
  });
}

// Returns the first packet of a push that begins in this burst. Returns null if there is none, or
// if the previous burst was full, because the push may have begun then.
const wire::Header* BurstCheck::note_started(std::span<const nic::TxPacket> packets) {
  const wire::Header* started = nullptr;
  for (const nic::TxPacket& packet : packets) {
    const wire::Header& header = packet.header;
    const auto [known, is_first] = rounds_.try_emplace(header.chunk, header.round);
    const bool is_new = is_first || known->second != header.round;
    known->second = header.round;
    const bool is_push =
        header.type() == wire::PacketType::kPush || header.type() == wire::PacketType::kZeros;
    if (is_new && is_push && started == nullptr) started = &header;
  }
  const bool is_known = !std::exchange(was_full_, packets.size() == limits::kBurstPackets);
  return is_known ? started : nullptr;
}

// `is_named`: the burst begins with the chunk.
void BurstCheck::check_start(const wire::Header& header, const std::optional<Chunk>& chunk,
                             bool is_named) const {
  if (!is_named || !chunk || !room_bytes_) return;
  require(int64_t{chunk->bytes} <= *room_bytes_ || is_urgent_, [&] {
    return "path: chunk " + std::to_string(header.chunk) + " of " + std::to_string(chunk->bytes) +
           " bytes is started although the path has room for only " + std::to_string(*room_bytes_) +
           " bytes and carries a chunk as urgent";
  });
}

void BurstCheck::check_taken(const worker::SendPath& path, uint64_t now_ns) const {
  if (!room_bytes_ || *room_bytes_ < 0) return;
  require(!path.has_room(static_cast<uint32_t>(*room_bytes_), INT32_MIN, now_ns),
          "path: a chunk that is started takes no room on the path that all parts share");
}

}  // namespace pbox::sim
