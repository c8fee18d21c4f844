#include "config/fields_rdma.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <sstream>

#include "config/value.h"

namespace pbox::config {
namespace {

constexpr size_t kNameBytesMax = 63;  // the kernel's bound
constexpr uint64_t kGidIndexMax = 255;

bool is_device_name(const std::string& name) {
  return name.size() <= kNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](unsigned char letter) {
           return std::isalnum(letter) != 0 || letter == '_' || letter == '-' || letter == '.';
         });
}

std::optional<std::vector<std::string>> read_names(const std::string& text) {
  std::istringstream words(text);
  std::vector<std::string> names;
  for (std::string name; words >> name;) {
    if (!is_device_name(name)) return std::nullopt;
    names.push_back(name);
  }
  return names;
}

std::string print_names(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

Field devices() {
  return Field{
      "rdma.devices",
      "RDMA devices that carry data in addition to sockets; empty: those near the pipelines",
      "names as 'rdma link' shows them, separated by spaces, such as mlx5_0 mlx5_1",
      false,
      [](const Config& config) { return print_names(config.rdma.devices); },
      [](Config& config, const std::string& text) {
        auto names = read_names(text);
        if (!names || names->size() > kRdmaDevicesMax) return false;
        config.rdma.devices = std::move(*names);
        return true;
      }};
}

Field gid_index() {
  return Field{
      "rdma.gid_index",
      "index in the GID table of the devices; auto: the RoCE v2 entry nearest to the pipeline",
      "auto, or a whole number from 0 to 255",
      false,
      [](const Config& config) {
        const int32_t index = config.rdma.gid_index;
        return index == kGidIndexAuto ? std::string("auto") : std::to_string(index);
      },
      [](Config& config, const std::string& text) {
        const auto index = read_number(text);
        if (text != "auto" && (!index || *index > kGidIndexMax)) return false;
        config.rdma.gid_index = text == "auto" ? kGidIndexAuto : static_cast<int32_t>(*index);
        return true;
      }};
}

Field mode() {
  return Field{"rdma.mode",
               "how workers send packets: send; or write_imm, into slots that the box gives each "
               "worker, only on networks that you trust",
               "one of send, write_imm",
               false,
               [](const Config& config) {
                 return std::string(config.rdma.mode == RdmaMode::kSend ? "send" : "write_imm");
               },
               [](Config& config, const std::string& text) {
                 if (text != "send" && text != "write_imm") return false;
                 config.rdma.mode = text == "send" ? RdmaMode::kSend : RdmaMode::kWriteImm;
                 return true;
               }};
}

}  // namespace

void add_rdma(std::vector<Field>& list) {
  list.push_back(devices());
  list.push_back(gid_index());
  list.push_back(mode());
}

}  // namespace pbox::config
