// Checks each burst that a lane of a worker builds. The first packet must have the priority that
// the lane has named to its process. A chunk of any part may be started only if the path to its
// pipeline has room, and must then take up room there.
#pragma once

#include <map>
#include <optional>
#include <span>

#include "nic/port.h"
#include "worker/protocol/exchange.h"
#include "worker/protocol/send_path.h"

namespace pbox::sim {

class BurstCheck {
 public:
  // The priority of the operation of the chunk's tensor, and the chunk's least size.
  struct Chunk {
    int32_t priority = 0;
    uint32_t bytes = 0;
  };

  // Called when the lane is about to give packets to its port. `path`: the path to its pipeline,
  // which all parts share.
  void before(const worker::Exchange& exchange, uint32_t lane, const worker::SendPath& path,
              uint64_t now_ns);
  // Called with the packets that the lane gives to its port. `chunk_of(id)` returns a chunk's
  // priority and size; nothing if they are not known.
  template <typename ChunkOf>
  void after(std::span<const nic::TxPacket> packets, const worker::SendPath& path, uint64_t now_ns,
             const ChunkOf& chunk_of) {
    check_count(packets.size());
    if (packets.empty()) return;
    const wire::Header& first = packets.front().header;
    check_first(first, chunk_of(first.chunk));
    const wire::Header* started = note_started(packets);
    if (started == nullptr || started->payload_bytes == 0) return;
    check_start(*started, chunk_of(started->chunk), started == &first);
    check_taken(path, now_ns);
  }

 private:
  void check_count(size_t count) const;
  void check_first(const wire::Header& header, const std::optional<Chunk>& chunk) const;
  const wire::Header* note_started(std::span<const nic::TxPacket> packets);
  void check_start(const wire::Header& header, const std::optional<Chunk>& chunk,
                   bool is_named) const;
  void check_taken(const worker::SendPath& path, uint64_t now_ns) const;

  std::optional<int32_t> named_;  // the priority of the next packet, as the lane says
  // The last burst was full, so a chunk may have been started without a packet in it.
  bool was_full_ = false;
  // Room on the path before the burst, in bytes, for a chunk that is not urgent; negative if there
  // is none, nothing if there is no bound. `is_urgent_`: a chunk of any size has room if it has the
  // named priority.
  std::optional<int64_t> room_bytes_;
  bool is_urgent_ = false;
  std::map<uint32_t, uint32_t> rounds_;  // by chunk: the round that was started last
};

}  // namespace pbox::sim
