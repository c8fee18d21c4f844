// The packets of a table's result, until all packets of the chunk are here. They change the table
// and its shadow together, so that the shadow always is the whole result of one round. Used on the
// exchange's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nic/wire/rows.h"

namespace pbox::worker {

class RowStage {
 public:
  // Keeps a copy of the payload: by rows, or a whole fragment. Only the fragments in this mask will
  // be written: others that the packet covers are here already, perhaps from a newer packet.
  void add(const wire::Parsed& packet, uint64_t fragments);
  void clear();
  // Writes what the packets have into the chunk's bytes at both places, and forgets them. `shadow`
  // may be null. Payloads by rows have passed parse_rows() for this layout.
  void apply(const wire::RowLayout& layout, std::byte* chunk, std::byte* shadow);

 private:
  struct Packet {
    wire::Header header;
    size_t offset = 0;  // in bytes_
    uint64_t fragments = 0;
  };
  std::vector<Packet> packets_;
  std::vector<std::byte> bytes_;
};

}  // namespace pbox::worker
