#include "nic/dpdk/device_find.h"

#include <net/if.h>
#include <poll.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "nic/dpdk/eal.h"

namespace pbox::nic {
namespace {

namespace fs = std::filesystem;

// Connects to a memif socket and returns the errno; 0 means that a process serves it. Waits until
// the server has sent its greeting: DPDK 22.11 panics if a client disconnects before that, because
// its interrupt thread keeps the closed descriptor.
int try_connect(const std::string& path, bool is_abstract) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t offset = is_abstract ? 1 : 0;
  if (path.size() + offset >= sizeof(address.sun_path)) return ENAMETOOLONG;
  std::memcpy(address.sun_path + offset, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + offset + path.size());
  const int error =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0 ? 0 : errno;
  constexpr int kGreetingMs = 2'000;
  pollfd greeting{fd, POLLIN, 0};
  if (error == 0) poll(&greeting, 1, kGreetingMs);
  close(fd);
  return error;
}

// Removes the socket of a memif server that crashed: a new server could not listen on it. Fails if
// another process still serves the socket.
Status clear_memif_socket(const DeviceArguments& device) {
  if (device.driver != "net_memif" || device.value("role").value_or("client") != "server") {
    return ok_status();
  }
  const std::string path = device.value("socket").value_or("/run/memif.sock");
  const bool is_abstract = device.value("socket-abstract").value_or("yes") == "yes";
  static std::set<std::string> served_here;  // devices of one process may share a socket
  if (!served_here.insert((is_abstract ? "@" : "") + path).second) return ok_status();
  const int error = try_connect(path, is_abstract);
  if (error == 0 || error == EAGAIN) {
    return Error{ErrorCode::kAlreadyExists,
                 device.name + ": another process serves memif socket " + path +
                     "; stop that process, or give another socket= in dpdk.devices"};
  }
  if (error == ECONNREFUSED && !is_abstract) unlink(path.c_str());
  return ok_status();
}

std::string driver_of(const fs::path& device) {
  std::error_code error;
  const fs::path driver = fs::read_symlink(device / "driver", error);
  return error ? "" : driver.filename().string();
}

}  // namespace

std::string explain_missing(const std::string& pci_address, const std::string& sysfs) {
  const fs::path device = fs::path(sysfs) / "bus/pci/devices" / pci_address;
  std::error_code error;
  if (!fs::exists(device, error)) {
    return "there is no PCI device " + pci_address + "; lspci -D lists the existing ones";
  }
  const std::string driver = driver_of(device);
  if (driver.empty()) {
    return "PCI device " + pci_address +
           " has no driver; bind it with dpdk-devbind.py -b vfio-pci " + pci_address;
  }
  if (driver == "vfio-pci" || driver == "igb_uio" || driver == "uio_pci_generic") {
    return "PCI device " + pci_address + " is bound to " + driver +
           ", but DPDK could not open it; check that no other process uses it and that this user "
           "may open /dev/vfio";
  }
  return "PCI device " + pci_address + " is bound to the kernel driver " + driver +
         "; bind it with dpdk-devbind.py -b vfio-pci " + pci_address +
         " (its interface disappears from the kernel)";
}

bool interface_is_running(const std::string& interface) {
  ifreq request{};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool is_known = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0;
  if (fd >= 0) close(fd);
  return is_known && (request.ifr_flags & IFF_RUNNING) != 0;
}

Result<uint16_t> find_device(const DeviceArguments& device) {
  if (const Status cleared = clear_memif_socket(device); !cleared) return cleared.error();
  uint16_t port_id = 0;
  if (rte_eth_dev_get_port_by_name(device.name.c_str(), &port_id) == 0) return port_id;
  take_eal_messages();  // drops older messages
  const int result = rte_dev_probe(device.text().c_str());
  if (result == 0 && rte_eth_dev_get_port_by_name(device.name.c_str(), &port_id) == 0) {
    return port_id;
  }
  if (!device.is_virtual()) {
    return Error{ErrorCode::kNotFound, explain_missing(device.name, "/sys") + take_eal_messages()};
  }
  const std::string said = take_eal_messages();
  std::string remedy = "check the device's arguments in dpdk.devices";
  if (device.driver == "net_af_packet" && geteuid() != 0) {
    remedy =
        "af_packet needs CAP_NET_RAW and CAP_NET_ADMIN; check also that the interface in "
        "iface= exists";
  } else if (said.find("PACKET_FANOUT") != std::string::npos) {
    // The group's number is the process id xor the interface index. It must be unique in a network
    // namespace.
    remedy =
        "another process uses the same packet fanout group; start this process again to get "
        "another one";
  } else if (device.driver == "net_af_packet") {
    remedy = "check that the interface in iface= exists and is up";
  }
  return Error{ErrorCode::kUnavailable, "DPDK cannot create device " + device.text() + ": " +
                                            rte_strerror(-result) + said + "; " + remedy};
}

}  // namespace pbox::nic
