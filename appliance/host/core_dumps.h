// Keeps keys out of core dumps. OpenSSL keeps private keys and the secrets of TLS in memory of its
// own, so the memory of the whole process is left out.
#pragma once

#include "base/result.h"

namespace pbox::host {

// From now on the kernel writes no core dump of this process, and no other process of its user may
// read its memory. A dump that root forces (gcore) holds registers and no memory. Set-up thread.
Status keep_memory_out_of_dumps();

}  // namespace pbox::host
