#include "config/dpdk_device.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "config/link_address.h"
#include "config/value.h"

namespace pbox::config {
namespace {

constexpr char kVirtualPrefix[] = "net_";
constexpr uint32_t kVlanMax = 4'094;

// Returns "dddd:bb:dd.f" in lower case, from that or from "bb:dd.f"; nullopt for other words.
std::optional<std::string> read_pci_address(const std::string& word) {
  constexpr char kShape[] = "xxxx:xx:xx.f";
  const std::string text = word.size() == 7 ? "0000:" + word : word;
  if (text.size() != sizeof(kShape) - 1) return std::nullopt;
  std::string address;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool fits = kShape[i] == 'x'   ? std::isxdigit(c) != 0
                      : kShape[i] == 'f' ? c >= '0' && c <= '7'
                                         : text[i] == kShape[i];
    if (!fits) return std::nullopt;
    address += static_cast<char>(std::tolower(c));
  }
  return address;
}

// Returns whether the word is a virtual device in DPDK's notation. Refuses characters that would
// end the value in the configuration file.
bool is_virtual_device(const std::string& word) {
  constexpr char kMarks[] = "_-.,=:/@+[]";
  if (!word.starts_with(kVirtualPrefix)) return false;
  if (word.size() == std::size(kVirtualPrefix) - 1 || word[4] == ',') return false;
  return std::all_of(word.begin(), word.end(), [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view(kMarks).find(c) != std::string_view::npos;
  });
}

// Each take_ function adds what its word says to `device`, or returns the word's fault.
std::string take_device(const std::string& word, DpdkDevice& device) {
  const auto pci = read_pci_address(word);
  device.device = pci ? *pci : word;
  if (pci || is_virtual_device(word)) return {};
  return word +
         " is not a device; begin with a PCI address, such as 0000:3b:00.0, or a virtual device, "
         "such as " +
         "net_af_packet0,iface=eth1";
}

std::string take_gateway(const std::string& word, const std::string& text, DpdkDevice& device) {
  const auto gateway = read_ip(text);
  if (!gateway) return word + " is not an address; write, for example, gateway=10.0.0.254";
  for (const auto& other : device.gateways) {
    if (read_ip(other)->bytes.size() != gateway->bytes.size()) continue;
    return word + " is a second gateway of its family; keep one";
  }
  device.gateways.push_back(print_ip(*gateway));
  return {};
}

std::string take_vlan(const std::string& word, const std::string& text, DpdkDevice& device) {
  const auto vlan = read_number(text);
  if (!vlan || *vlan == 0 || *vlan > kVlanMax) {
    return word + " is not accepted; give vlan=1 to vlan=" + std::to_string(kVlanMax);
  }
  if (device.vlan != 0) return word + " is a second VLAN; keep one";
  device.vlan = static_cast<uint16_t>(*vlan);
  return {};
}

std::string take_address(const std::string& word, DpdkDevice& device) {
  if (const auto ip = read_ip(word)) {
    return word + " has no prefix length; write it as " + word +
           (ip->bytes.size() == 4 ? "/24" : "/64");
  }
  const auto address = read_link_address(word);
  if (!address) {
    return word +
           " is not understood; write an address such as 10.0.0.1/24, gateway=ADDRESS or vlan=ID";
  }
  if (!is_station(*address)) {
    return word +
           " cannot be a device's own address; give one that workers can send to, "
           "such as 10.0.0.1/24 or fd00::1/64";
  }
  const std::string text = print_ip(*address);
  for (const auto& other : device.addresses) {
    if (without_prefix(other) == text) return word + " is given twice; keep one";
  }
  device.addresses.push_back(text + '/' + std::to_string(address->prefix_bits));
  return {};
}

std::string take_word(const std::string& word, DpdkDevice& device) {
  constexpr std::string_view kGateway = "gateway=";
  constexpr std::string_view kVlan = "vlan=";
  if (word.starts_with(kGateway)) return take_gateway(word, word.substr(kGateway.size()), device);
  if (word.starts_with(kVlan)) return take_vlan(word, word.substr(kVlan.size()), device);
  return take_address(word, device);
}

// Checks the device as a whole, once all its words are known to be valid.
std::string fault_of(const DpdkDevice& device) {
  if (device.addresses.empty()) return "it has no address; add one, such as 10.0.0.1/24";
  for (const auto& text : device.gateways) {
    bool is_reachable = false;
    for (const auto& address : device.addresses) {
      if (without_prefix(address) == text) {
        return "gateway=" + text +
               " is the device's own address; give the router's, or remove the gateway";
      }
      is_reachable = is_reachable || is_in_network_of(*read_ip(text), *read_link_address(address));
    }
    if (is_reachable) continue;
    return "gateway=" + text +
           " is in no network of the device; give one that is, or add an address of its network";
  }
  return {};
}

void read_item(const std::string& item, DpdkDevicesRead& read) {
  const auto words = words_of(item);
  if (words.empty()) {
    read.faults.push_back("an item is empty; remove a ';'");
    return;
  }
  DpdkDevice device;
  const size_t faults_before = read.faults.size();
  const auto note = [&](const std::string& fault) {
    if (!fault.empty()) read.faults.push_back(words[0] + ": " + fault);
  };
  if (auto fault = take_device(words[0], device); !fault.empty()) {
    read.faults.push_back(std::move(fault));
  }
  for (size_t i = 1; i < words.size(); ++i) note(take_word(words[i], device));
  if (read.faults.size() == faults_before) note(fault_of(device));
  read.devices.push_back(std::move(device));
}

}  // namespace

DpdkDevicesRead read_dpdk_devices(const std::string& text) {
  DpdkDevicesRead read;
  if (words_of(text).empty()) return read;
  for (const auto& item : split(text, ";")) read_item(item, read);
  return read;
}

std::string print_dpdk_devices(const std::vector<DpdkDevice>& devices) {
  std::string text;
  for (const auto& device : devices) {
    text += (text.empty() ? "" : "; ") + device.device;
    for (const auto& address : device.addresses) text += ' ' + address;
    for (const auto& gateway : device.gateways) text += " gateway=" + gateway;
    if (device.vlan != 0) text += " vlan=" + std::to_string(device.vlan);
  }
  return text;
}

std::vector<std::vector<uint32_t>> device_groups(const std::vector<DpdkDevice>& devices) {
  const auto sorted = [](std::vector<std::string> addresses) {
    std::sort(addresses.begin(), addresses.end());
    return addresses;
  };
  std::vector<std::vector<uint32_t>> groups;
  for (uint32_t index = 0; index < devices.size(); ++index) {
    const auto addresses = sorted(devices[index].addresses);
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& each) {
      return sorted(devices[each[0]].addresses) == addresses;
    });
    if (group == groups.end()) {
      groups.push_back({index});
    } else {
      group->push_back(index);
    }
  }
  return groups;
}

bool is_pci_device(const std::string& device) {
  return read_pci_address(device).has_value();
}

std::string device_name(const std::string& device) {
  return device.substr(0, device.find(','));
}

bool is_device_kind(const std::string& device, const std::string& kind) {
  const std::string name = device_name(device);
  return name.substr(0, name.find_last_not_of("0123456789") + 1) == kind;
}

std::string device_argument(const std::string& device, const std::string& key) {
  for (const auto& argument : split(device, ",")) {
    if (argument.starts_with(key + '=')) return argument.substr(key.size() + 1);
  }
  return {};
}

bool stays_on_host(const std::string& device) {
  return is_device_kind(device, "net_memif") || is_device_kind(device, "net_ring") ||
         is_device_kind(device, "net_null");
}

std::string without_prefix(const std::string& address) {
  return address.substr(0, address.find('/'));
}

}  // namespace pbox::config
