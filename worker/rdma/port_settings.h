// What follows "rdma:" in a worker's port: DEVICE [gid=INDEX], as in "mlx5_0" or "rxe0 gid=1".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"

namespace pbox::worker {

struct RdmaPortSettings {
  std::string device;
  std::optional<uint32_t> gid_index = {};  // else RoCE v2, nearest to the box
};

// Errors name the word and what to write instead. Pure.
Result<RdmaPortSettings> parse_rdma_port(const std::string& text);

}  // namespace pbox::worker
