#include "worker/dpdk/port_settings.h"

#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>

namespace pbox::worker {
namespace {

constexpr uint32_t kMemoryMibMax = 1u << 20;

Error refuse(const std::string& word, const std::string& remedy) {
  return {ErrorCode::kInvalidArgument, "'" + word + "' " + remedy};
}

// Returns the text after `key` in "key=value"; nullopt if the word has a different key.
std::optional<std::string> value_of(const std::string& word, std::string_view key) {
  if (!word.starts_with(key)) return std::nullopt;
  return word.substr(key.size());
}

Status read_number(const std::string& word, const std::string& text, uint32_t least, uint32_t most,
                   uint32_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= least &&
      number <= most) {
    return ok_status();
  }
  return refuse(word,
                "is not accepted; give " + std::to_string(least) + " to " + std::to_string(most));
}

Status take_gateway(const std::string& word, const std::string& text, nic::Interface& interface) {
  const auto gateway = nic::parse_endpoint(text, 0);
  if (!gateway) return refuse(word, "is not an address; write one, such as gateway=10.0.0.254");
  auto& place = gateway->ipv6 ? interface.gateway6 : interface.gateway4;
  if (place) return refuse(word, "is a second gateway of its address family; remove one");
  place = nic::ip_address(*gateway);
  return ok_status();
}

Status take_word(const std::string& word, DpdkPortSettings& settings) {
  nic::Interface& interface = settings.interface;
  if (word == "no_huge") {
    settings.no_huge = true;
    return ok_status();
  }
  if (const auto text = value_of(word, "gateway=")) return take_gateway(word, *text, interface);
  if (const auto text = value_of(word, "vlan=")) {
    uint32_t vlan = 0;
    if (const Status read = read_number(word, *text, 1, 4'094, vlan); !read) return read;
    interface.vlan = static_cast<uint16_t>(vlan);
    return ok_status();
  }
  if (const auto text = value_of(word, "mtu=")) {
    return read_number(word, *text, 1'280, kDpdkPortMtuMax, interface.mtu);
  }
  if (const auto text = value_of(word, "memory_mib=")) {
    return read_number(word, *text, 1, kMemoryMibMax, settings.memory_mib);
  }
  const auto address = nic::parse_interface_address(word);
  if (!address) {
    return refuse(word,
                  "is not understood; write ADDRESS/PREFIX, such as 10.0.0.7/24, gateway=ADDRESS, "
                  "vlan=ID, mtu=BYTES, no_huge or memory_mib=N");
  }
  interface.addresses.push_back(*address);
  return ok_status();
}

}  // namespace

nic::EalOptions DpdkPortSettings::eal() const {
  nic::EalOptions options{.no_huge = no_huge};
  if (!device.starts_with("net_")) options.pci_addresses.push_back(device);
  if (memory_mib != 0 || no_huge) {
    options.memory_mib.push_back(memory_mib != 0 ? memory_mib : kNoHugeMemoryMib);
  }
  return options;
}

Result<DpdkPortSettings> parse_dpdk_port(const std::string& text) {
  std::istringstream words(text);
  DpdkPortSettings settings;
  if (!(words >> settings.device)) {
    return Error{ErrorCode::kInvalidArgument,
                 "no device is named; write dpdk:DEVICE ADDRESS/PREFIX, as in "
                 "'dpdk:0000:3b:00.0 10.0.0.7/24'"};
  }
  for (std::string word; words >> word;) {
    if (const Status taken = take_word(word, settings); !taken) return taken.error();
  }
  if (const Status valid = nic::validate(settings.interface); !valid) return valid.error();
  return settings;
}

}  // namespace pbox::worker
