// Checks the options of a C program, which can store any number in an enum. The box checks which
// options fit together. Pure.
#pragma once

#include "base/result.h"
#include "nic/wire/blocks.h"
#include "pbox/pbox.h"

namespace pbox::worker {

// Returns an error for the first option whose value is not allowed.
Status check_options(const pbox_options& options);
Status check_policy(pbox_priority_policy policy);
Status check_compression(pbox_compression compression);
// Returns the form in which a tensor travels while it is compressed. With PBOX_COMPRESSION_AUTO it
// is q8.
constexpr wire::Compression compression_of(pbox_compression compression) {
  return compression == PBOX_COMPRESSION_AUTO ? wire::Compression::kQ8
                                              : static_cast<wire::Compression>(compression);
}

}  // namespace pbox::worker
