#include "base/entropy.h"

#include <unistd.h>

#include "base/check.h"

namespace pbox {

uint64_t system_entropy() {
  uint64_t drawn = 0;
  PBOX_CHECK(getentropy(&drawn, sizeof(drawn)) == 0);  // fails for invalid arguments only
  return drawn;
}

}  // namespace pbox
