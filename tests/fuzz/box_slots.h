// Pushes of fuzz_box's workers in a job of collectives. Each round of a slot carries a piece that
// is drawn from the job's seed, so it is the same for all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nic/wire/collective.h"
#include "tests/fuzz/box_jobs.h"

namespace pbox::fuzz {

struct Piece {
  wire::RoundShape shape;
  uint32_t bytes = 0;           // on the wire
  bool is_owners_only = false;  // only the owner has data
  bool has_data(uint32_t rank) const {
    return bytes > 0 && (!is_owners_only || rank == shape.owner);
  }
};

Piece piece_of(const JobShape& shape, uint32_t chunk, uint32_t round);

// Returns how many packets a rank's push of the round has.
uint32_t pushed_packets(const JobShape& shape, const Place& place);

// Completes the header of a push, and returns its payload.
std::vector<std::byte> fill_slot_push(const JobShape& shape, const Place& place, uint8_t value,
                                      wire::Header& header);

}  // namespace pbox::fuzz
