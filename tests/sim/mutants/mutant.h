// The number of the planted bug that is active in the copies of product code; 0 if none is. It is
// set before each run of a seed.
#pragma once

namespace pbox::sim {

inline int mutant_at_hand = 0;
inline int mutant() {
  return mutant_at_hand;
}

}  // namespace pbox::sim
