#include "worker/rdma/port_settings.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

namespace pbox::worker {
namespace {

constexpr std::string_view kGid = "gid=";
constexpr uint32_t kGidIndexMax = 255;

}  // namespace

Result<RdmaPortSettings> parse_rdma_port(const std::string& text) {
  std::istringstream words(text);
  RdmaPortSettings settings;
  if (!(words >> settings.device)) {
    return Error{
        ErrorCode::kInvalidArgument,
        "no device is named; write rdma:DEVICE, as in 'rdma:mlx5_0' (rdma link shows them)"};
  }
  for (std::string word; words >> word;) {
    uint32_t index = 0;
    const char* begin = word.data() + std::min(word.size(), kGid.size());
    const char* end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(begin, end, index);
    if (!word.starts_with(kGid) || error != std::errc() || stop != end || index > kGidIndexMax) {
      return Error{ErrorCode::kInvalidArgument,
                   "'" + word + "' is not understood; write gid=INDEX, with an index from 0 to " +
                       std::to_string(kGidIndexMax) + ", or leave it out"};
    }
    settings.gid_index = index;
  }
  return settings;
}

}  // namespace pbox::worker
