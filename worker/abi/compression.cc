// The compression of tensors in the C ABI.
#include "pbox/compression.h"

#include <string>

#include "worker/abi/check_options.h"
#include "worker/abi/context.h"

using pbox::Status;
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
      tensor.compression = pbox::worker::compression_of(compression);
      tensor.chooses = compression == PBOX_COMPRESSION_AUTO;
      if (tensor.chooses) return pbox::worker::check_chosen(tensor);
      return pbox::ok_status();
    });
  });
}

pbox_status pbox_tensor_compression(pbox_context* context, uint32_t tensor_id,
                                    pbox_compression* now, double* seconds_plain,
                                    double* seconds_compressed) {
  return guarded(context, [&](Client& client) -> Status {
    const auto choice = client.tensor_compression(tensor_id);
    if (!choice) return choice.error();
    if (now != nullptr) *now = static_cast<pbox_compression>(choice->now);
    if (seconds_plain != nullptr) *seconds_plain = choice->seconds_plain;
    if (seconds_compressed != nullptr) *seconds_compressed = choice->seconds_compressed;
    return pbox::ok_status();
  });
}
