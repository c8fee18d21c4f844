// The tables of the C ABI.
#include "pbox/rows.h"

#include <memory>
#include <string>

#include "worker/abi/check_options.h"
#include "worker/abi/context.h"

using pbox::Result;
using pbox::Status;
using pbox::worker::Client;
using pbox::worker::guarded;
using pbox::worker::invalid_argument;
using pbox::worker::Operation;
using pbox::worker::RowPush;
using pbox::worker::TensorSpec;

namespace {

// Checks the caller's list of rows of a table.
Status check_rows(const TensorSpec& table, const uint64_t* row_ids, uint64_t row_count,
                  const void* rows) {
  const std::string name = "table '" + table.name + "': ";
  if (table.row_elements == 0) {
    return invalid_argument("tensor '" + table.name +
                            "' is not a table; call pbox_set_tensor_rows before pbox_join");
  }
  if (row_count > 0 && (row_ids == nullptr || rows == nullptr)) {
    return invalid_argument(name + "row_ids and rows must not be NULL if row_count is " +
                            std::to_string(row_count));
  }
  const uint64_t count = table.elements / table.row_elements;
  for (uint64_t index = 0; index < row_count; ++index) {
    if (row_ids[index] >= count) {
      return invalid_argument(name + "row_ids[" + std::to_string(index) + "] is " +
                              std::to_string(row_ids[index]) + ", but the table has " +
                              std::to_string(count) + " rows");
    }
    if (index == 0 || row_ids[index - 1] < row_ids[index]) continue;
    return invalid_argument(name + "row_ids[" + std::to_string(index) + "] is " +
                            std::to_string(row_ids[index]) + " after " +
                            std::to_string(row_ids[index - 1]) +
                            "; they must ascend: sort them, and add up the rows of equal ids");
  }
  return pbox::ok_status();
}

}  // namespace

pbox_status pbox_set_tensor_rows(pbox_context* context, uint32_t tensor_id, uint32_t row_elements) {
  return guarded(context, [&](Client& client) {
    return client.change_tensor(tensor_id, [&](TensorSpec& table) -> Status {
      if (row_elements == 0 || table.elements % row_elements != 0) {
        return invalid_argument("tensor '" + table.name + "' has " +
                                std::to_string(table.elements) + " elements, which row_elements " +
                                std::to_string(row_elements) + " does not divide");
      }
      table.row_elements = row_elements;
      table.compression = pbox::wire::Compression::kNone;
      table.chooses = false;
      return pbox::ok_status();
    });
  });
}

pbox_status pbox_push_pull_rows(pbox_context* context, uint32_t tensor_id, const uint64_t* row_ids,
                                uint64_t row_count, const void* rows, void* table,
                                pbox_callback callback, void* user) {
  return guarded(context, [&](Client& client) -> Status {
    const Result<TensorSpec> spec = client.tensor_spec(tensor_id);
    if (!spec) return spec.error();
    if (const Status sound = check_rows(*spec, row_ids, row_count, rows); !sound) return sound;
    const RowPush push{.ids = {row_ids, static_cast<size_t>(row_count)},
                       .values = static_cast<const std::byte*>(rows),
                       .row_bytes = spec->row_elements * pbox::wire::dtype_bytes(spec->dtype)};
    const Operation operation{.tensor = tensor_id,
                              .output = static_cast<std::byte*>(table),
                              .rows = std::make_shared<const RowPush>(push)};
    return client.start_many({&operation, 1}, {callback, user});
  });
}
