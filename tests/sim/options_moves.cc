// Draws moves of chunks between the pipelines of a box.
#include "tests/sim/draw.h"

namespace pbox::sim {

void draw_chunk_moves(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x6368756e6b6d6f76ull);
  if (options.pipelines < 2 || !draw.chance(0.25)) return;
  for (uint32_t left = draw.between(1, 4); left > 0; --left) {
    options.chunk_moves.push_back({.begin_ns = draw.number() % work_ns(options),
                                   .box = draw.below(options.boxes),
                                   .draw = draw.number()});
  }
}

}  // namespace pbox::sim
