// Parses the text after "rdma:" in a worker's port: DEVICE [gid=INDEX], for example "mlx5_0" or
// "rxe0 gid=1".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"

namespace pbox::worker {

struct RdmaPortSettings {
  std::string device;
  std::optional<uint32_t> gid_index = {};  // empty: the RoCE v2 entry nearest to the box
};

// Errors name the wrong word and the remedy. Pure.
Result<RdmaPortSettings> parse_rdma_port(const std::string& text);

}  // namespace pbox::worker
