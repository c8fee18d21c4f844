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
      if (tensor.chooses) return pbox::worker::ChosenTensors::check(tensor);
      return pbox::ok_status();
    });
  });
}

pbox_status pbox_tensor_compression(pbox_context* context, uint32_t tensor_id,
                                    pbox_compression* now, double* seconds_plain,
                                    double* seconds_compressed) {
  return guarded(context, [&](Client& client) -> Status {
    const auto report = client.report();
    if (!report) return report.error();
    if (tensor_id >= report->compressions.size()) {
      return invalid_argument("tensor " + std::to_string(tensor_id) + " is unknown");
    }
    const auto& found = report->compressions[tensor_id];
    if (now != nullptr) *now = static_cast<pbox_compression>(found.now);
    if (seconds_plain != nullptr) *seconds_plain = found.seconds_plain;
    if (seconds_compressed != nullptr) *seconds_compressed = found.seconds_compressed;
    return pbox::ok_status();
  });
}
