// The rows of a table that an operation pushes, and how they become packets. Used on the exchange's
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nic/wire/rows.h"

namespace pbox::worker {

// The pushed rows, in the caller's memory, which stays unchanged until the operation is done.
struct RowPush {
  std::span<const uint64_t> ids;  // rows of the tensor, ascending
  const std::byte* values = nullptr;
  uint32_t row_bytes = 0;  // bytes of a row in `values`
};

// Makes the packets of one chunk of a table.
class RowChunk {
 public:
  // `first_row`: the row of the tensor that is row 0 of the chunk.
  RowChunk(const wire::RowLayout& layout, uint64_t first_row, const RowPush& push);

  // Returns the first fragments of the packets that carry the chunk, as bits. A packet covers the
  // fragments up to the next bit.
  uint64_t packet_starts() const;
  // Writes into `payload`, which has room for a fragment, the packet that begins at `fragment`, one
  // of packet_starts(). Sets length, flag and scale of the header.
  void make_packet(uint32_t fragment, std::byte* payload, wire::Header& header) const;

 private:
  const std::byte* source(uint32_t row, uint32_t begin) const;

  wire::RowLayout layout_;
  const RowPush& push_;
  size_t first_ = 0;  // index of the push's first row in the chunk
  std::vector<uint32_t> bits_;
  std::vector<uint32_t> before_;  // number of the push's rows in the words before each of bits_
};

}  // namespace pbox::worker
