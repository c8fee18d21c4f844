// The compression of tensors in the C ABI.
#include "pbox/compression.h"

#include <string>

#include "worker/abi/check_options.h"
#include "worker/abi/context.h"

using pbox::Status;
using pbox::wire::Compression;
using pbox::worker::Client;
using pbox::worker::guarded;
using pbox::worker::invalid_argument;
using pbox::worker::TensorSpec;

pbox_status pbox_set_tensor_compression(pbox_context* context, uint32_t tensor_id,
                                        pbox_compression compression) {
  return guarded(context, [&](Client& client) -> Status {
    if (const Status known = pbox::worker::check_compression(compression); !known) return known;
    return client.change_tensor(tensor_id, [&](TensorSpec& tensor) -> Status {
      if (compression != PBOX_COMPRESSION_NONE && tensor.dtype != pbox::wire::Dtype::kF32) {
        return invalid_argument("tensor '" + tensor.name + "' is " + to_string(tensor.dtype) +
                                ", and compression needs f32; set PBOX_COMPRESSION_NONE");
      }
      tensor.compression = static_cast<Compression>(compression);
      return pbox::ok_status();
    });
  });
}
