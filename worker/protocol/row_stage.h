// Keeps the packets of a table's result until all packets of a chunk have arrived. They then change
// the table and its shadow together, so that the shadow is always the whole result of one round.
// Used on the exchange's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nic/wire/rows.h"

namespace pbox::worker {

class RowStage {
 public:
  // Keeps a copy of a packet, whose payload is by rows or a whole fragment. Only the fragments in
  // the mask will be written. The packet's others have arrived before, perhaps in a newer packet.
  void add(const wire::Parsed& packet, uint64_t fragments);
  void clear();
  // Writes the kept packets into the chunk's bytes in the table and in the shadow, which may be
  // null, and forgets them. Payloads by rows have passed parse_rows() for this layout.
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
